"""Webhook configurations, ValidatingAdmissionPolicy and its binding.

The rules and their words are kube-apiserver's. Expressions are compiled by whoever calls
(`ValidationContext.admission_cel`): the package `cel` is a layer above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from dray.api.json_types import JsonMapping
from dray.api.kinds import split_api_version
from dray.api.validation.context import ExpressionChecker, ValidationContext
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    invalid,
    invalid_each,
    not_supported,
    required,
    too_many,
)
from dray.api.validation.formats import dns_1035_label, dns_subdomain, label_key, path_segment, port_number
from dray.api.validation.metadata import metadata_of, validate_changed_metadata, validate_new_metadata
from dray.api.validation.selectors import validate_conditions, validate_label_selector
from dray.api.well_known import CEL_RESERVED

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_FAILURE_POLICIES = ("Fail", "Ignore")
_MATCH_POLICIES = ("Equivalent", "Exact")
_NO_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_REINVOCATION = ("IfNeeded", "Never")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")
_REVIEW_VERSIONS = ("v1", "v1beta1")
_MOST_CONDITIONS = 64
_MOST_ANNOTATIONS = 20
_LONGEST_ANNOTATION = 5 * 1024
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*\Z")
_URL_FORM = "; desired format: https://host[/path]"


# --- webhooks ---------------------------------------------------------------------------


def validate_webhook_configuration(obj: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new MutatingWebhookConfiguration or ValidatingWebhookConfiguration."""
    return validate_new_metadata(metadata_of(obj), namespaced=False) + _webhooks(obj, context)


