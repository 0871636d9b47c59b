"""The four handlers as one component, since each would be 18 MB: which of them runs
says the key `handler` of the integration in the spec."""

import budget_aware
import echo
import hang
import slow_http
import wit_world
from componentize_py_types import Err
from wit_world.imports.types import Completion, DispatchContext, Failure_Plain

HANDLERS = {module.__name__: module for module in (budget_aware, echo, hang, slow_http)}


class WitWorld(wit_world.WitWorld):
    def handle(self, context: DispatchContext) -> Completion:
        name = dict(context.integration_config).get("handler")
        if name not in HANDLERS:
            raise Err(Failure_Plain(f"there is no handler {name}"))
        return HANDLERS[name].handle(context)
