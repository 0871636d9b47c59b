"""A handler in Python. What it does is a parameter of the action."""

import json
import time

import wit_world
from componentize_py_types import Err
from wit_world.imports import clock, http, progress
from wit_world.imports.types import Completion, Failure_Plain

HOUR = 3600.0
STEP = 0.05


def completed(**params):
    return Completion(action=None, params=json.dumps(params))


def echo(context, text):
    """Answers what it was given."""
    return completed(text=text, attempt=context.attempt)


def fetch(context, url):
    """Asks a server that takes its time."""
    head = http.RequestHead(method="GET", url=url, headers=[])
    response = http.send(http.Request(head=head, body=b""))
    return completed(status=response.status, body=response.body.decode())


def hang(context):
    """Hangs, and tries not to be ended."""
    while True:
        try:
            time.sleep(HOUR)
        except BaseException:
            pass


def steps(context):
    """Works in small steps until it is told to stop, and says how far it came."""
    taken = 0
    while not clock.should_stop():
        time.sleep(STEP)
        taken += 1
    return completed(stopped="in time", steps=taken, had_time_left=clock.deadline_remaining_ms() > 0)


WORK = {work.__name__: work for work in (echo, fetch, hang, steps)}


class WitWorld(wit_world.WitWorld):
    def handle(self, context):
        params = json.loads(context.trigger_params)
        do = params.pop("do", None)
        progress.set_status(f"python: {do}")
        if do not in WORK:
            raise Err(Failure_Plain(f"there is nothing called {do}"))
        return WORK[do](context, **params)
