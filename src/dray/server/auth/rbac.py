"""Role-based access control: which rules apply to a user, and whether one allows a request.

Roles hold rules, bindings give roles to subjects. A request is allowed when some
rule of some role bound to the user, to one of its groups, or to its service
account matches it, for the whole cluster or for the namespace of the request.

Theory of operation: `RoleIndex` is a picture of all roles and bindings, made from
a `Reader` in one go: bindings are filed under their subjects, so a question looks
at a handful of rules. A change of any rbac object makes a new picture (they are
rare, and what a binding or role says is read when it matters, because one may have 20,000 subjects or rules); answers between two changes are remembered by `authorization.Authorizer`.

Aggregated cluster roles gather the rules of the roles their selectors match. This
is done here, on reading, so that an aggregated role is complete at once, whether
or not a controller also writes the gathered rules down.

Escalation: whoever writes a role must hold every right in it (or the verb
`escalate`), whoever binds one must hold its rights (or the verb `bind`).
`missing_rights` tells what is lacking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC
from dray.api.label_selectors import matches_label_object
from dray.server.requests import Reader, User

SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
_LISTS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")


_NOTHING: frozenset[str] = frozenset()


class Rule(NamedTuple):  # made in thousands: a frozen dataclass takes twice the time
    """What may be done to what; the lists of an rbac PolicyRule as sets."""

    verbs: frozenset[str]
    groups: frozenset[str] = _NOTHING
    resources: frozenset[str] = _NOTHING  # plural, plural/subresource, */subresource or *
    names: frozenset[str] = _NOTHING  # empty means: any
    paths: frozenset[str] = _NOTHING  # non-resource URLs, a trailing * matches the rest

    @classmethod
    def parse(cls, policy_rule: Mapping[str, Any]) -> Rule:
        """Read a PolicyRule object."""
        lists = [policy_rule.get(name) for name in _LISTS]
        return cls(*[frozenset(values) if values else _NOTHING for values in lists])

    def allows(self, verb: str, group: str, resource: str, subresource: str, name: str) -> bool:
        """Return whether the rule covers a request on a resource."""
        if not (verb in self.verbs or "*" in self.verbs):
            return False
        if not (group in self.groups or "*" in self.groups):
            return False
        combined = f"{resource}/{subresource}" if subresource else resource
        if not (
            combined in self.resources
            or "*" in self.resources
            or (subresource and f"*/{subresource}" in self.resources)
        ):
            return False
        return not self.names or name in self.names

    def allows_path(self, verb: str, path: str) -> bool:
        """Return whether the rule covers a request on a URL that is not a resource."""
        if not (verb in self.verbs or "*" in self.verbs):
            return False
        return any(path_covers(own, path) for own in self.paths)

    def covers(self, atom: Rule) -> bool:
        """Return whether the rule grants a rule of one verb, one resource, at most one name."""
        if not ("*" in self.verbs or atom.verbs <= self.verbs):
            return False
        if atom.paths:
            return all(any(path_covers(own, path) for own in self.paths) for path in atom.paths)
        if not ("*" in self.groups or atom.groups <= self.groups):
            return False
        if not all(self._covers_resource(resource) for resource in atom.resources):
            return False
        return not self.names or (bool(atom.names) and atom.names <= self.names)

    def _covers_resource(self, resource: str) -> bool:
        if "*" in self.resources or resource in self.resources:
            return True
        _, slash, subresource = resource.partition("/")
        return bool(slash) and f"*/{subresource}" in self.resources

    def atoms(self) -> Iterator[Rule]:
        """Yield the rule in pieces of one verb on one resource (and name) or path."""
        for verb in sorted(self.verbs):
            for group in sorted(self.groups):
                for resource in sorted(self.resources):
                    # A name may be empty; no names at all means every name.
                    for names in [frozenset({name}) for name in sorted(self.names)] or [frozenset[str]()]:
                        yield Rule(frozenset({verb}), frozenset({group}), frozenset({resource}), names)
            for path in sorted(self.paths):
                yield Rule(frozenset({verb}), paths=frozenset({path}))


def path_covers(own: str, path: str) -> bool:
    """Return whether a URL pattern (a trailing * matches the rest) covers a path or pattern."""
    return own == path or (own.endswith("*") and path.startswith(own.rstrip("*")))


class RoleRules:
    """The rules of a role, read when somebody who holds it asks: one role may have 20,000."""

    __slots__ = ("_read", "_rules")

    def __init__(self, read: Callable[[], Iterable[Rule]]) -> None:
        self._read = read
        self._rules: tuple[Rule, ...] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules."""
        if self._rules is None:
            self._rules = tuple(self._read())
        return self._rules


@dataclass(frozen=True, slots=True)
class Bound:
    """What a binding gives to each of its subjects."""

    kind: str
    shown: str  # name, with the namespace if it has one
    namespace: str
    reference: Mapping[str, str]
    role: RoleRules | None  # None: it does not exist


