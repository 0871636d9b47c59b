"""Answers the text that it was given."""

import json

from componentize_py_types import Err
from wit_world.imports.types import Completion, DispatchContext, Failure_Plain


def handle(context: DispatchContext) -> Completion:
    text = json.loads(context.trigger_params).get("text")
    if not isinstance(text, str):
        raise Err(Failure_Plain("`text` is missing, or no string"))
    return Completion(action=None, params=json.dumps({"text": text, "attempt": context.attempt}))
