"""Service account tokens: signed JSON documents that say which account a process acts for.

A token is bound. It names its audiences, its expiry, the service account (with
uid) and, when asked, one object: a pod, a node or a secret. It becomes invalid with
any of them, which is why verification reads the current objects on every request. Only
the signature is cached, because it cannot change.

A pod-bound token also tells the node that the pod runs on; the authorisation of
drivers' claim status relies on that (`authentication.kubernetes.io/node-name`).

Theory of operation: `TokenIssuer.request` answers the `serviceaccounts/token`
subresource; `TokenVerifier.verify` turns a token back into a `User`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dray.api.caching import BoundedCache
from dray.api.json_types import JsonObject
from dray.api.kinds import AUTHENTICATION
from dray.api.times import format_time, parse_time
from dray.api.validation.fields import invalid as invalid_field
from dray.api.well_known import CREDENTIAL_ID_EXTRA
from dray.server.requests import Reader, User, bad_request, conflict, invalid, not_found

DEFAULT_ISSUER = "https://kubernetes.default.svc.cluster.local"
ALGORITHM = "ES256"
SHORTEST = 600  # seconds
LONGEST = 1 << 32
DEFAULT_EXPIRATION = 3600
# Clocks disagree a little; go-jose allows the same minute.
LEEWAY = timedelta(minutes=1)
CACHED_SIGNATURES = 10_000

_EXTRA = "authentication.kubernetes.io/"
# kind of a bound object -> (resource, name of the claim, whether it has a namespace)
_BINDABLE = {
    "Pod": ("pods", "pod", True),
    "Node": ("nodes", "node", False),
    "Secret": ("secrets", "secret", True),
}


class TokenRefused(Exception):
    """A bearer token that is not accepted; the message says why."""


def service_account_user(namespace: str, name: str, uid: str = "") -> User:
    """Return the user that a service account acts as."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{name}", uid, groups)