@dataclass(frozen=True, slots=True)
class Grant:
    """A role that a binding gives to a subject."""

    bound: Bound
    subject: Mapping[str, str]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return what is granted."""
        return self.bound.role.rules if self.bound.role is not None else ()

    @property
    def source(self) -> str:
        """Return how a decision names it."""
        bound, reference = self.bound, self.bound.reference
        role = f'{reference.get("kind", "")} "{reference.get("name", "")}"'
        return f'{bound.kind} "{bound.shown}" of {role} to {_describe(self.subject, bound.namespace)}'

    @property
    def problem(self) -> str:
        """Return that the role does not exist, if so."""
        if self.bound.role is not None:
            return ""
        reference = self.bound.reference
        resource = "clusterrole" if reference.get("kind") == "ClusterRole" else "role"
        return f'{resource}.{RBAC} "{reference.get("name", "")}" not found'


@dataclass(slots=True)
class RoleIndex:
    """All roles and bindings of one moment, filed by subject."""

    # (namespace, "" for the cluster; kind of subject; name of subject) -> grants
    _grants: dict[tuple[str, str, str], list[tuple[Bound, Mapping[str, str]]]] = field(default_factory=dict)
    _cluster_roles: dict[str, RoleRules] = field(default_factory=dict)
    _roles: dict[tuple[str, str], RoleRules] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: Reader) -> RoleIndex:
        """Make the index of the current objects."""
        index = cls()
        index._read_roles(reader)
        for binding in reader.list(RBAC, "clusterrolebindings"):
            index._file(binding, "")
        for binding in reader.list(RBAC, "rolebindings"):
            index._file(binding, binding["metadata"].get("namespace", ""))
        return index

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield what a user has been given, cluster-wide first, then in the namespace."""
        for scope in ("", namespace) if namespace else ("",):
            for found in self._grants.get((scope, "User", user.name), ()):
                yield Grant(*found)
            for group in user.groups:
                for found in self._grants.get((scope, "Group", group), ()):
                    yield Grant(*found)

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """Return all rules that apply to a user in a namespace."""
        return [rule for grant in self.grants(user, namespace) for rule in grant.rules]

    def role_rules(self, role_reference: Mapping[str, str], namespace: str) -> tuple[Rule, ...] | None:
        """Return the rules of the role that a binding refers to, None when it does not exist."""
        role = self._role(role_reference, namespace)
        return role.rules if role is not None else None

    def _role(self, role_reference: Mapping[str, str], namespace: str) -> RoleRules | None:
        name = role_reference.get("name", "")
        if role_reference.get("kind") == "ClusterRole":
            return self._cluster_roles.get(name)
        return self._roles.get((namespace, name))

    def _read_roles(self, reader: Reader) -> None:
        cluster_roles = {role["metadata"]["name"]: role for role in reader.list(RBAC, "clusterroles")}
        for name in cluster_roles:
            self._cluster_roles[name] = RoleRules(partial(_gathered_rules, name, cluster_roles))
        for role in reader.list(RBAC, "roles"):
            key = (role["metadata"].get("namespace", ""), role["metadata"]["name"])
            self._roles[key] = RoleRules(partial(_rules_of, role))

    def _file(self, binding: JsonObject, namespace: str) -> None:
        reference = binding.get("roleRef") or {}
        name = binding["metadata"]["name"]
        kind = "RoleBinding" if namespace else "ClusterRoleBinding"
        shown = f"{name}/{namespace}" if namespace else name
        bound = Bound(kind, shown, namespace, reference, self._role(reference, namespace))
        for subject in binding.get("subjects") or ():
            key = _subject_key(subject, namespace)
            if key is not None:
                self._grants.setdefault((namespace, *key), []).append((bound, subject))


def missing_rights(held: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the pieces of the wanted rules that no held rule covers."""
    return [atom for rule in wanted for atom in rule.atoms() if not any(own.covers(atom) for own in held)]


def describe_missing(missing: Iterable[Rule]) -> list[str]:
    """Return lines as kube-apiserver prints rights that are not held, joined by verb."""
    verbs_by_target: dict[str, list[str]] = {}
    for atom in missing:
        parts = []
        if atom.groups:
            parts.append(f"APIGroups:{_go_strings(atom.groups)}")
        if atom.resources:
            parts.append(f"Resources:{_go_strings(atom.resources)}")
        if atom.names:
            parts.append(f"ResourceNames:{_go_strings(atom.names)}")
        if atom.paths:
            parts.append(f"NonResourceURLs:{_go_strings(atom.paths)}")
        verbs_by_target.setdefault(", ".join(parts), []).extend(sorted(atom.verbs))
    return sorted(f"{{{target}, Verbs:{_go_strings(verbs)}}}" for target, verbs in verbs_by_target.items())


def _go_strings(values: Iterable[str]) -> str:
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _subject_key(subject: Mapping[str, str], namespace: str) -> tuple[str, str] | None:
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind in ("User", "Group"):
        return kind, name
    if kind == "ServiceAccount":
        own_namespace = subject.get("namespace") or namespace
        if own_namespace:
            return "User", f"{SERVICE_ACCOUNT_PREFIX}{own_namespace}:{name}"
    return None


def _describe(subject: Mapping[str, str], namespace: str) -> str:
    name = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        name = f"{name}/{subject.get('namespace') or namespace}"
    return f'{subject.get("kind", "")} "{name}"'


def gathered_from(role: JsonObject, cluster_roles: Mapping[str, JsonObject]) -> list[str]:
    """Return the names of the cluster roles that an aggregated role gathers, sorted."""
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    own = role["metadata"]["name"]
    return sorted(
        name
        for name, other in cluster_roles.items()
        if name != own
        and any(matches_label_object(selector, other["metadata"].get("labels")) for selector in selectors)
    )


def _rules_of(role: JsonObject) -> list[Rule]:
    return [Rule.parse(rule) for rule in role.get("rules") or ()]


def _gathered_rules(name: str, cluster_roles: Mapping[str, JsonObject]) -> list[Rule]:
    if not cluster_roles[name].get("aggregationRule"):
        return _rules_of(cluster_roles[name])
    rules: dict[Rule, None] = {}
    waiting, seen = [name], {name}
    while waiting:
        role = cluster_roles[waiting.pop()]
        rules.update(dict.fromkeys(Rule.parse(rule) for rule in role.get("rules") or ()))
        for other in gathered_from(role, cluster_roles):
            if other not in seen:  # roles may gather each other in circles
                seen.add(other)
                waiting.append(other)
    return list(rules)
