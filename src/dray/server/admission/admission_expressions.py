"""The CEL expressions of policies and match conditions: their variables, types and budgets.

`object` and `oldObject` may be anything (a policy matches many kinds), `request` and
`namespaceObject` have types, `authorizer` asks about rights, `params` is the object that a
binding names, and `variables` are computed when they are first used, once per evaluation.

Limits are kube-apiserver's: a million units for one expression, ten million for all of one
policy, 2.5 million for match conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from dray.api.json_types import JsonObject
from dray.cel import RUN_TIME_LIMIT, CompileError, CostLimitError, EvaluationError
from dray.cel.expressions import (
    BOOL,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    Authorizer,
    CelType,
    Environment,
    Expression,
    Failure,
    Meter,
    Question,
    compile_expression,
    environment_of,
    list_of,
    map_of,
    refuse_other_types,
)
from dray.server.admission.admission_request import AdmissionRequest
from dray.server.auth import Attributes, Decision
from dray.server.requests import User

Decide = Callable[[Attributes], Decision]
POLICY_BUDGET = 10_000_000
CONDITIONS_BUDGET = 2_500_000
OUT_OF_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"
RESULTS: dict[str, tuple[CelType, ...]] = {
    "condition": (BOOL,),
    "message": (STRING,),
    "annotation": (STRING, NULL),
    "variable": (),  # anything
}
_VARIABLES = CelType("struct", "kubernetes.variables")
_STRINGS = list_of(STRING)


def _struct(name: str) -> CelType:
    return CelType("struct", f"kubernetes.{name}")


_AUTHORIZER = _struct("authorization.Authorizer")
_STRUCTS: dict[str, dict[str, CelType]] = {
    "GroupVersionKind": {"group": STRING, "version": STRING, "kind": STRING},
    "GroupVersionResource": {"group": STRING, "version": STRING, "resource": STRING},
    "UserInfo": {
        "username": STRING,
        "uid": STRING,
        "groups": _STRINGS,
        "extra": map_of(STRING, _STRINGS),
    },
    "AdmissionRequest": {
        "kind": _struct("GroupVersionKind"),
        "resource": _struct("GroupVersionResource"),
        "subResource": STRING,
        "requestKind": _struct("GroupVersionKind"),
        "requestResource": _struct("GroupVersionResource"),
        "requestSubResource": STRING,
        "name": STRING,
        "namespace": STRING,
        "operation": STRING,
        "userInfo": _struct("UserInfo"),
        "dryRun": BOOL,
        "options": DYN,
    },
    "NamespaceSpec": {"finalizers": _STRINGS},
    "NamespaceCondition": {
        "status": STRING,
        "type": STRING,
        "lastTransitionTime": TIMESTAMP,
        "message": STRING,
        "reason": STRING,
    },
    "NamespaceStatus": {"conditions": list_of(_struct("NamespaceCondition")), "phase": STRING},
    "NamespaceMetadata": {
        "name": STRING,
        "generateName": STRING,
        "namespace": STRING,
        "labels": map_of(STRING, STRING),
        "annotations": map_of(STRING, STRING),
        "UID": STRING,
        "creationTimestamp": TIMESTAMP,
        "deletionGracePeriodSeconds": INT,
        "deletionTimestamp": TIMESTAMP,
        "generation": INT,
        "resourceVersion": STRING,
        "finalizers": _STRINGS,
    },
    "Namespace": {
        "metadata": _struct("NamespaceMetadata"),
        "spec": _struct("NamespaceSpec"),
        "status": _struct("NamespaceStatus"),
    },
    "authorization.Authorizer": {"requestResource": _struct("authorization.ResourceCheck")},
}


@cache
def _base(*, params: bool, authorizer: bool) -> dict[str, CelType]:
    variables = {
        "object": DYN,
        "oldObject": DYN,
        "request": _struct("AdmissionRequest"),
        "namespaceObject": _struct("Namespace"),
    }
    if params:
        variables["params"] = DYN
    if authorizer:
        variables["authorizer"] = _AUTHORIZER
    return variables


class Compiler:
    """Compiles the expressions of one policy or webhook; variables are added in their order."""

    def __init__(self, *, params: bool = False, has_variables: bool = False) -> None:
        self._params = params
        self._variables: dict[str, CelType] = {}
        self._has_variables = has_variables

    def compile(self, text: str, purpose: str, *, authorizer: bool = True) -> Expression:
        """Compile an expression for a purpose (a key of RESULTS); raise CompileError."""
        expression = compile_expression(text, self._environment(authorizer=authorizer))
        allowed = RESULTS[purpose]
        if allowed:
            refuse_other_types(expression, allowed)
        return expression

    def add_variable(self, name: str, text: str) -> Expression:
        """Compile a variable; later expressions know it as `variables.NAME`."""
        try:
            expression = self.compile(text, "variable")
        except CompileError:
            self._variables[name] = DYN  # one complaint about it is enough
            raise
        self._variables[name] = expression.output_type
        return expression

    def _environment(self, *, authorizer: bool) -> Environment:
        variables = dict(_base(params=self._params, authorizer=authorizer))
        structs = {f"kubernetes.{name}": fields for name, fields in _STRUCTS.items()}
        if self._has_variables:
            variables["variables"] = _VARIABLES
            structs[_VARIABLES.name] = self._variables
        return environment_of(variables, structs)


class ExpressionChecker:
    """Compiles the expressions of a policy or a configuration while it is validated."""

    def __init__(self, *, params: bool, has_variables: bool) -> None:
        self._compiler = Compiler(params=params, has_variables=has_variables)

    def problem(self, text: str, purpose: str, *, authorizer: bool = True) -> str:
        """Return why an expression cannot serve a purpose, or ""."""
        try:
            self._compiler.compile(text, purpose, authorizer=authorizer)
        except CompileError as problem:
            return str(problem)
        return ""

    def add_variable(self, name: str, text: str) -> str:
        """Return why a variable does not compile, or ""; later expressions know it."""
        try:
            self._compiler.add_variable(name, text)
        except CompileError as problem:
            return str(problem)
        return ""


class _LazyVariables(dict[object, object]):
    """`variables`: every one is evaluated when it is first asked for, at a cost of its own."""

    def __init__(self, expressions: Mapping[str, Expression], values: dict[str, object]) -> None:
        super().__init__()
        self.cost = 0
        self._expressions = expressions
        self._values = values

    def get(self, key: object, default: object = None) -> object:
        """Return the value of a variable; a Failure if it cannot be evaluated."""
        if key not in self:
            expression = self._expressions.get(key) if isinstance(key, str) else None
            if expression is None:
                return default
            meter = Meter(RUN_TIME_LIMIT)
            try:
                # Not kept as one map with itself in it: such a cycle would hold the object until it is collected.
                self[key] = expression.run({**self._values, "variables": self}, meter)
            except EvaluationError as problem:
                self[key] = Failure(f'composited variable "{key}" fails to evaluate: {problem}')
            self.cost += meter.cost
        return self[key]


class OutOfBudget(Exception):
    """The expressions of one evaluation cost more than they may together."""


@dataclass(slots=True)
class Evaluation:
    """Evaluates expressions about one request within one budget."""

    values: dict[str, object]
    budget: int
    variables: Mapping[str, Expression] = field(default_factory=dict)
    _lazy: _LazyVariables | None = None

    def __post_init__(self) -> None:
        if self.variables:
            self._lazy = _LazyVariables(self.variables, self.values)
            self.values = {**self.values, "variables": self._lazy}

    def run(self, expression: Expression) -> object:
        """Return the value; raise EvaluationError, or OutOfBudget."""
        meter = Meter(RUN_TIME_LIMIT)
        problem: EvaluationError | None = None
        value: object = None
        try:
            value = expression.run(self.values, meter)
        except EvaluationError as failure:
            problem = failure
        if isinstance(problem, CostLimitError):
            raise OutOfBudget(OUT_OF_BUDGET)
        cost = meter.cost
        if self._lazy is not None:
            cost += self._lazy.cost
            self._lazy.cost = 0
        self.budget -= cost
        if self.budget < 0:
            raise OutOfBudget(OUT_OF_BUDGET)
        if problem is not None:
            raise EvaluationError(f"expression '{expression.text}' resulted in error: {problem}")
        return value


def values_of(
    request: AdmissionRequest,
    version: str,
    decide: Decide,
    namespace: JsonObject | None = None,
    params: JsonObject | None = None,
) -> dict[str, object]:
    """Return the variables of expressions about a request."""
    return {
        "object": request.object_in(version),
        "oldObject": request.old_object_in(version),
        "request": request.review(version),
        "namespaceObject": None if namespace is None else _namespace(namespace),
        "params": params,
        "authorizer": _authorizer(request, decide),
    }


def _namespace(namespace: JsonObject) -> JsonObject:
    """Return what expressions may know of a namespace."""
    known = _STRUCTS["NamespaceMetadata"]
    metadata = {name: value for name, value in namespace["metadata"].items() if name in known}
    return {
        "metadata": {**metadata, "UID": namespace["metadata"].get("uid", "")},
        "spec": namespace.get("spec") or {},
        "status": namespace.get("status") or {},
    }


def _authorizer(request: AdmissionRequest, decide: Decide) -> Authorizer:
    route = request.call.route

    def answer(question: Question) -> tuple[bool, str]:
        user = request.call.user
        if question.service_account is not None:
            namespace, name = question.service_account
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            user = User(f"system:serviceaccount:{namespace}:{name}", groups=groups)
        decision = decide(
            Attributes(
                user,
                question.verb,
                question.group,
                question.resource,
                question.subresource,
                question.namespace,
                question.name,
                question.path,
            )
        )
        return decision.allowed, decision.reason

    requested = Question(
        group=route.kind.group,
        resource=route.kind.plural,
        subresource=route.subresource,
        namespace=request.namespace,
        name=request.name,
    )
    return Authorizer(answer, requested)


@dataclass(slots=True)
class Conditions:
    """The match conditions of a webhook or a policy, compiled once."""

    conditions: list[tuple[str, Expression | str]]  # name, and the expression or why it does not compile

    @classmethod
    def compile(cls, written: Sequence[JsonObject], *, params: bool = False) -> Conditions:
        """Compile conditions; those that were stored by another server may not compile."""
        compiler = Compiler(params=params)
        found: list[tuple[str, Expression | str]] = []
        for condition in written:
            expression: Expression | str
            try:
                expression = compiler.compile(condition["expression"].strip(), "condition")
            except CompileError as problem:
                expression = f"compilation error: {problem}"
            found.append((condition["name"], expression))
        return cls(found)

    def match(self, values: dict[str, object]) -> bool:
        """Return whether all conditions hold; raise EvaluationError if that cannot be said.

        One condition that is false decides, whatever the others are.
        """
        evaluation = Evaluation(values, CONDITIONS_BUDGET)
        problems: list[str] = []
        for _, expression in self.conditions:
            if isinstance(expression, str):
                problems.append(expression)
                continue
            try:
                if evaluation.run(expression) is False:
                    return False
            except EvaluationError as problem:
                problems.append(str(problem))
            except OutOfBudget as problem:
                raise EvaluationError(str(problem)) from None
        if problems:
            raise EvaluationError(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
        return True
