"""Which requests are recorded, and how much of them: an audit.k8s.io/v1 Policy.

The first rule that matches a request decides; what no rule matches is not recorded. Rules match as kube-apiserver's:
every list that is not empty must contain the request's value; a rule with `namespaces` or `resources` is about
objects, one with `nonResourceURLs` about other paths, one with neither about both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_yaml
from dray.server.requests import User

API_VERSION = "audit.k8s.io/v1"
NONE, METADATA, REQUEST, REQUEST_RESPONSE = range(4)  # each records more than the one before
LEVELS = {"None": NONE, "Metadata": METADATA, "Request": REQUEST, "RequestResponse": REQUEST_RESPONSE}
LEVEL_NAMES = tuple(LEVELS)
RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC = "ResponseStarted", "ResponseComplete", "Panic"
STAGES = ("RequestReceived", RESPONSE_STARTED, RESPONSE_COMPLETE, PANIC)  # the first is never written
MAX_RULES = 1_000
_RULE_MEMBERS = {
    "level", "users", "userGroups", "verbs", "resources", "namespaces", "nonResourceURLs", "omitStages", "omitManagedFields",
}  # fmt: skip
_RESOURCE_MEMBERS = {"group", "resources", "resourceNames"}

# What is recorded when no policy is given: writes, running commands in pods, and reading secrets; not the heartbeats.
DEFAULT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  resources:
  - {group: coordination.k8s.io, resources: [leases]}
  - {group: "", resources: [events, nodes/status]}
  - {group: events.k8s.io}
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  resources:
  - {group: "", resources: [secrets, pods/exec, pods/attach, pods/portforward, pods/proxy, nodes/proxy]}
"""


class PolicyError(ValueError):
    """A policy that cannot be used; the message says where and why."""