@dataclass(slots=True)
class TokenIssuer:
    """Sign tokens for service accounts."""

    key: ec.EllipticCurvePrivateKey
    reader: Reader
    issuer: str = DEFAULT_ISSUER
    audiences: tuple[str, ...] = (DEFAULT_ISSUER,)  # what a token is for when the request does not say
    _key_id: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._key_id = key_id(self.key.public_key())

    def request(self, namespace: str, name: str, body: JsonObject, now: datetime) -> JsonObject:
        """Answer a TokenRequest for a service account; raises the API error that refuses it."""
        account = self.reader.get("", "serviceaccounts", namespace, name)
        metadata = dict(body.get("metadata") or {})
        if account is None:
            raise not_found("", "serviceaccounts", name)
        self._check_target(metadata, account, namespace, name)
        spec = dict(body.get("spec") or {})
        spec["audiences"] = list(spec.get("audiences") or self.audiences)
        expiration = spec.get("expirationSeconds")
        spec["expirationSeconds"] = DEFAULT_EXPIRATION if expiration is None else expiration
        spec["boundObjectRef"] = spec.get("boundObjectRef")
        _check_lifetime(spec["expirationSeconds"])
        bound = self._bound_claims(spec["boundObjectRef"], namespace, name)
        expires = now + timedelta(seconds=spec["expirationSeconds"])
        token = self.sign(account, spec["audiences"], bound, now, expires)
        identity = {"name": name, "namespace": namespace, "uid": account["metadata"].get("uid", "")}
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {**metadata, **identity, "creationTimestamp": format_time(now)},
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": format_time(expires)},
        }

    def sign(
        self,
        account: JsonObject,
        audiences: Sequence[str],
        bound: Mapping[str, Mapping[str, str]],
        now: datetime,
        expires: datetime,
    ) -> str:
        """Sign a token for a service account object, bound to the given references."""
        metadata = account["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        issued = int(now.timestamp())
        claims = {
            "iss": self.issuer,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": list(audiences),
            "iat": issued,
            "nbf": issued,
            "exp": int(expires.timestamp()),
            "jti": str(uuid4()),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": metadata.get("uid", "")},
                **{kind: dict(reference) for kind, reference in bound.items()},
            },
        }
        return jwt.encode(claims, self.key, algorithm=ALGORITHM, headers={"kid": self._key_id})

    def _check_target(self, metadata: JsonObject, account: JsonObject, namespace: str, name: str) -> None:
        for key, actual, what in (("name", name, "name"), ("namespace", namespace, "namespace")):
            given = metadata.get(key) or ""
            if given and given != actual:
                complaint = invalid_field(
                    f"metadata.{key}", given, f"must match the service account {what} if specified"
                )
                raise invalid(AUTHENTICATION, "TokenRequest", name, [complaint])
        uid, actual_uid = metadata.get("uid") or "", account["metadata"].get("uid", "")
        if uid and uid != actual_uid:
            why = f"the UID in the token request ({uid}) does not match the UID of the service account ({actual_uid})"
            raise conflict(AUTHENTICATION, "TokenRequest", name, why)

    def _bound_claims(
        self, reference: JsonObject | None, namespace: str, account_name: str
    ) -> dict[str, dict[str, str]]:
        if not reference:
            return {}
        kind, version = reference.get("kind", ""), reference.get("apiVersion", "")
        if kind not in _BINDABLE or "/" in version:
            group, _, plain = version.rpartition("/")
            raise bad_request(f"cannot bind token to object of type {group}/{plain}, Kind={kind}")
        resource, claim, namespaced = _BINDABLE[kind]
        name = reference.get("name", "")
        target = self.reader.get("", resource, namespace if namespaced else "", name)
        if target is None:
            raise not_found("", resource, name)
        claims = {claim: {"name": name, "uid": target["metadata"].get("uid", "")}}
        if kind == "Pod":
            if target.get("spec", {}).get("serviceAccountName", "") != account_name:
                raise bad_request(
                    f'cannot bind token for serviceaccount "{account_name}" to pod running with different '
                    "serviceaccount name."
                )
            claims.update(self._node_claim(target))
        uid = reference.get("uid") or ""
        if uid and uid != claims[claim]["uid"]:
            why = (
                f"the UID in the bound object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise conflict("", kind, name, why)
        return claims

    def _node_claim(self, pod: JsonObject) -> dict[str, dict[str, str]]:
        node_name = pod.get("spec", {}).get("nodeName", "")
        if not node_name:
            return {}
        node = self.reader.get("", "nodes", "", node_name)
        uid = node["metadata"].get("uid", "") if node else ""
        return {"node": {"name": node_name, "uid": uid} if uid else {"name": node_name}}


@dataclass(slots=True)
class TokenVerifier:
    """Recognise the tokens that this server's keys have signed."""

    keys: Sequence[ec.EllipticCurvePublicKey]
    reader: Reader
    issuer: str = DEFAULT_ISSUER
    audiences: tuple[str, ...] = (DEFAULT_ISSUER,)
    _keys_by_id: dict[str, ec.EllipticCurvePublicKey] = field(default_factory=dict, init=False)
    _signed: BoundedCache[str, JsonObject] = field(
        default_factory=lambda: BoundedCache(CACHED_SIGNATURES), init=False
    )  # token -> claims with a good signature

    def __post_init__(self) -> None:
        self._keys_by_id = {key_id(key): key for key in self.keys}

    def verify(self, token: str, audiences: Sequence[str], now: datetime) -> tuple[User, tuple[str, ...]]:
        """Return the user and the matching audiences; raises TokenRefused with the reason."""
        claims = self._claims(token)
        wanted = tuple(audiences) or self.audiences
        granted = claims.get("aud") or []
        granted = [granted] if isinstance(granted, str) else granted
        matching = tuple(audience for audience in wanted if audience in granted)
        if not matching:
            raise TokenRefused(
                f"token audiences {granted!r} is invalid for the target audiences {list(wanted)!r}"
            )
        self._check_times(claims, now)
        return self._user(claims, now), matching

    def _claims(self, token: str) -> JsonObject:
        known = self._signed.get(token)
        if known is not None:
            return known
        try:
            header = jwt.get_unverified_header(token)
            key = self._keys_by_id.get(header.get("kid", ""))
            candidates = [key] if key is not None else list(self.keys)
        except jwt.PyJWTError as problem:
            raise TokenRefused("invalid bearer token") from problem
        checks = {"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
        for candidate in candidates:
            try:
                claims: JsonObject = jwt.decode(
                    token,
                    candidate,
                    algorithms=[ALGORITHM],
                    issuer=self.issuer,
                    options=checks,  # type: ignore[arg-type]
                )
            except jwt.PyJWTError:
                continue
            self._signed.add(token, claims)
            return claims
        raise TokenRefused("invalid bearer token")

    def _check_times(self, claims: JsonObject, now: datetime) -> None:
        stamp, leeway = now.timestamp(), LEEWAY.total_seconds()
        if stamp - leeway > claims.get("exp", 0):
            raise TokenRefused("service account token has expired")
        if stamp + leeway < claims.get("nbf", 0):
            raise TokenRefused("service account token is not valid yet")
        if stamp + leeway < claims.get("iat", 0):
            raise TokenRefused("service account token is issued in the future")

    def _user(self, claims: JsonObject, now: datetime) -> User:
        private = claims.get("kubernetes.io") or {}
        namespace = private.get("namespace", "")
        reference = private.get("serviceaccount") or {}
        account = self.reader.get("", "serviceaccounts", namespace, reference.get("name", ""))
        if account is None:
            raise TokenRefused(f'serviceaccounts "{reference.get("name", "")}" not found')
        if account["metadata"].get("uid", "") != reference.get("uid", ""):
            raise TokenRefused("service account UID does not match claim")
        if _deleted(account, now):
            raise TokenRefused(f"service account {namespace}/{reference['name']} has been deleted")
        extra: dict[str, tuple[str, ...]] = {}
        if claims.get("jti"):
            extra[CREDENTIAL_ID_EXTRA] = (f"JTI={claims['jti']}",)
        pod_bound = "pod" in private
        for resource, claim, namespaced in _BINDABLE.values():
            bound = private.get(claim)
            if not bound:
                continue
            # The node of a pod-bound token is information, not a binding.
            if not (claim == "node" and pod_bound):
                self._check_bound(resource, claim, namespace if namespaced else "", bound, now)
            if claim != "secret":
                extra[f"{_EXTRA}{claim}-name"] = (bound.get("name", ""),)
                if bound.get("uid"):
                    extra[f"{_EXTRA}{claim}-uid"] = (bound["uid"],)
        user = service_account_user(namespace, reference["name"], reference.get("uid", ""))
        return User(user.name, user.uid, user.groups, extra)

    def _check_bound(
        self, resource: str, claim: str, namespace: str, bound: JsonObject, now: datetime
    ) -> None:
        target = self.reader.get("", resource, namespace, bound.get("name", ""))
        if target is None or _deleted(target, now):
            raise TokenRefused("service account token has been invalidated")
        uid = target["metadata"].get("uid", "")
        if uid != bound.get("uid", ""):
            raise TokenRefused(
                f"{claim} UID ({uid}) does not match service account {claim} ref claim ({bound.get('uid', '')})"
            )


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """Return the name of a public key: a hash of its bytes, as published in the key set."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    return jwt.utils.base64url_encode(digest.finalize()).decode()


def _check_lifetime(seconds: Any) -> None:
    problem = ""
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < SHORTEST:
        problem = "may not specify a duration less than 10 minutes"
    elif seconds > LONGEST:
        problem = "may not specify a duration larger than 2^32 seconds"
    if problem:
        complaint = invalid_field("spec.expirationSeconds", seconds, problem)
        raise invalid(AUTHENTICATION, "TokenRequest", "", [complaint])


def _deleted(target: JsonObject, now: datetime) -> bool:
    stamp = target["metadata"].get("deletionTimestamp")
    if not stamp:
        return False
    return parse_time(stamp) < now - LEEWAY
