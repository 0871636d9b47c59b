"""Works in small steps until it is told to stop, and says how far it came."""

import json
import time

from wit_world.imports import clock
from wit_world.imports.types import Completion, DispatchContext

STEP = 0.05


def handle(_context: DispatchContext) -> Completion:
    steps = 0
    while not clock.should_stop():
        time.sleep(STEP)
        steps += 1
    params = {
        "stopped": "in time",
        "steps": steps,
        "had_time_left": clock.deadline_remaining_ms() > 0,
    }
    return Completion(action=None, params=json.dumps(params))
