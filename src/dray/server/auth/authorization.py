"""May this user do this? The superusers' group, then the node authoriser, then RBAC.

The order and the words are kube-apiserver's with `--authorization-mode=Node,RBAC`:
members of `system:masters` may do everything; nodes are asked about first by their
own rules; otherwise some RBAC rule must allow the request. A refusal names the
user, the verb, the resource and the place, and says nothing about whether the
object exists.

Theory of operation: answers of RBAC are remembered per question and forgotten as
soon as any role or binding changes, so the usual question costs one dictionary
access. `observe` must be called for every committed write, in order, before the
write is acknowledged; without it a revoked right would live on.

Status of claims is written by several parties, and the path alone cannot tell
them apart. `check_claim_status` asks for the synthetic subresources
`resourceclaims/binding` (allocation, reservation) and `resourceclaims/driver`
(the part of one driver), as Kubernetes v1.37 does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dray.api.caching import BoundedCache
from dray.api.json_types import JsonObject
from dray.api.kinds import RBAC
from dray.api.validation.fields import FieldError
from dray.api.validation.fields import forbidden as forbidden_field
from dray.api.well_known import NODE_NAME_EXTRA
from dray.server.auth.node_authorizer import NodeAuthorizer, node_name_of
from dray.server.auth.rbac import SERVICE_ACCOUNT_PREFIX, RoleIndex, Rule, describe_missing, missing_rights
from dray.server.requests import ApiError, Reader, User, forbidden, not_found

__all__ = ["Attributes", "Authorizer", "Decision"]

MASTERS_GROUP = "system:masters"
# Whoever asks, whatever roles say: probes must not depend on an object that somebody can delete.
# kube-apiserver's default of --authorization-always-allow-paths.
OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
REMEMBERED_ANSWERS = 20_000
# Longer questions are answered but not remembered: strangers choose paths and names.
LONGEST_REMEMBERED = 512  # characters
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class Attributes(NamedTuple):
    """What a request asks, as authorisation sees it."""

    user: User
    verb: str  # API verb; for paths the HTTP method in lower case
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""  # set for requests that are not about resources
    version: str = "*"
    field_selector: tuple[tuple[str, str, str], ...] = ()  # (field, "=" or "!=", value), joined by AND

    def selects_field(self, name: str, value: str) -> bool:
        """Return whether the field selector pins a field to a value."""
        return any(
            field == name and operator in ("=", "==") and wanted == value
            for field, operator, wanted in self.field_selector
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer, with its reason where there is one."""

    allowed: bool
    reason: str = ""


_YES = Decision(True)


