"""Asks a server that takes its time, and answers what it said."""

import json

from componentize_py_types import Err
from wit_world.imports import http, progress
from wit_world.imports.types import Completion, DispatchContext, Failure_Plain


def handle(context: DispatchContext) -> Completion:
    url = json.loads(context.trigger_params)["url"]
    progress.set_status("waiting for the server")
    response = get(url)
    params = {"status": response.status, "body": response.body.decode()}
    return Completion(action=None, params=json.dumps(params))


def get(url: str) -> http.Response:
    head = http.RequestHead(method="GET", url=url, headers=[])
    try:
        return http.send(http.Request(head=head, body=b""))
    except Err as error:
        raise Err(Failure_Plain(f"{error.value}")) from error
