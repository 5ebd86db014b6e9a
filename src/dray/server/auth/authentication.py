"""Who sends a request: client certificates, bearer tokens, or nobody known.

The order and the failures are kube-apiserver's. A certificate that TLS verified
decides at once. Otherwise a bearer token is looked up among the static tokens,
then among the sessions of browsers (`browser_sessions`), then verified as a service account token. Who calls over the Unix socket without a
token is the account that the kernel names (`local_users`). A token that nobody accepts ends the
request with 401 on every path, even public ones; a request without any token is
the user `system:anonymous`, which authorisation will refuse nearly everywhere.

An Authorization header that is not `Bearer <token>` counts as absent: that is
how proxies' Basic credentials pass through unharmed.

The checks are cached: a certificate is parsed once per connection's bytes, a
token's signature is verified once. What can change (expiry, deletion of the
service account or of the pod a token is bound to) is checked on every request.
"""

from __future__ import annotations

import csv
import hmac
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256

from dray.api.caching import BoundedCache
from dray.api.well_known import CREDENTIAL_ID_EXTRA
from dray.server.auth.browser_sessions import BrowserSessions
from dray.server.auth.local_users import LocalUsers, PeerRefused
from dray.server.auth.pki import Identity, identity_of
from dray.server.auth.service_account_tokens import DEFAULT_ISSUER, TokenRefused, TokenVerifier
from dray.server.requests import Request, User, unauthorized

__all__ = ["ANONYMOUS", "AUTHENTICATED_GROUP", "Authenticator", "TokenFileError", "User", "parse_token_file"]

AUTHENTICATED_GROUP = "system:authenticated"
UNAUTHENTICATED_GROUP = "system:unauthenticated"
ANONYMOUS = User("system:anonymous", groups=(UNAUTHENTICATED_GROUP,))
CACHED_CERTIFICATES = 4096


class TokenFileError(ValueError):
    """A static token file that cannot be read as kube's CSV format."""


def parse_token_file(text: str) -> dict[str, User]:
    """Read kube's static token file: `token,user,uid,"group1,group2"` a line.

    >>> parse_token_file('s3cret,ann,u1,"dev,ops"')["s3cret"].groups
    ('dev', 'ops')
    """
    users: dict[str, User] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text), skipinitialspace=True), 1):
        if not row or row[0].lstrip().startswith("#"):
            continue
        if len(row) < 3:
            raise TokenFileError(
                f'line {number} has {len(row)} columns; expected at least 3: token,user,uid[,"group1,group2"]'
            )
        token, name, uid = row[0].strip(), row[1].strip(), row[2].strip()
        if not token or not name:
            raise TokenFileError(f"line {number}: neither token nor user may be empty")
        groups = tuple(group.strip() for group in row[3].split(",") if group.strip()) if len(row) > 3 else ()
        users[token] = User(name, uid, groups)
    return users


def bearer_token(header: str) -> str:
    """Return the token of an Authorization header, or "" when it carries none."""
    scheme, _, rest = header.strip().partition(" ")
    # Everything after a second space is ignored, so "Bearer  x" carries no token.
    return rest.split(" ", 1)[0] if scheme.lower() == "bearer" else ""


@dataclass(slots=True)
class Authenticator:
    """Turn a request into a user, or refuse it with 401."""

    now: Callable[[], datetime]
    static_tokens: Mapping[str, User] = field(default_factory=dict)
    service_accounts: TokenVerifier | None = None
    anonymous: bool = True
    local_users: LocalUsers = field(default_factory=LocalUsers)
    sessions: BrowserSessions = field(default_factory=BrowserSessions)
    _static_by_digest: dict[bytes, tuple[str, User]] = field(default_factory=dict, init=False)
    _identities: BoundedCache[bytes, tuple[Identity, User]] = field(
        default_factory=lambda: BoundedCache(CACHED_CERTIFICATES), init=False
    )

    def __post_init__(self) -> None:
        self._static_by_digest = {
            sha256(token.encode()).digest(): (token, _authenticated(user))
            for token, user in self.static_tokens.items()
        }

    @property
    def audiences(self) -> tuple[str, ...]:
        """Return the audiences that tokens for this server have."""
        return (DEFAULT_ISSUER,) if self.service_accounts is None else self.service_accounts.audiences

    def authenticate(self, request: Request) -> User:
        """Return who asks; raises the 401 error for credentials that nobody accepts."""
        if request.client_certificate is not None:
            user = self._by_certificate(request.client_certificate)
            if user is not None:
                return user
        token = bearer_token(request.header("authorization"))
        if token:
            session = self.sessions.user(token, request.path, self.now())
            if session is not None:
                return _authenticated(session)
            try:
                return self.by_token(token)[0]
            except TokenRefused as refusal:
                raise unauthorized() from refusal
        if request.peer_uid is not None:
            try:
                return _authenticated(self.local_users.user(request.peer_uid))
            except PeerRefused as refusal:
                raise unauthorized(str(refusal)) from refusal
        if request.client_certificate is not None or not self.anonymous:
            raise unauthorized()
        return ANONYMOUS

    def by_token(self, token: str, audiences: tuple[str, ...] = ()) -> tuple[User, tuple[str, ...]]:
        """Return the user of a bearer token and the audiences it is good for; raises TokenRefused."""
        try:
            raw = token.encode()
        except UnicodeEncodeError as problem:  # bytes that are no UTF-8 arrive as lone surrogates
            raise TokenRefused("invalid bearer token") from problem
        # The digest is what is looked up, so that timing tells nothing about stored tokens.
        found = self._static_by_digest.get(sha256(raw).digest())
        if found is not None and hmac.compare_digest(found[0].encode(), raw):
            return found[1], audiences
        if self.service_accounts is None:
            raise TokenRefused("invalid bearer token")
        user, matched = self.service_accounts.verify(token, audiences, self.now())
        return _authenticated(user), matched

    def _by_certificate(self, der: bytes) -> User | None:
        known = self._identities.get(der)
        if known is None:
            try:
                identity = identity_of(der)
            except ValueError:
                return None
            credential = {CREDENTIAL_ID_EXTRA: (f"X509SHA256={identity.fingerprint}",)}
            user = _authenticated(User(identity.name, identity.uid, identity.groups, credential))
            known = (identity, user)
            self._identities.add(der, known)
        identity, user = known
        # A connection may outlive the certificate that opened it.
        if not identity.name or not identity.not_before <= self.now() <= identity.not_after:
            return None
        return user


def _authenticated(user: User) -> User:
    if AUTHENTICATED_GROUP in user.groups or user.name == ANONYMOUS.name:
        return user
    return replace(user, groups=(*user.groups, AUTHENTICATED_GROUP))
