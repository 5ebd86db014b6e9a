"""ValidatingAdmissionPolicy: rules in CEL about any write, bound to what they are for.

A policy says what to check and a binding says where, with which parameters, and what a
failed check means (Deny, Warn, Audit). A policy without a binding does nothing. Policies
are compiled when they change; an expression that does not compile (stored by another
server) fails every request it concerns, unless `failurePolicy` is Ignore.

Answers are kube-apiserver's: the first denial is the error, with the reason that the
validation names (Invalid by default).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dray.api.json_types import JsonMapping, JsonObject
from dray.api.kinds import Kind, split_api_version
from dray.api.label_selectors import matches_label_object
from dray.cel import CompileError, EvaluationError
from dray.cel.expressions import Expression, type_name
from dray.server.admission.admission_expressions import (
    POLICY_BUDGET,
    Compiler,
    Conditions,
    Decide,
    Evaluation,
    OutOfBudget,
    values_of,
)
from dray.server.admission.admission_plugin import Kept
from dray.server.admission.admission_request import (
    AdmissionRequest,
    namespace_fits,
    object_fits,
    rule_version,
)
from dray.server.requests import LARGE, ApiError, Reader, compute, forbidden, not_found

LONGEST_MESSAGE = 5 * 1024
LONGEST_ANNOTATION = 10 * 1024
_CODES = {"Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413, "Unauthorized": 401}

FindKind = Callable[[str, str, str], Kind | None]  # group, version, kind


class ConfigurationError(Exception):
    """A policy or a binding cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Denial:
    """A check that failed; `is_error`: it could not be evaluated."""

    message: str
    reason: str = "Invalid"
    is_error: bool = False


@dataclass(slots=True)
class Policy:
    """A policy with its expressions compiled."""

    written: JsonObject
    conditions: Conditions | None = None
    variables: dict[str, Expression] = field(default_factory=dict)
    validations: list[tuple[JsonMapping, Expression, Expression | None]] = field(default_factory=list)
    annotations: list[tuple[str, Expression]] = field(default_factory=list)
    error: str = ""  # why it cannot be evaluated at all

    @property
    def name(self) -> str:
        """Return the policy's name."""
        return str(self.written["metadata"]["name"])

    @property
    def spec(self) -> JsonMapping:
        """Return what the policy says."""
        return self.written.get("spec") or {}

    @property
    def is_ignorable(self) -> bool:
        """Return whether a check that cannot be evaluated lets the request pass."""
        return bool(self.spec.get("failurePolicy") == "Ignore")

    @classmethod
    def compile(cls, written: JsonObject) -> Policy:
        """Compile a policy; what does not compile is noted in it."""
        policy = cls(written)
        spec = policy.spec
        params = spec.get("paramKind") is not None
        compiler = Compiler(params=params, has_variables=bool(spec.get("variables")))
        try:
            for variable in spec.get("variables") or ():
                name = variable["name"]
                policy.variables[name] = compiler.add_variable(name, variable["expression"])
            for validation in spec.get("validations") or ():
                text = (validation.get("messageExpression") or "").strip()
                message = compiler.compile(text, "message", authorizer=False) if text else None
                rule = compiler.compile(validation["expression"], "condition")
                policy.validations.append((validation, rule, message))
            for annotation in spec.get("auditAnnotations") or ():
                text = annotation["valueExpression"].strip()
                policy.annotations.append((annotation["key"], compiler.compile(text, "annotation")))
        except CompileError as problem:
            policy.error = f"compilation error: {problem}"
        if spec.get("matchConditions"):
            policy.conditions = Conditions.compile(spec["matchConditions"], params=params)
        return policy

    def judge(self, values: dict[str, object]) -> tuple[list[Denial], dict[str, str]]:
        """Return the checks that failed, and the annotations for the audit log."""
        if self.error:
            return self._errors(self.error), {}
        if self.conditions is not None:
            try:
                if not self.conditions.match(values):
                    return [], {}
            except EvaluationError as problem:
                return self._errors(str(problem)), {}
        try:
            denials = self._validate(Evaluation(values, POLICY_BUDGET, self.variables))
            annotations, problems = self._annotate(Evaluation(values, POLICY_BUDGET, self.variables))
        except OutOfBudget as problem:
            return self._errors(str(problem)), {}
        return denials + problems, annotations

    def _errors(self, message: str) -> list[Denial]:
        return [] if self.is_ignorable else [Denial(message, is_error=True)]

    def _validate(self, evaluation: Evaluation) -> list[Denial]:
        denials: list[Denial] = []
        for validation, expression, message in self.validations:
            try:
                if evaluation.run(expression) is True:
                    continue
            except EvaluationError as problem:
                denials += self._errors(str(problem))
                continue
            text = self._message(evaluation, validation, message)
            denials.append(Denial(text, validation.get("reason") or "Invalid"))
        return denials

    def _message(self, evaluation: Evaluation, validation: JsonMapping, message: Expression | None) -> str:
        if message is not None:
            try:
                value = evaluation.run(message)
            except EvaluationError:
                value = None
            text = value.strip() if isinstance(value, str) else ""
            if text and len(text) <= LONGEST_MESSAGE and "\n" not in text:
                return text
        written = (validation.get("message") or "").strip()
        return written or f"failed expression: {validation['expression'].strip()}"

    def _annotate(self, evaluation: Evaluation) -> tuple[dict[str, str], list[Denial]]:
        annotations: dict[str, str] = {}
        problems: list[Denial] = []
        for key, expression in self.annotations:
            try:
                value = evaluation.run(expression)
            except EvaluationError as problem:
                problems += self._errors(str(problem))
                continue
            if isinstance(value, str):
                if value.strip():
                    annotations[f"{self.name}/{key}"] = value.strip()[:LONGEST_ANNOTATION]
            elif value is not None:
                problems.append(
                    Denial(
                        f"valueExpression '{expression.text}' resulted in unsupported return type: "
                        f"{type_name(value)}. Return type must be either string or null.",
                        is_error=True,
                    )
                )
        return annotations, problems


