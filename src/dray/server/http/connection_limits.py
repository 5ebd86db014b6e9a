"""All connections of the server: how many there may be, and how long each may stand still.

A connection costs memory and a file descriptor from the moment it is accepted, long
before it is known who is at the other end. So there is a limit for all connections,
and a lower one for those that have not yet shown valid credentials (*unidentified*),
in all and for each remote address. At the limit for unidentified connections the
oldest of them is closed: a client that authenticates does so at once, one that
only occupies connections is the oldest.

Who calls over the Unix socket has shown credentials by that, so for each user of the machine there is a limit as
well, at which that user's oldest connection is closed. Root and the server's own user, who have to repair it, have none.

Theory of operation: `Connections` knows every connection, in whichever lane it is
(`fast_http` or the framework), in the order of arrival. Once a second `sweep` calls `tick` on each
of them, and a connection compares the ticks without progress with its limits. Time
is counted in ticks, not read from a clock, so that a server that was itself stopped
for a minute (SIGSTOP, a suspended machine) does not blame its clients for that minute.

`BodyBudget` bounds the request bodies that are in memory at one time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from typing import Protocol

from dray.server.requests import errors

TICK = 1.0  # seconds between two sweeps
MAX_CONNECTIONS = 16_384  # in all; less when the limit of open files is lower
MAX_UNIDENTIFIED = 2_048  # connections without valid credentials, in all
MAX_UNIDENTIFIED_EACH = 512  # of one remote address
MAX_LOCAL_EACH = 512  # of one user over the Unix socket; less when the limit of open files is low
BODY_BYTES = 128 * 1024 * 1024  # of all request bodies that did not come in one piece with their head

log = logging.getLogger("dray.server")


class Connection(Protocol):
    """A connection in one of the lanes."""

    def tick(self) -> None:
        """Notice that another second has passed; close when a limit is exceeded."""

    def abort(self) -> None:
        """Close at once, without sending what is left."""


class BodyBudget:
    """Bounds the bytes of request bodies in memory; whoever takes bytes gives them back."""

    def __init__(self, limit: int = BODY_BYTES) -> None:
        self._limit = limit
        self.taken = 0

    def take(self, count: int) -> None:
        """Reserve bytes; raises 429 when there are none left."""
        if self.taken + count > self._limit:
            raise errors.too_many_requests(
                "too many request bodies are being received, please try again later", 1
            )
        self.taken += count

    def give_back(self, count: int) -> None:
        """Release bytes that were taken."""
        self.taken -= count


class Connections:
    """The connections that are open."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        self.limit = limit
        self.bodies = BodyBudget()
        self.handshaking = 0  # accepted, but TLS is not yet agreed on
        self._remotes: dict[Connection, str] = {}  # in order of arrival
        self._unidentified: dict[Connection, str] = {}  # in order of arrival
        self._unidentified_by_remote: Counter[str] = Counter()
        self._most_local = min(MAX_LOCAL_EACH, max(8, limit // 8))
        self._exempt = frozenset({0, os.geteuid()})
        self._uids: dict[Connection, int] = {}  # of connections over the Unix socket, but for exempt users
        self._local: dict[int, dict[Connection, None]] = {}  # uid -> connections, in order of arrival
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._remotes) + self.handshaking

    def all(self) -> list[Connection]:
        """Return the connections, oldest first."""
        return list(self._remotes)

    def has_room(self) -> bool:
        """Return whether another connection may be accepted; closes an unidentified one to make room."""
        if len(self) < self.limit:
            return True
        oldest = next(iter(self._unidentified), None)
        if oldest is None:
            return False
        self._drop(oldest)
        return len(self) < self.limit

    def add(
        self, connection: Connection, remote: str, *, is_identified: bool, uid: int | None = None
    ) -> None:
        """Count a new connection; may close older ones that have not shown credentials, or of the same local user."""
        self._remotes[connection] = remote
        if uid is not None and uid not in self._exempt:
            self._uids[connection] = uid
            own = self._local.setdefault(uid, {})
            own[connection] = None
            if len(own) > self._most_local:
                self._drop(next(iter(own)))
        if is_identified:
            return
        self._unidentified[connection] = remote
        self._unidentified_by_remote[remote] += 1
        if self._unidentified_by_remote[remote] > MAX_UNIDENTIFIED_EACH:
            self._drop(next(each for each, where in self._unidentified.items() if where == remote))
        elif len(self._unidentified) > MAX_UNIDENTIFIED:
            self._drop(next(iter(self._unidentified)))

    def identify(self, connection: Connection) -> None:
        """Note that valid credentials came over a connection; idempotent."""
        remote = self._unidentified.pop(connection, None)
        if remote is not None:
            self._unidentified_by_remote[remote] -= 1
            if not self._unidentified_by_remote[remote]:
                del self._unidentified_by_remote[remote]

    def is_identified(self, connection: Connection) -> bool:
        """Return whether valid credentials came over a connection."""
        return connection not in self._unidentified

    def replace(self, old: Connection, new: Connection) -> None:
        """Put another lane's connection in the place of one that was handed over."""
        remote = self._remotes.get(old, "")
        is_identified, uid = self.is_identified(old), self._uids.get(old)
        self.remove(old)
        self.add(new, remote, is_identified=is_identified, uid=uid)

    def remove(self, connection: Connection) -> None:
        """Forget a connection; idempotent."""
        self.identify(connection)
        self._remotes.pop(connection, None)
        uid = self._uids.pop(connection, None)
        if uid is not None:
            del self._local[uid][connection]
            if not self._local[uid]:
                del self._local[uid]

    def _drop(self, connection: Connection) -> None:
        self.remove(connection)
        connection.abort()

    # --- time -------------------------------------------------------------------

    def start(self) -> None:
        """Begin to sweep."""
        self._sweeper = asyncio.create_task(self._sweep_forever())

    def stop(self) -> None:
        """Stop sweeping."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.sweep()

    def sweep(self) -> None:
        """Let every connection notice that time has passed."""
        for connection in self.all():
            connection.tick()
