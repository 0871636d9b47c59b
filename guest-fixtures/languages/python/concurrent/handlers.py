"""Asynchronous handlers as one component, because each would have 18 MB. The key `handler` of the
integration in the spec selects one."""

import asyncio
import json

import wit_world
from componentize_py_types import Err
from wit_world.imports import clock, timer
from wit_world.imports import sandglass_integration_http_0_1_1 as http_types
from wit_world.imports import sandglass_integration_http_0_2_0 as http
from wit_world.imports.types import Completion, DispatchContext, Failure_Plain

HOUR_MS = 3_600_000
STEP_MS = 50
PIECE_BYTES = 64 * 1024


async def gather(context: DispatchContext) -> dict:
    """Sends several requests and waits several times, all at once."""
    urls = json.loads(context.trigger_params)["urls"]
    started = clock.now_ms()
    naps = [nap(ms) for ms in (700, 100, 400)]
    *fetched, slept = await asyncio.gather(*map(fetch, urls), asyncio.gather(*naps))
    return {"fetched": fetched, "slept": slept, "at_once": clock.now_ms() - started < 1_000}


async def nap(ms: int) -> int:
    await timer.sleep(ms)
    return ms


async def fetch(url: str) -> list[int]:
    """The status, and the length of the body, which is read in pieces."""
    head = http_types.RequestHead(method="GET", url=url, headers=[])
    try:
        response = await http.send(http.Request(head=head, body=None))
        length = 0
        with response.body as body:
            while not body.writer_dropped:
                length += len(await body.read(PIECE_BYTES))
        ended = await response.ended.read()
        if isinstance(ended, Err):
            raise ended
    except Err as error:
        raise Err(Failure_Plain(f"{error.value}")) from error
    return [response.status, length]


async def upload(context: DispatchContext) -> dict:
    """Writes a body in pieces, while the request waits for its response. The server may respond before it
    has read all of it."""
    url = json.loads(context.trigger_params)["url"]
    writer, reader = wit_world.byte_stream()

    async def write() -> int:
        with writer:
            return sum([await writer.write_all(bytes([piece]) * 10_000) for piece in range(20)])

    head = http_types.RequestHead(method="POST", url=url, headers=[])
    sending = http.send(http.Request(head=head, body=reader))
    response, sent = await asyncio.gather(sending, write())
    return {"wrote": sent > 0, "status": response.status}


async def hang(_context: DispatchContext) -> dict:
    """Sleeps for ever, and catches what it can."""
    while True:
        try:
            await timer.sleep(HOUR_MS)
        except BaseException:
            pass


async def work_in_steps(_context: DispatchContext) -> dict:
    """Works in small steps until the soft deadline."""
    steps = 0
    while not clock.should_stop():
        await timer.sleep(STEP_MS)
        steps += 1
    return {"stopped": "in time", "had_time_left": clock.deadline_remaining_ms() > 0}


HANDLERS = {handler.__name__: handler for handler in (gather, hang, upload, work_in_steps)}


class WitWorld(wit_world.WitWorld):
    async def handle(self, context: DispatchContext) -> Completion:
        name = dict(context.integration_config).get("handler")
        if name not in HANDLERS:
            raise Err(Failure_Plain(f"there is no handler {name}"))
        params = await HANDLERS[name](context)
        return Completion(action=None, params=json.dumps(params))