@dataclass(slots=True)
class Authorizer:
    """Decide requests against the current roles, bindings and pods."""

    reader: Reader
    allow_everything: bool = False  # --authorization-mode=AlwaysAllow
    _nodes: NodeAuthorizer = field(init=False)
    _roles: RoleIndex | None = field(default=None, init=False)
    _answers: BoundedCache[tuple[Any, ...], Decision] = field(
        default_factory=lambda: BoundedCache(REMEMBERED_ANSWERS), init=False
    )

    def __post_init__(self) -> None:
        self._nodes = NodeAuthorizer(self.reader)

    def authorize(self, attributes: Attributes) -> Decision:
        """Return whether the request is allowed and, if there is one, the reason."""
        user = attributes.user
        if self.allow_everything or MASTERS_GROUP in user.groups or attributes.path in OPEN_PATHS:
            return _YES
        reasons = []
        node = node_name_of(user)
        if node is not None:
            verdict = self._nodes.authorize(node, attributes)
            if verdict.allowed:
                return _YES
            if verdict.reason:
                reasons.append(f"node: {verdict.reason}")
        decision = self._by_roles(attributes)
        if decision.allowed:
            return decision
        if decision.reason:
            reasons.append(f"rbac: {decision.reason}")
        # Refusals name the authoriser; nobody else could tell which of them gave the reason.
        return Decision(False, "\n".join(reasons))

    def check(self, attributes: Attributes) -> None:
        """Raise the 403 error unless the request is allowed."""
        decision = self.authorize(attributes)
        if not decision.allowed:
            raise refusal(attributes, decision.reason)

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Follow a committed write: `new` is what was written, or None and `old` is what was deleted."""
        if group == RBAC:
            self._roles = None
            self._answers.clear()
        else:
            self._nodes.observe(group, resource, old, new)

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
        """Return the RBAC rules that apply to a user in a namespace."""
        return self._index().rules_for(user, namespace)

    def check_escalation(
        self, user: User, resource: str, namespace: str, new: JsonObject, old: JsonObject | None
    ) -> None:
        """Raise the 403 error when a written role or binding would grant rights that its writer lacks."""
        if (
            self.allow_everything
            or MASTERS_GROUP in user.groups
            or (old is not None and _same_grants(new, old))
        ):
            return
        name = (new.get("metadata") or {}).get("name", "")
        if resource in ("roles", "clusterroles"):
            asked = Attributes(
                user, "escalate", RBAC, resource, namespace=namespace, name=name if old else ""
            )
            if self.authorize(asked).allowed:
                return
            self._check_held(
                user, resource, namespace, name, [Rule.parse(rule) for rule in new.get("rules") or ()]
            )
            if _aggregates(new) or (old is not None and _aggregates(old)):
                held = self.rules_for(user, namespace)
                if missing_rights(held, _FULL_AUTHORITY):
                    why = "must have cluster-admin privileges to use the aggregationRule"
                    raise forbidden(RBAC, resource, name, why)
        elif resource in ("rolebindings", "clusterrolebindings"):
            self._check_binding(user, resource, namespace, name, new.get("roleRef") or {})

    def check_claim_status(
        self, attributes: Attributes, new: Mapping[str, Any], old: Mapping[str, Any]
    ) -> list[FieldError]:
        """Return what the writer of a claim's status may not change; empty means: all allowed.

        `attributes` are those of the status request; `new` and `old` are the two statuses.
        """
        complaints: list[FieldError] = []
        if any((new.get(part) or None) != (old.get(part) or None) for part in ("allocation", "reservedFor")):
            asked = attributes._replace(subresource="binding", namespace="", name="")
            decision = self.authorize(asked)
            if not decision.allowed:
                complaints.append(
                    forbidden_field(
                        "status.allocation",
                        'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", '
                        f'verb="{attributes.verb}" permission: {refusal(asked, decision.reason).message}',
                    )
                )
        if not new.get("allocation"):
            return complaints  # the server itself drops the devices of a claim without allocation
        verbs = [f"arbitrary-node:{attributes.verb}"]
        if _acts_on_its_own_node(attributes.user, new.get("allocation")):
            verbs.insert(0, f"associated-node:{attributes.verb}")
        for driver in sorted(_changed_drivers(new.get("devices") or (), old.get("devices") or ())):
            questions = [attributes._replace(verb=verb, subresource="driver", name=driver) for verb in verbs]
            decisions = [self.authorize(question) for question in questions]
            if not any(decision.allowed for decision in decisions):
                why = refusal(questions[0], decisions[0].reason).message
                complaints.append(
                    forbidden_field(
                        "status.devices",
                        'changing status.devices requires resource="resourceclaims/driver", '
                        f'verb="[{" ".join(verbs)}]" permission: {why}',
                    )
                )
        return complaints

    def _by_roles(self, attributes: Attributes) -> Decision:
        user = attributes.user
        question: tuple[str | tuple[str, ...], ...] = (
            user.name,
            user.groups,
            attributes.verb,
            attributes.group,
            attributes.resource,
            attributes.subresource,
            attributes.namespace,
            attributes.name,
            attributes.path,
        )
        answer = self._answers.get(question)
        if answer is None:
            answer = self._evaluate(attributes)
            if sum(map(len, question)) <= LONGEST_REMEMBERED:
                self._answers.add(question, answer)
        return answer

    def _evaluate(self, asked: Attributes) -> Decision:
        problems: list[str] = []
        for grant in self._index().grants(asked.user, asked.namespace):
            if grant.problem:
                problems.append(grant.problem)
            for rule in grant.rules:
                allowed = (
                    rule.allows_path(asked.verb, asked.path)
                    if asked.path
                    else rule.allows(asked.verb, asked.group, asked.resource, asked.subresource, asked.name)
                )
                if allowed:
                    return Decision(True, f"RBAC: allowed by {grant.source}")
        unique = list(dict.fromkeys(problems))
        if not unique:
            return Decision(False)
        return Decision(False, f"RBAC: {unique[0] if len(unique) == 1 else '[' + ', '.join(unique) + ']'}")

    def _index(self) -> RoleIndex:
        if self._roles is None:
            self._roles = RoleIndex.read(self.reader)
        return self._roles

    def _check_binding(
        self, user: User, resource: str, namespace: str, name: str, reference: Mapping[str, str]
    ) -> None:
        target = "clusterroles" if reference.get("kind") == "ClusterRole" else "roles"
        asked = Attributes(user, "bind", RBAC, target, namespace=namespace, name=reference.get("name", ""))
        if self.authorize(asked).allowed:
            return
        rules = self._index().role_rules(reference, namespace)
        if rules is None:
            # Upstream names the binding's resource together with the role's name; tools have seen it so.
            raise not_found(RBAC, resource, reference.get("name", ""))
        self._check_held(user, resource, namespace, name, rules)

    def _check_held(
        self, user: User, resource: str, namespace: str, name: str, rules: Sequence[Rule]
    ) -> None:
        missing = missing_rights(self.rules_for(user, namespace), rules)
        if missing:
            groups = "[" + " ".join(f'"{group}"' for group in user.groups) + "]"
            lines = "\n".join(describe_missing(missing))
            why = f'user "{user.name}" (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{lines}'
            raise forbidden(RBAC, resource, name, why)


def refusal(attributes: Attributes, reason: str = "") -> ApiError:
    """Return the 403 error in kube-apiserver's words."""
    who = f'User "{attributes.user.name}" cannot {attributes.verb}'
    if attributes.path:
        text = f'{who} path "{attributes.path}"'
    else:
        resource = attributes.resource
        if attributes.subresource:
            resource += f"/{attributes.subresource}"
        text = f'{who} resource "{resource}" in API group "{attributes.group}"'
        if attributes.namespace:
            text += f' in the namespace "{attributes.namespace}"'
        else:
            text += " at the cluster scope"
    text = text.translate(_HTML)
    why = f"{text}: {reason}" if reason else text
    error = forbidden(attributes.group, attributes.resource, attributes.name, why)
    error.headers.append(("X-Content-Type-Options", "nosniff"))
    if attributes.path:
        # Without a resource the message starts with the bare word, and there are no details.
        error.message = f"forbidden: {why}"
    return error


