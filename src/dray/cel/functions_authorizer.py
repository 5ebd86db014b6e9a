"""The variable `authorizer`: questions about rights, asked from within an expression.

`authorizer.group("apps").resource("deployments").check("create").allowed()` builds a
question step by step. Who answers it is the caller's business: an `Authorizer` carries
the function that decides, so this package stays free of rights and users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dray.cel.errors import Fault


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; `path` is set for requests that are not about resources."""

    verb: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    service_account: tuple[str, str] | None = None  # namespace, name; None: the user of the request
    field_selector: str = ""
    label_selector: str = ""


Decide = Callable[[Question], tuple[bool, str]]  # allowed, reason


class Authorizer(dict[object, object]):
    """Where questions begin. `authorizer.requestResource` asks about the object of the request."""

    __slots__ = ("account", "decide")

    def __init__(self, decide: Decide, requested: Question, account: tuple[str, str] | None = None) -> None:
        super().__init__({"requestResource": ResourceCheck(decide, requested)})
        self.decide = decide
        self.account = account


@dataclass(frozen=True, slots=True)
class PathCheck:
    """A question about a path, without its verb."""

    decide: Decide
    question: Question


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """A question of which only the API group is known."""

    decide: Decide
    question: Question


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """A question about a resource, without its verb."""

    decide: Decide
    question: Question


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """The answer to a question."""

    allowed: bool
    reason: str


def _path(authorizer: Authorizer, path: str) -> PathCheck:
    if not path:
        raise Fault("path must not be empty")
    return PathCheck(authorizer.decide, Question(path=path, service_account=authorizer.account))


def _group(authorizer: Authorizer, group: str) -> GroupCheck:
    return GroupCheck(authorizer.decide, Question(group=group, service_account=authorizer.account))


def _service_account(authorizer: Authorizer, namespace: str, name: str) -> Authorizer:
    check = authorizer["requestResource"]
    assert isinstance(check, ResourceCheck)
    account = (namespace, name)
    return Authorizer(authorizer.decide, replace(check.question, service_account=account), account)


def _with(field: str) -> Callable[[ResourceCheck | GroupCheck, str], ResourceCheck]:
    def extend(check: ResourceCheck | GroupCheck, text: str) -> ResourceCheck:
        changes: dict[str, str] = {field: text}
        return ResourceCheck(check.decide, _changed(check.question, changes))

    return extend


def _changed(question: Question, changes: dict[str, str]) -> Question:
    return replace(question, **changes)  # type: ignore[arg-type]


def _check(check: PathCheck | ResourceCheck, verb: str) -> AccessDecision:
    allowed, reason = check.decide(replace(check.question, verb=verb))
    return AccessDecision(allowed, reason)


AUTHORIZER: dict[str, Callable[..., object]] = {
    "authorizer_path": _path,
    "authorizer_group": _group,
    "authorizer_serviceaccount": _service_account,
    "groupcheck_resource": _with("resource"),
    "resourcecheck_subresource": _with("subresource"),
    "resourcecheck_namespace": _with("namespace"),
    "resourcecheck_name": _with("name"),
    "authorizer_fieldselector": _with("field_selector"),
    "authorizer_labelselector": _with("label_selector"),
    "pathcheck_check": _check,
    "resourcecheck_check": _check,
    "decision_allowed": lambda decision: decision.allowed,
    "decision_reason": lambda decision: decision.reason,
    "decision_errored": lambda decision: False,
    "decision_error": lambda decision: "",
}
