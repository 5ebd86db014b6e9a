"""Lets a process of dray tell what it holds: on SIGUSR2 it writes `<pid>.json` beside this file.

Python imports `sitecustomize` by itself when its folder is on PYTHONPATH, so the processes under test need no code for this.
Counted are objects by type, after a collection, and blocks of Python's allocator, which also count what the collector does not see
(texts, numbers, structs). What the C library keeps for later is in neither, so both say nothing about memory that is free.
"""

import gc
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent


def tell(_number: int, _frame: object) -> None:
    """Write the counts."""
    gc.collect()
    blocks = sys.getallocatedblocks()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    draft = FOLDER / f"{os.getpid()}.draft"
    draft.write_text(json.dumps({"blocks": blocks, "types": types}))
    draft.rename(FOLDER / f"{os.getpid()}.json")


if "dray" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, tell)
