import json
from dataclasses import dataclass

import wit_world
from componentize_py_types import Err
from wit_world.imports import clock, http, log
from wit_world.imports.types import Completion, DispatchContext, Failure_Plain


@dataclass
class Input:
    """What the action brings with it."""

    name: str
    url: str | None = None

    @staticmethod
    def read(params: str) -> "Input":
        given = json.loads(params)
        if not isinstance(given.get("name"), str):
            raise Err(Failure_Plain("`name` is missing, or no string"))
        return Input(given["name"], given.get("url"))


class WitWorld(wit_world.WitWorld):
    def handle(self, context: DispatchContext) -> Completion:
        """Runs once for each dispatch. What it returns goes to the action that the spec
        names as `on_success`; what it raises as Err(Failure_...), to `on_failure`."""
        wanted = Input.read(context.trigger_params)
        params: dict[str, object] = {"hello": wanted.name}

        # Near the deadline it is time to answer what there is.
        if wanted.url is not None and not clock.should_stop():
            log.write(log.Level.INFO, f"asking {wanted.url}")
            params["status"] = get(wanted.url).status
        return Completion(action=None, params=json.dumps(params))


def get(url: str) -> http.Response:
    """Of a host that integration.toml grants."""
    head = http.RequestHead(method="GET", url=url, headers=[])
    try:
        return http.send(http.Request(head=head, body=b""))
    except Err as error:
        raise Err(Failure_Plain(str(error.value))) from error
