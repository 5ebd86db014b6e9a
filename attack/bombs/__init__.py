"""Single requests that try to cost far more than they should: depth, width, repetition, aliases, copies.

Each bomb is sent on its own, as the least powerful user that can send it, while the heartbeat
is watched. Any answer below 500 is right; what counts is that the server lives, that
its event loop is not held, and that memory stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from attack.bombs.building import Bomb
from attack.bombs.cel import cel_bombs
from attack.bombs.definitions import definitions
from attack.bombs.heads import headers, queries
from attack.bombs.notation import aliases, depth, width
from attack.bombs.objects import lists, texts
from attack.bombs.patches import patches


def bombs() -> Iterator[Bomb]:
    """Yield every bomb, with a name of its own."""
    for part in (depth, width, aliases, patches, texts, lists, queries, headers, definitions, cel_bombs):
        yield from part()
