"""Sessions of browsers: who calls over the Unix socket gets a link to the dashboard that works once (`dray dashboard`).

A browser cannot use the socket, and a certificate or a long token is nothing to type. So the caller, whom the kernel
names, gets a code that is good for two minutes and for one thing: the page that opens the link exchanges it for the
token of a session, which has the user and the groups of the caller. Whoever reads the address later (a history, a
process list) has a code that is used up.

Codes and tokens are kept as digests, in memory only: a restart of the server ends all sessions. Both are bounded; the
oldest of a user goes first.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from dray.api.times import format_time
from dray.api.user_names import DASHBOARD_PATH, DASHBOARD_SESSION_PATH, USERS_GROUP, user_namespace
from dray.server.requests import Request, Response, User, errors, json_response

CODE_LIFETIME = timedelta(minutes=2)
SESSION_LIFETIME = timedelta(hours=12)
MOST_OF_USER = 16
MOST = 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    user: User
    expires: datetime


@dataclass(slots=True)
class _Secrets:
    """Secrets that stand for users for a time; oldest first."""

    lifetime: timedelta
    _entries: dict[bytes, _Entry] = field(default_factory=dict)

    def make(self, user: User, now: datetime) -> tuple[str, datetime]:
        """Return a new secret and until when it is good."""
        self._entries = {key: entry for key, entry in self._entries.items() if now < entry.expires}
        of_user = [key for key, entry in self._entries.items() if entry.user.name == user.name]
        for key in of_user[: len(of_user) - MOST_OF_USER + 1] if len(of_user) >= MOST_OF_USER else []:
            del self._entries[key]
        while len(self._entries) >= MOST:
            del self._entries[next(iter(self._entries))]
        secret = secrets.token_urlsafe(18)
        entry = _Entry(user, now + self.lifetime)
        self._entries[_digest(secret)] = entry
        return secret, entry.expires

    def find(self, secret: str, now: datetime) -> User | None:
        """Return the user for whom a secret stands."""
        entry = self._entries.get(_digest(secret))
        return entry.user if entry is not None and now < entry.expires else None

    def forget(self, secret: str) -> None:
        """Let a secret stand for nobody any more."""
        self._entries.pop(_digest(secret), None)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()


@dataclass(slots=True)
class BrowserSessions:
    """Makes links, exchanges their codes, knows the tokens; `url` is set once the server listens."""

    url: str = ""
    _codes: _Secrets = field(default_factory=lambda: _Secrets(CODE_LIFETIME))
    _tokens: _Secrets = field(default_factory=lambda: _Secrets(SESSION_LIFETIME))

    def user(self, secret: str, path: str, now: datetime) -> User | None:
        """Return the user of a token, or, for the one path that exchanges it, of a code."""
        if path == DASHBOARD_SESSION_PATH:
            return self._codes.find(secret, now)
        return self._tokens.find(secret, now)

    def respond(self, request: Request, user: User, code: str, now: datetime) -> Response | None:
        """Answer a request for a link or for the session of `code`; None for other paths. Raises the errors 403 and 405."""
        if request.path not in (DASHBOARD_PATH, DASHBOARD_SESSION_PATH):
            return None
        if request.method != "POST":
            raise errors.method_not_allowed()
        if request.path == DASHBOARD_PATH:
            if request.peer_uid is None or code:
                message = "a link to the dashboard needs the Unix socket of the machine, without a token"
                raise errors.ApiError(403, "Forbidden", message)
            made, expires = self._codes.make(user, now)
            link = f"{self.url}/dashboard/#code={made}"
            return json_response(201, {"url": link, "user": user.name, "expires": format_time(expires)})
        if self._codes.find(code, now) is None:
            message = "a session begins with the code of a link; `dray dashboard` prints one"
            raise errors.ApiError(403, "Forbidden", message)
        self._codes.forget(code)
        token, expires = self._tokens.make(user, now)
        namespace = user_namespace(user.name) if USERS_GROUP in user.groups else ""
        answer = {"token": token, "user": user.name, "namespace": namespace, "expires": format_time(expires)}
        return json_response(201, answer)
