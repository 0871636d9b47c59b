"""Sleeps forever, and catches what it can."""

import time

from wit_world.imports.types import Completion, DispatchContext

HOUR = 3600.0


def handle(_context: DispatchContext) -> Completion:
    while True:
        try:
            time.sleep(HOUR)
        except BaseException:
            pass
