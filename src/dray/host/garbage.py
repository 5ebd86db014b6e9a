"""How the processes with large caches collect garbage: in steps that hold nobody up.

Python looks for cycles after a number of objects were made that still live; a look at one takes up to 1.5 µs, and nothing
else runs meanwhile. 50,000 at once were seen to hold the server's event loop for 75 ms. Nearly everything is freed without
the collector, so how often it looks costs little; how much it looks at in one go matters.
"""

from __future__ import annotations

import gc

YOUNGEST = 5_000  # objects: about 8 ms
PER_MIDDLE = 10  # looks at the youngest before one at those that survived: about 75 ms
PER_OLDEST = (
    1_000  # of these before one at everything, which caches make large and which finds next to nothing
)


def collect_in_small_steps() -> None:
    """Set how much the collector looks at in one go."""
    gc.set_threshold(YOUNGEST, PER_MIDDLE, PER_OLDEST)