def validate_webhook_configuration_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed configuration."""
    return validate_changed_metadata(metadata_of(new), metadata_of(old)) + _webhooks(new, context)


def _webhooks(obj: JsonMapping, context: ValidationContext) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for number, hook in enumerate(obj.get("webhooks") or ()):
        path = Path("webhooks").at(number)
        errors += _webhook(hook, path, context)
        errors += _review_versions(hook.get("admissionReviewVersions") or (), path)
        name = hook.get("name") or ""
        if name in names:
            errors.append(duplicate(path.child("name"), name))
        names.add(name)
    return errors


def _webhook(hook: JsonMapping, path: Path, context: ValidationContext) -> list[FieldError]:
    errors = _qualified(hook.get("name") or "", path.child("name"))
    for number, rule in enumerate(hook.get("rules") or ()):
        errors += _rule(rule, path.child("rules").at(number))
    errors += _word(hook, "failurePolicy", _FAILURE_POLICIES, path)
    errors += _word(hook, "matchPolicy", _MATCH_POLICIES, path)
    if hook.get("sideEffects") is None:
        why = f"must specify one of {', '.join(_NO_SIDE_EFFECTS)}"
        errors.append(required(path.child("sideEffects"), why))
    errors += _word(hook, "sideEffects", _NO_SIDE_EFFECTS, path)
    seconds = hook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= 30:
        why = "the timeout value must be between 1 and 30 seconds"
        errors.append(invalid(path.child("timeoutSeconds"), seconds, why))
    for name in ("namespaceSelector", "objectSelector"):
        if hook.get(name) is not None:
            errors += validate_label_selector(hook[name], path.child(name))
    errors += _word(hook, "reinvocationPolicy", _REINVOCATION, path)
    errors += _client(hook.get("clientConfig") or {}, path.child("clientConfig"))
    return errors + _conditions(
        hook.get("matchConditions") or (), path.child("matchConditions"), context, params=False
    )


def _word(obj: JsonMapping, name: str, words: Sequence[str], path: Path) -> list[FieldError]:
    said = obj.get(name)
    return [] if said is None or said in words else [not_supported(path.child(name), said, words)]


def _qualified(name: str, path: Path) -> list[FieldError]:
    if not name:
        return [required(path)]
    problems = dns_subdomain(name)
    if problems:
        return [invalid(path, name, ",".join(problems))]
    if name.count(".") < 2:
        return [invalid(path, name, "should be a domain with at least three segments separated by dots")]
    return []


def _review_versions(versions: Sequence[str], path: Path) -> list[FieldError]:
    path = path.child("admissionReviewVersions")
    listed = ", ".join(_REVIEW_VERSIONS)
    if not versions:
        return [required(path, f"must specify one of {listed}")]
    errors: list[FieldError] = []
    for number, version in enumerate(versions):
        if version in versions[:number]:
            errors.append(invalid(path.at(number), version, "duplicate version"))
        errors += invalid_each(path.at(number), version, dns_1035_label(version))
    if not set(versions) & set(_REVIEW_VERSIONS):
        errors.append(invalid(path, list(versions), f"must include at least one of {listed}"))
    return errors


def _client(config: JsonMapping, path: Path) -> list[FieldError]:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        return [required(path, "exactly one of url or service is required")]
    return _url(url, path.child("url")) if service is None else _service(service, path.child("service"))


def _url(url: Any, path: Path) -> list[FieldError]:
    try:
        parts = urlsplit(url)
        user = parts.username
    except ValueError as problem:
        return [required(path, f"url must be a valid URL: {problem}{_URL_FORM}")]
    errors: list[FieldError] = []
    if parts.scheme != "https":
        errors.append(invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_URL_FORM}"))
    if not parts.netloc:
        errors.append(invalid(path, parts.netloc, f"host must be specified{_URL_FORM}"))
    if user is not None:
        errors.append(
            invalid(path, parts.netloc.rpartition("@")[0], "user information is not permitted in the URL")
        )
    if parts.fragment:
        errors.append(invalid(path, parts.fragment, "fragments are not permitted in the URL"))
    if parts.query:
        errors.append(invalid(path, parts.query, "query parameters are not permitted in the URL"))
    return errors


def _service(service: JsonMapping, path: Path) -> list[FieldError]:
    errors = [required(path.child(name)) for name in ("name", "namespace") if not service.get(name)]
    port = service.get("port") or 0
    problems = port_number(port)
    if problems:
        errors.append(invalid(path.child("port"), port, f"port is not valid: {', '.join(problems)}"))
    place = service.get("path") or "/"
    if place == "/":
        return errors
    path = path.child("path")
    if place == "//":
        return [*errors, invalid(path, place, "segment[0] may not be empty")]
    if not place.startswith("/"):
        errors.append(invalid(path, place, "must start with a '/'"))
    for number, step in enumerate(place[1:].removesuffix("/").split("/")):
        if not step:
            errors.append(invalid(path, place, f"segment[{number}] may not be empty"))
        else:
            errors += [invalid(path, place, f"segment[{number}]: {why}") for why in dns_subdomain(step)]
    return errors


def _rule(rule: JsonMapping, path: Path) -> list[FieldError]:
    operations = rule.get("operations") or []
    errors: list[FieldError] = []
    if not operations:
        errors.append(required(path.child("operations")))
    if len(operations) > 1 and "*" in operations:
        why = "if '*' is present, must not specify other operations"
        errors.append(invalid(path.child("operations"), operations, why))
    errors += [
        not_supported(path.child("operations").at(number), word, _OPERATIONS)
        for number, word in enumerate(operations)
        if word not in _OPERATIONS
    ]
    for name, noun in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        words = rule.get(name) or []
        if not words:
            errors.append(required(path.child(name)))
        if len(words) > 1 and "*" in words:
            why = f"if '*' is present, must not specify other {noun}"
            errors.append(invalid(path.child(name), words, why))
    for number, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            errors.append(required(path.child("apiVersions").at(number)))
    errors += _resources(rule.get("resources") or [], path.child("resources"))
    return errors + _word(rule, "scope", _SCOPES, path)


def _resources(resources: list[str], path: Path) -> list[FieldError]:
    errors = [] if resources else [required(path)]
    whole: set[str] = set()  # resources of which all subresources are named
    everywhere: set[str] = set()  # subresources that are named for all resources
    plain = False
    for number, entry in enumerate(resources):
        if not entry:
            errors.append(required(path.at(number)))
            continue
        if entry == "*":
            continue
        resource, slash, subresource = entry.partition("/")
        if not slash:
            plain = True
            continue
        if resource in whole:
            why = f"if '{resource}/*' is present, must not specify {entry}"
            errors.append(invalid(path.at(number), entry, why))
        if subresource in everywhere:
            why = f"if '*/{subresource}' is present, must not specify {entry}"
            errors.append(invalid(path.at(number), entry, why))
        if subresource == "*":
            whole.add(resource)
        if resource == "*":
            everywhere.add(subresource)
    if len(resources) > 1 and "*/*" in resources:
        why = "if '*/*' is present, must not specify other resources"
        errors.append(invalid(path, resources, why))
    if "*" in resources and plain:
        why = "if '*' is present, must not specify other resources without subresources"
        errors.append(invalid(path, resources, why))
    return errors


def _conditions(
    conditions: Sequence[JsonMapping], path: Path, context: ValidationContext, *, params: bool
) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(conditions) > _MOST_CONDITIONS:
        errors.append(too_many(path, len(conditions), _MOST_CONDITIONS))
    names: set[str] = set()
    checker = context.admission_cel(params=params, has_variables=False)
    for number, condition in enumerate(conditions[:_MOST_CONDITIONS]):
        here, text = path.at(number), (condition.get("expression") or "").strip()
        errors += _expression(checker, text, "condition", here.child("expression"), text)
        name = condition.get("name") or ""
        if not name:
            errors.append(required(here.child("name")))
            continue
        errors += invalid_each(here.child("name"), name, label_key(name))
        if name in names:
            errors.append(duplicate(here.child("name"), name))
        names.add(name)
    return errors


def _expression(
    checker: ExpressionChecker,
    text: str,
    purpose: str,
    path: Path,
    shown: str,
    missing: str = "",
    *,
    authorizer: bool = True,
) -> list[FieldError]:
    if not text.strip():
        return [required(path, missing)]
    problem = checker.problem(text, purpose, authorizer=authorizer)
    return [invalid(path, shown, problem)] if problem else []


# --- policies ---------------------------------------------------------------------------


def validate_policy(policy: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ValidatingAdmissionPolicy."""
    return validate_new_metadata(metadata_of(policy), namespaced=False) + _policy_spec(policy, context)


