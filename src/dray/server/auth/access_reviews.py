"""Questions about identity and rights, answered but never stored.

`POST` of a review object returns the same object with a status: who am I
(SelfSubjectReview), whose token is this (TokenReview), may I or may they do that
(the SubjectAccessReview family), what may I do (SelfSubjectRulesReview).
"""

from __future__ import annotations

from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import AUTHENTICATION, AUTHORIZATION
from dray.api.validation.fields import FieldError
from dray.api.validation.fields import invalid as invalid_field
from dray.server.auth.authentication import Authenticator
from dray.server.auth.authorization import Attributes, Authorizer
from dray.server.auth.impersonation import impersonated
from dray.server.auth.node_authorizer import node_name_of
from dray.server.auth.rbac import Rule
from dray.server.auth.service_account_tokens import TokenRefused
from dray.server.requests import User, bad_request, invalid

__all__ = [
    "impersonated",
    "local_subject_access_review",
    "self_subject_access_review",
    "self_subject_review",
    "self_subject_rules_review",
    "subject_access_review",
    "token_review",
]

_AUTHENTICATION_V1 = f"{AUTHENTICATION}/v1"
_AUTHORIZATION_V1 = f"{AUTHORIZATION}/v1"
_ONE_OF = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


def self_subject_review(user: User, body: JsonObject, now: str) -> JsonObject:
    """Tell a user who it is."""
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": _AUTHENTICATION_V1,
        "metadata": {"creationTimestamp": now},
        "status": {"userInfo": user.info()},
    }


def token_review(authenticator: Authenticator, body: JsonObject) -> JsonObject:
    """Tell whose token it is, or why it is nobody's."""
    spec = body.get("spec") or {}
    token = spec.get("token") or ""
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    status: JsonObject = {"user": {}}
    try:
        wanted = tuple(spec.get("audiences") or authenticator.audiences)
        user, audiences = authenticator.by_token(token, wanted)
        status = {"authenticated": True, "user": user.info()}
        if audiences:
            status["audiences"] = list(audiences)
    except TokenRefused as refusal:
        status["error"] = (
            f"[{refusal}, invalid bearer token]" if str(refusal) != "invalid bearer token" else str(refusal)
        )
    return {
        "kind": "TokenReview",
        "apiVersion": _AUTHENTICATION_V1,
        "metadata": body.get("metadata") or {},
        "spec": spec,
        "status": status,
    }


def self_subject_access_review(authorizer: Authorizer, user: User, body: JsonObject) -> JsonObject:
    """Return whether the sender may do something."""
    spec = body.get("spec") or {}
    _refuse(_attribute_complaints(spec))
    return _reviewed("SelfSubjectAccessReview", body, authorizer, _attributes(user, spec))


def subject_access_review(authorizer: Authorizer, body: JsonObject) -> JsonObject:
    """Return whether somebody may do something."""
    spec = body.get("spec") or {}
    _refuse([*_attribute_complaints(spec), *_subject_complaints(spec)])
    return _reviewed("SubjectAccessReview", body, authorizer, _attributes(_subject(spec), spec))


def local_subject_access_review(authorizer: Authorizer, namespace: str, body: JsonObject) -> JsonObject:
    """Return whether somebody may do something in one namespace."""
    spec = body.get("spec") or {}
    complaints = [*_attribute_complaints(spec), *_subject_complaints(spec)]
    resource = spec.get("resourceAttributes")
    if resource is not None and resource.get("namespace", "") != namespace:
        path = "spec.resourceAttributes.namespace"
        complaints.append(invalid_field(path, resource.get("namespace", ""), "must match metadata.namespace"))
    if spec.get("nonResourceAttributes") is not None:
        path = "spec.nonResourceAttributes"
        complaints.append(
            invalid_field(path, spec["nonResourceAttributes"], "disallowed on this kind of request")
        )
    _refuse(complaints)
    return _reviewed("LocalSubjectAccessReview", body, authorizer, _attributes(_subject(spec), spec))


