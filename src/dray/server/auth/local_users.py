"""Who calls over the Unix socket: the kernel tells the uid of the peer (SO_PEERCRED), the account does the rest.

The user's name is that of the account, the groups are `dray:users` and `unix:GROUP` for each Unix group. Root,
and the user as whom the server runs, are administrators. Refused are callers without an account, the overflow uid
(it stands for everybody whom the kernel cannot map, such as users of a container) and account names with a colon,
which could pass for names of Kubernetes (`system:…`).

Accounts are looked up through NSS, which may ask a directory service, so what was found is remembered for
half a minute. A changed group membership counts after that time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dray.api.user_names import UNIX_GROUP_PREFIX, USERS_GROUP
from dray.host.accounts import Account, account_of_name, account_of_uid
from dray.server.auth.authorization import MASTERS_GROUP
from dray.server.requests import User

OVERFLOW_UID = 65534
REMEMBERED_SECONDS = 30.0
_MOST_REMEMBERED = 10_000


class PeerRefused(Exception):
    """A caller of the socket who is nobody here; the message says why."""


def user_of(account: Account, admins: frozenset[int]) -> User:
    """Return the user of the API that an account is."""
    groups = [f"{UNIX_GROUP_PREFIX}{name}" for _, name in account.groups]
    first = MASTERS_GROUP if account.uid in admins else USERS_GROUP
    return User(account.name, str(account.uid), (first, *groups))


@dataclass(slots=True)
class LocalUsers:
    """The accounts of this machine as users of the API."""

    admins: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    by_uid: Callable[[int], Account | None] = account_of_uid
    by_name: Callable[[str], Account | None] = account_of_name
    now: Callable[[], float] = time.monotonic
    _known: dict[int | str, tuple[float, Account | None]] = field(default_factory=dict, init=False)

    def user(self, uid: int) -> User:
        """Return who a peer is; raises PeerRefused."""
        if uid == OVERFLOW_UID:
            raise PeerRefused(f"uid {uid} stands for unknown users and cannot call this server")
        account = self._account(uid)
        if account is None:
            raise PeerRefused(f"uid {uid} has no account on this machine")
        if not is_usable(account.name):
            raise PeerRefused(f"the account name {account.name!r} cannot be a user name here")
        return user_of(account, self.admins)

    def account(self, name: str) -> Account | None:
        """Return the account of a user by name; None when the machine has none."""
        return self._account(name) if is_usable(name) else None

    def _account(self, key: int | str) -> Account | None:
        found = self._known.get(key)
        if found is None or self.now() >= found[0]:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            account = self.by_uid(key) if isinstance(key, int) else self.by_name(key)
            found = self._known[key] = (self.now() + REMEMBERED_SECONDS, account)
        return found[1]


def is_usable(name: str) -> bool:
    """Return whether the name of an account can be the name of a user of the API."""
    return bool(name) and len(name) <= 200 and name.isprintable() and not set(name) & set(": /%\\")