_FULL_AUTHORITY = (
    Rule(frozenset({"*"}), frozenset({"*"}), frozenset({"*"})),
    Rule(frozenset({"*"}), paths=frozenset({"*"})),
)


def _aggregates(role: JsonObject) -> bool:
    return bool((role.get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _same_grants(new: JsonObject, old: JsonObject) -> bool:
    parts = ("rules", "aggregationRule", "subjects", "roleRef")
    if any((new.get(part) or None) != (old.get(part) or None) for part in parts):
        return False
    # Labels decide what aggregated roles gather.
    labels = ((thing.get("metadata") or {}).get("labels") or None for thing in (new, old))
    return next(labels) == next(labels)


def _acts_on_its_own_node(user: User, allocation: Mapping[str, Any] | None) -> bool:
    if not user.name.startswith(SERVICE_ACCOUNT_PREFIX):
        return False
    nodes = user.extra.get(NODE_NAME_EXTRA, ())
    return len(nodes) == 1 and bool(nodes[0]) and nodes[0] == _node_of(allocation)


def _node_of(allocation: Mapping[str, Any] | None) -> str:
    """Return the only node that an allocation is for, "" when it is for several."""
    terms: list[JsonObject] = ((allocation or {}).get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions"):
        return ""
    requirements: list[JsonObject] = terms[0].get("matchFields") or []
    if len(requirements) != 1:
        return ""
    values: list[str] = requirements[0].get("values") or []
    is_name = requirements[0].get("key") == "metadata.name" and requirements[0].get("operator") == "In"
    return values[0] if is_name and len(values) == 1 else ""


def _changed_drivers(new: Iterable[Mapping[str, Any]], old: Iterable[Mapping[str, Any]]) -> set[str]:
    before, after = ({_device_key(device): device for device in devices} for devices in (old, new))
    return {
        (after.get(key) or before[key]).get("driver", "")
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }


def _device_key(device: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (
        device.get("driver", ""),
        device.get("pool", ""),
        device.get("device", ""),
        device.get("shareID") or "",
    )