def self_subject_rules_review(authorizer: Authorizer, user: User, body: JsonObject) -> JsonObject:
    """Tell what the sender may do in a namespace (what `kubectl auth can-i --list` shows)."""
    namespace = (body.get("spec") or {}).get("namespace") or ""
    if not namespace:
        raise bad_request("no namespace on request")
    rules = authorizer.rules_for(user, namespace)
    if "system:masters" in user.groups:
        # Superusers are allowed before any rule is read; show that as the rules it amounts to.
        everything = frozenset({"*"})
        rules = [Rule(everything, everything, everything), Rule(everything, paths=everything), *rules]
    status: JsonObject = {
        "resourceRules": [_resource_rule(rule) for rule in dict.fromkeys(rules) if rule.resources],
        "nonResourceRules": [
            {"verbs": sorted(rule.verbs), "nonResourceURLs": sorted(rule.paths)}
            for rule in dict.fromkeys(rules)
            if rule.paths
        ],
        "incomplete": False,
    }
    if node_name_of(user) is not None:
        status |= {
            "incomplete": True,
            "evaluationError": "node authorizer does not support user rule resolution",
        }
    return {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": _AUTHORIZATION_V1,
        "metadata": {},
        "spec": {},
        "status": status,
    }


def _refuse(complaints: list[FieldError]) -> None:
    if complaints:
        # Upstream leaves the kind out here, and clients have seen it so for years.
        raise invalid(AUTHORIZATION, "", "", complaints)


def _attribute_complaints(spec: JsonObject) -> list[FieldError]:
    given = [spec.get("resourceAttributes") is not None, spec.get("nonResourceAttributes") is not None]
    if sum(given) == 1:
        return []
    return [invalid_field("spec", spec.get("nonResourceAttributes"), _ONE_OF)]


def _subject_complaints(spec: JsonObject) -> list[FieldError]:
    if spec.get("user") or spec.get("groups"):
        return []
    return [invalid_field("spec.user", "", "at least one of user or group must be specified")]


def _subject(spec: JsonObject) -> User:
    extra = {key: tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user") or "", spec.get("uid") or "", tuple(spec.get("groups") or ()), extra)


def _attributes(user: User, spec: JsonObject) -> Attributes:
    resource = spec.get("resourceAttributes")
    if resource is None:
        path = spec["nonResourceAttributes"]
        return Attributes(user, path.get("verb", ""), path=path.get("path") or "/")
    return Attributes(
        user,
        resource.get("verb", ""),
        resource.get("group", ""),
        resource.get("resource", ""),
        resource.get("subresource", ""),
        resource.get("namespace", ""),
        resource.get("name", ""),
        version=resource.get("version", "") or "*",
        field_selector=tuple(_field_requirements(resource.get("fieldSelector") or {})),
    )


def _field_requirements(selector: JsonObject) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for requirement in selector.get("requirements") or ():
        operator = {"In": "=", "NotIn": "!="}.get(requirement.get("operator", ""))
        values: list[Any] = requirement.get("values") or []
        # Requirements that are not understood are left out: that asks for more, never for less.
        if operator and len(values) == 1:
            found.append((requirement.get("key", ""), operator, values[0]))
    for term in (selector.get("rawSelector") or "").split(","):
        name, equals, value = term.partition("=")
        if equals and not name.endswith("!"):
            found.append((name.strip(), "=", value.lstrip("=").strip()))
    return found


def _reviewed(kind: str, body: JsonObject, authorizer: Authorizer, attributes: Attributes) -> JsonObject:
    decision = authorizer.authorize(attributes)
    status: JsonObject = {"allowed": decision.allowed}
    if decision.reason:
        status["reason"] = decision.reason
    return {
        "kind": kind,
        "apiVersion": _AUTHORIZATION_V1,
        "metadata": body.get("metadata") or {},
        "spec": body.get("spec") or {},
        "status": status,
    }


def _resource_rule(rule: Rule) -> JsonObject:
    shown: JsonObject = {
        "verbs": sorted(rule.verbs),
        "apiGroups": sorted(rule.groups),
        "resources": sorted(rule.resources),
    }
    if rule.names:
        shown["resourceNames"] = sorted(rule.names)
    return shown