def validate_policy_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed policy."""
    return validate_changed_metadata(metadata_of(new), metadata_of(old)) + _policy_spec(new, context)


def validate_policy_status(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a new status of a policy."""
    conditions = (new.get("status") or {}).get("conditions") or []
    return validate_conditions(conditions, Path("status.conditions"))


def _policy_spec(policy: JsonMapping, context: ValidationContext) -> list[FieldError]:
    spec, path = policy.get("spec") or {}, Path("spec")
    params = spec.get("paramKind") is not None
    errors = _word(spec, "failurePolicy", _FAILURE_POLICIES, path)
    if params:
        errors += _param_kind(spec["paramKind"], path.child("paramKind"))
    constraints = spec.get("matchConstraints")
    if constraints is None:
        errors.append(required(path.child("matchConstraints")))
    else:
        errors += _match(constraints, path.child("matchConstraints"))
        if not constraints.get("resourceRules"):
            errors.append(required(path.child("matchConstraints", "resourceRules")))
    conditions = spec.get("matchConditions") or ()
    errors += _conditions(conditions, path.child("matchConditions"), context, params=params)
    variables = spec.get("variables") or ()
    checker = context.admission_cel(params=params, has_variables=bool(variables))
    for number, variable in enumerate(variables):
        errors += _variable(checker, variable, path.child("variables").at(number))
    validations, annotations = spec.get("validations") or (), spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        why = "validations or auditAnnotations must contain at least one item"
        errors += [required(path.child(name), why) for name in ("validations", "auditAnnotations")]
    for number, validation in enumerate(validations):
        errors += _validation(checker, validation, path.child("validations").at(number))
    return errors + _annotations(checker, metadata_of(policy), annotations, path.child("auditAnnotations"))


