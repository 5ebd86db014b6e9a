"""A short-lived kubeconfig for kubectl and other clients, for who calls over the Unix socket (`dray login`).

The client certificate names the user and the groups that the caller has over the socket, for at most a day.
It cannot be revoked, only expire: that is why it is short-lived, and why only a caller whom the kernel
identifies gets one (a certificate cannot be used to get the next one).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from dray.api.times import format_time
from dray.api.user_names import LOGIN_PATH, USERS_GROUP, user_namespace
from dray.certificates import Pair, make_client_certificate
from dray.server.auth.pki import kubeconfig
from dray.server.requests import Request, Response, User, bad_request, errors, json_response

DEFAULT_SECONDS = 12 * 3600
LEAST_SECONDS, MOST_SECONDS = 600, 24 * 3600


@dataclass(slots=True)
class Login:
    """Signs certificates; `url` is known once the server listens."""

    ca: Pair
    url: str = ""

    def respond(self, request: Request, user: User, now: datetime) -> Response | None:
        """Answer a login; None for other paths. Raises the errors 400, 403 and 405."""
        if request.path != LOGIN_PATH:
            return None
        if request.method != "POST":
            raise errors.method_not_allowed()
        if request.peer_uid is None or request.header("authorization"):
            message = "a login needs the Unix socket of the machine, without a token"
            raise errors.ApiError(403, "Forbidden", message)
        lifetime = timedelta(seconds=_seconds(request.first("seconds", str(DEFAULT_SECONDS))))
        pair = make_client_certificate(self.ca, user.name, user.groups, now, lifetime)
        namespace = user_namespace(user.name) if USERS_GROUP in user.groups else "default"
        text = kubeconfig(self.url, self.ca.certificate_pem, user.name, pair, namespace)
        expires = format_time(pair.certificate.not_valid_after_utc)
        return json_response(201, {"kubeconfig": text, "user": user.name, "expires": expires})


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise bad_request(f"seconds: {text[:20]!r} is not a number")
    if not LEAST_SECONDS <= int(text) <= MOST_SECONDS:
        raise bad_request(f"seconds: {text} is not from {LEAST_SECONDS} to {MOST_SECONDS}")
    return int(text)