class RequestFacts(NamedTuple):
    """What a request asks for, as rules look at it. A tuple, because one is made for each request."""

    user: User
    verb: str
    is_resource: bool
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How much of a request is recorded."""

    level: int = NONE
    omitted_stages: frozenset[str] = frozenset()
    omits_managed_fields: bool = False


@dataclass(frozen=True, slots=True)
class _Resources:
    group: str
    resources: tuple[str, ...]  # empty means: all
    names: tuple[str, ...]  # empty means: all

    def matches(self, facts: RequestFacts) -> bool:
        if self.group != facts.group:
            return False
        if not self.resources:
            return True
        if self.names and facts.name not in self.names:
            return False
        whole = f"{facts.resource}/{facts.subresource}" if facts.subresource else facts.resource
        return any(
            pattern in (whole, "*")
            or (bool(facts.subresource) and pattern == f"*/{facts.subresource}")
            or pattern == f"{facts.resource}/*"
            for pattern in self.resources
        )


@dataclass(frozen=True, slots=True)
class _Rule:
    verdict: Verdict
    users: frozenset[str]
    groups: frozenset[str]
    verbs: frozenset[str]
    namespaces: frozenset[str]
    resources: tuple[_Resources, ...]
    urls: tuple[str, ...]

    def matches(self, facts: RequestFacts) -> bool:
        if self.users and facts.user.name not in self.users:
            return False
        if self.groups and self.groups.isdisjoint(facts.user.groups):
            return False
        if self.verbs and facts.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            if not facts.is_resource or (self.namespaces and facts.namespace not in self.namespaces):
                return False
            return not self.resources or any(each.matches(facts) for each in self.resources)
        if self.urls:
            return not facts.is_resource and any(_url_matches(url, facts.path) for url in self.urls)
        return True


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """The rules, in order."""

    rules: tuple[_Rule, ...]

    def judge(self, facts: RequestFacts) -> Verdict:
        """Return how much of a request is recorded."""
        for rule in self.rules:
            if rule.matches(facts):
                return rule.verdict
        return _NOT_RECORDED


_NOT_RECORDED = Verdict()


def parse_policy(text: bytes | str) -> AuditPolicy:
    """Read a policy in YAML or JSON; raises PolicyError."""
    try:
        document = load_yaml(text)
    except ParseError as problem:
        raise PolicyError(str(problem)) from problem
    if not isinstance(document, dict):
        raise PolicyError("expected an object of kind Policy")
    found = (document.get("apiVersion"), document.get("kind"))
    if found != (API_VERSION, "Policy"):
        raise PolicyError(f"expected apiVersion {API_VERSION} and kind Policy, not {found[0]} and {found[1]}")
    _known(document, {"apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"}, "policy")
    rules = document.get("rules")
    if not isinstance(rules, list) or not 0 < len(rules) <= MAX_RULES:
        raise PolicyError(f"rules: expected a list of 1 to {MAX_RULES} rules")
    stages = _stages(document, "policy")
    omits = _flag(document, "omitManagedFields", False, "policy")
    return AuditPolicy(tuple(_rule(rule, f"rules[{at}]", stages, omits) for at, rule in enumerate(rules)))


def _rule(rule: Any, where: str, stages: frozenset[str], omits: bool) -> _Rule:
    if not isinstance(rule, dict):
        raise PolicyError(f"{where}: expected an object")
    _known(rule, _RULE_MEMBERS, where)
    level = rule.get("level")
    if not isinstance(level, str) or level not in LEVELS:
        raise PolicyError(f"{where}.level: {level!r} is not one of {', '.join(LEVELS)}")
    urls = _texts(rule, "nonResourceURLs", where)
    for url in urls:
        if url != "*" and (not url.startswith("/") or "*" in url[:-1]):
            raise PolicyError(
                f"{where}.nonResourceURLs: {url!r} must begin with / and have * only at its end"
            )
    resources = rule.get("resources") or []
    if not isinstance(resources, list):
        raise PolicyError(f"{where}.resources: expected a list")
    if urls and (resources or rule.get("namespaces")):
        raise PolicyError(f"{where}: a rule is about objects or about nonResourceURLs, not about both")
    verdict = Verdict(
        LEVELS[level], stages | _stages(rule, where), _flag(rule, "omitManagedFields", omits, where)
    )
    return _Rule(
        verdict,
        frozenset(_texts(rule, "users", where)),
        frozenset(_texts(rule, "userGroups", where)),
        frozenset(_texts(rule, "verbs", where)),
        frozenset(_texts(rule, "namespaces", where)),
        tuple(_resources(each, f"{where}.resources[{at}]") for at, each in enumerate(resources)),
        tuple(urls),
    )


def _resources(value: Any, where: str) -> _Resources:
    if not isinstance(value, dict):
        raise PolicyError(f"{where}: expected an object with group and resources")
    _known(value, _RESOURCE_MEMBERS, where)
    group = value.get("group") or ""
    if not isinstance(group, str) or "/" in group:
        raise PolicyError(f"{where}.group: {group!r} is not the name of a group (without its version)")
    resources, names = _texts(value, "resources", where), _texts(value, "resourceNames", where)
    if names and not resources:
        raise PolicyError(f"{where}.resourceNames: needs resources")
    return _Resources(group, tuple(resources), tuple(names))


def _known(value: Mapping[str, Any], names: set[str], where: str) -> None:
    unknown = sorted(set(value) - names)
    if unknown:
        raise PolicyError(f"{where}: unknown field {unknown[0]!r}; known: {', '.join(sorted(names))}")


def _texts(value: JsonObject, name: str, where: str) -> list[str]:
    found = value.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise PolicyError(f"{where}.{name}: expected a list of texts")
    return found


def _stages(value: JsonObject, where: str) -> frozenset[str]:
    stages = _texts(value, "omitStages", where)
    for stage in stages:
        if stage not in STAGES:
            raise PolicyError(f"{where}.omitStages: {stage!r} is not one of {', '.join(STAGES)}")
    return frozenset(stages)


def _flag(value: JsonObject, name: str, default: bool, where: str) -> bool:
    found = value.get(name)
    if found is not None and not isinstance(found, bool):
        raise PolicyError(f"{where}.{name}: expected true or false")
    return default if found is None else found


def _url_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))