def _param_kind(kind: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    said, here = kind.get("apiVersion") or "", path.child("apiVersion")
    group, version = split_api_version(said)
    if not said:
        errors.append(required(here))
    elif said.count("/") > 1:
        errors.append(invalid(here, said, f"unexpected GroupVersion string: {said}"))
    else:
        problems = dns_subdomain(group) if group else []
        if problems:
            errors.append(invalid(here, group, ",".join(problems)))
        problems = dns_1035_label(version)
        if not version:
            errors.append(invalid(here, said, "version must be specified"))
        elif problems:
            errors.append(invalid(here, version, ",".join(problems)))
    name = kind.get("kind") or ""
    problems = dns_1035_label(name.lower())
    if not name:
        errors.append(required(path.child("kind")))
    elif problems:
        why = f"may have mixed case, but should otherwise match: {','.join(problems)}"
        errors.append(invalid(path.child("kind"), name, why))
    return errors


def _match(match: JsonMapping, path: Path) -> list[FieldError]:
    errors = _word(match, "matchPolicy", _MATCH_POLICIES, path)
    for name in ("namespaceSelector", "objectSelector"):
        if match.get(name) is not None:
            errors += validate_label_selector(match[name], path.child(name))
    for name in ("resourceRules", "excludeResourceRules"):
        for number, rule in enumerate(match.get(name) or ()):
            here = path.child(name).at(number)
            errors += _resource_names(rule.get("resourceNames") or (), here.child("resourceNames"))
            errors += _rule(rule, here)
    return errors


def _resource_names(names: Sequence[str], path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, name in enumerate(names):
        errors += invalid_each(path.at(number), name, path_segment(name))
        if name in names[:number]:
            errors.append(duplicate(path.at(number), name))
    return errors


def _variable(checker: ExpressionChecker, variable: JsonMapping, path: Path) -> list[FieldError]:
    name, text = variable.get("name") or "", variable.get("expression") or ""
    errors: list[FieldError] = []
    if not name.strip():
        errors.append(required(path.child("name"), "name is not specified"))
    elif not _IDENTIFIER.match(name) or name in CEL_RESERVED:
        errors.append(invalid(path.child("name"), name, "must be a valid CEL identifier"))
    if not text.strip():
        return [*errors, required(path.child("expression"), "expression is not specified")]
    problem = checker.add_variable(name, text)
    return [*errors, invalid(path.child("expression"), text, problem)] if problem else errors


def _validation(checker: ExpressionChecker, validation: JsonMapping, path: Path) -> list[FieldError]:
    text = validation.get("expression") or ""
    why = "expression is not specified"
    errors = _expression(checker, text, "condition", path.child("expression"), text, why)
    computed, message = validation.get("messageExpression") or "", validation.get("message") or ""
    if computed and not computed.strip():
        errors.append(invalid(path.child("messageExpression"), computed, "must be non-empty if specified"))
    elif computed:
        here = path.child("messageExpression")
        errors += _expression(checker, computed, "message", here, computed, authorizer=False)
    if message and not message.strip():
        errors.append(invalid(path.child("message"), message, "must be non-empty if specified"))
    elif "\n" in message.strip() or "\r" in message.strip():
        errors.append(invalid(path.child("message"), message, "must not contain line breaks"))
    return errors + _word(validation, "reason", _REASONS, path)


def _annotations(
    checker: ExpressionChecker, metadata: JsonMapping, annotations: Iterable[JsonMapping], path: Path
) -> list[FieldError]:
    written = list(annotations)
    errors: list[FieldError] = []
    if len(written) > _MOST_ANNOTATIONS:
        why = f"must not have more than {_MOST_ANNOTATIONS} auditAnnotations"
        errors.append(invalid(path, written, why))
    keys: set[str] = set()
    for number, annotation in enumerate(written[:_MOST_ANNOTATIONS]):
        here, key = path.at(number), annotation.get("key") or ""
        full = f"{metadata.get('name') or ''}/{key}"
        errors += invalid_each(here.child("key"), full, label_key(full))
        said = annotation.get("valueExpression") or ""
        text, place = said.strip(), here.child("valueExpression")
        if len(text) > _LONGEST_ANNOTATION:
            errors.append(required(place, f"must not exceed {_LONGEST_ANNOTATION} bytes in length"))
        else:
            errors += _expression(
                checker, text, "annotation", place, said, "valueExpression is not specified"
            )
        if key in keys:
            errors.append(duplicate(here.child("key"), key))
        keys.add(key)
    return errors


def validate_binding(binding: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new ValidatingAdmissionPolicyBinding."""
    return validate_new_metadata(metadata_of(binding), namespaced=False) + _binding_spec(binding)


def validate_binding_update(
    new: JsonMapping, old: JsonMapping, context: ValidationContext
) -> list[FieldError]:
    """Check a changed binding."""
    return validate_changed_metadata(metadata_of(new), metadata_of(old)) + _binding_spec(new)


def _binding_spec(binding: JsonMapping) -> list[FieldError]:
    spec, path = binding.get("spec") or {}, Path("spec")
    name = spec.get("policyName") or ""
    errors = (
        invalid_each(path.child("policyName"), name, dns_subdomain(name))
        if name
        else [required(path.child("policyName"))]
    )
    if spec.get("paramRef") is not None:
        errors += _param_reference(spec["paramRef"], path.child("paramRef"))
    if spec.get("matchResources") is not None:
        errors += _match(spec["matchResources"], path.child("matchResources"))
    actions, here = spec.get("validationActions") or [], path.child("validationActions")
    for number, action in enumerate(actions):
        if action not in _ACTIONS:
            errors.append(not_supported(here.at(number), action, _ACTIONS))
        if action in actions[:number]:
            errors.append(duplicate(here.at(number), action))
    if "Deny" in actions and "Warn" in actions:
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information "
            "in the API response and headers serves no purpose)"
        )
        errors.append(invalid(here, actions, why))
    if not actions:
        errors.append(required(here, "at least one validation action is required"))
    return errors


def _param_reference(reference: JsonMapping, path: Path) -> list[FieldError]:
    errors: list[FieldError] = []
    name, selector = reference.get("name") or "", reference.get("selector")
    both = "name and selector are mutually exclusive"
    if name:
        errors += invalid_each(path.child("name"), name, path_segment(name))
        if selector is not None:
            errors.append(forbidden(path.child("name"), both))
    if selector is not None:
        errors += validate_label_selector(selector, path.child("selector"))
        if name:
            errors.append(forbidden(path.child("selector"), both))
    if not name and selector is None:
        errors.append(required(path, "one of name or selector must be specified"))
    action = reference.get("parameterNotFoundAction")
    if action is None:
        errors.append(required(path.child("parameterNotFoundAction")))
    elif action not in ("Deny", "Allow"):
        errors.append(not_supported(path.child("parameterNotFoundAction"), action, ("Deny", "Allow")))
    return errors