@dataclass(frozen=True, slots=True)
class _Finding:
    policy: Policy
    binding: JsonMapping | None
    denial: Denial

    def text(self) -> str:
        """Return what the client reads."""
        bound = "" if self.binding is None else f" with binding '{self.binding['metadata']['name']}'"
        return f"ValidatingAdmissionPolicy '{self.policy.name}'{bound} denied request: {self.denial.message}"


class ValidatingPolicies:
    """Judges writes by the policies that are bound to them."""

    def __init__(
        self, reader: Reader, policies: Kept, bindings: Kept, find_kind: FindKind, decide: Decide
    ) -> None:
        self._reader = reader
        self._policies = policies
        self._bindings = bindings
        self._find_kind = find_kind
        self._decide = decide
        self._compiled: tuple[tuple[JsonObject, ...], list[Policy]] = ((), [])

    def _all(self) -> list[Policy]:
        found = self._policies.list()
        if self._compiled[0] is not found:
            ordered = sorted(found, key=lambda policy: policy["metadata"]["name"])
            self._compiled = (found, [Policy.compile(policy) for policy in ordered])
        return self._compiled[1]

    async def validate(self, request: AdmissionRequest) -> dict[str, str]:
        """Raise the error of the first policy that denies; returns annotations for the audit log."""
        denied: list[_Finding] = []
        annotations: dict[str, str] = {}
        for policy in self._all():
            bindings = self._bindings_of(policy.name)
            version = self._concerned(policy.spec.get("matchConstraints"), request) if bindings else None
            if version is None:
                continue
            for binding in bindings:
                spec = binding.get("spec") or {}
                resources = spec.get("matchResources")
                if resources is not None and self._concerned(resources, request, any_rule=True) is None:
                    continue
                try:
                    params = self._params(policy, spec.get("paramRef"), request)
                except ConfigurationError as problem:
                    if not policy.is_ignorable:
                        message = f"failed to configure binding: {problem}"
                        denied.append(_Finding(policy, binding, Denial(message)))
                    continue
                for param in params:
                    values = values_of(request, version, self._decide, self._namespace(request), param)
                    denials, noted = await compute(LARGE, policy.judge, values)
                    annotations |= noted
                    denied += self._act(policy, binding, denials, request)
        if denied:
            raise _refusal(request, denied[0])
        return annotations

    def _act(
        self, policy: Policy, binding: JsonMapping, denials: Sequence[Denial], request: AdmissionRequest
    ) -> Iterator[_Finding]:
        actions = (binding.get("spec") or {}).get("validationActions") or ()
        for denial in denials:
            if "Warn" in actions:
                request.call.warn(
                    f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding "
                    f"'{binding['metadata']['name']}': {denial.message}"
                )
            if "Deny" in actions:
                yield _Finding(policy, binding, denial)

    def _bindings_of(self, policy: str) -> list[JsonObject]:
        found = [
            binding
            for binding in self._bindings.list()
            if (binding.get("spec") or {}).get("policyName") == policy
        ]
        return sorted(found, key=lambda binding: binding["metadata"]["name"])

    def _concerned(
        self, match: JsonMapping | None, request: AdmissionRequest, *, any_rule: bool = False
    ) -> str | None:
        """Return the version in which the object is judged; None if the match does not fit."""
        if match is None:
            return request.call.route.version

        def absent(name: str) -> ApiError:
            return not_found("", "namespaces", name)

        if not object_fits(match.get("objectSelector"), request):
            return None
        policy = match.get("matchPolicy")
        if rule_version(match.get("excludeResourceRules") or (), request, policy) is not None:
            return None
        rules = match.get("resourceRules") or ()
        version = rule_version(rules, request, policy)
        if not rules and any_rule:
            version = request.call.route.version
        if version is None:
            return None
        fits = namespace_fits(match.get("namespaceSelector"), request, self._reader, absent)
        return version if fits else None

    def _namespace(self, request: AdmissionRequest) -> JsonObject | None:
        kind = request.call.route.kind
        if not request.namespace or (kind.plural == "namespaces" and not kind.group):
            return None
        return self._reader.get("", "namespaces", "", request.namespace)

    def _params(
        self, policy: Policy, reference: JsonMapping | None, request: AdmissionRequest
    ) -> list[JsonObject | None]:
        """Return the objects that a policy is evaluated with, one after the other."""
        written = policy.spec.get("paramKind")
        if written is None or reference is None:
            return [None]
        group, version = split_api_version(written.get("apiVersion") or "")
        kind = self._find_kind(group, version, written.get("kind") or "")
        if kind is None:
            shown = f"{written.get('apiVersion')}, Kind={written.get('kind')}"
            raise ConfigurationError(f"paramKind kind `{shown}` not known")
        namespace = reference.get("namespace") or ""
        if not kind.namespaced:
            if namespace:
                raise ConfigurationError(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                )
        elif not namespace:
            namespace = request.namespace
            if not namespace:
                raise ConfigurationError(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                )
        found: list[JsonObject | None]
        if reference.get("name"):
            one = self._reader.get(kind.group, kind.plural, namespace, reference["name"])
            found = [] if one is None else [one]
        else:
            selector = reference.get("selector")
            found = [
                each
                for each in self._reader.list(kind.group, kind.plural, namespace or None)
                if matches_label_object(selector, each["metadata"].get("labels"))
            ]
        if not found and reference.get("parameterNotFoundAction") != "Allow":
            raise ConfigurationError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return found


def _refusal(request: AdmissionRequest, finding: _Finding) -> ApiError:
    kind = request.call.route.kind
    text, reason = finding.text(), finding.denial.reason
    name = request.name or "Unknown"
    refused = forbidden(kind.group, kind.plural, name, text, [{"message": text}])
    return ApiError(_CODES.get(reason, 422), reason, refused.message, refused.details)
