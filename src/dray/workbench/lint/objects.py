"""One object at a time: shape, defaults, validation, and the rules that need nobody else."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Any

from dray.api.conversion import convert
from dray.api.defaults import apply_defaults
from dray.api.features import Features
from dray.api.gating import GATED_FIELDS, drop_disabled_fields
from dray.api.json_types import JsonObject
from dray.api.kinds import KINDS, RESOURCE, Kind, kind_of, split_api_version
from dray.api.reading import DecodeError, drop_empty, read
from dray.api.schema import schema_of
from dray.api.validation import (
    CelVerdict,
    ValidationContext,
    kind_key,
    validate_create,
    warnings_create,
)
from dray.cel import check_expression
from dray.workbench.lint.configs import config_problems
from dray.workbench.lint.findings import INFO, WARNING, Problem, error, info, warning
from dray.workbench.lint.patches import merged_patch
from dray.workbench.lint.removed_apis import removed_api
from dray.workbench.lint.selectors import check_selector
from dray.workbench.lint.shapes import check_shape
from dray.workbench.pod_templates import PodTemplate, pod_templates

_NOW = datetime(2026, 1, 1, tzinfo=UTC)  # stands in for times that defaults would set


@dataclass(frozen=True, slots=True)
class Checker:
    """Compiles selectors for validation."""

    features: Features

    def check(self, expression: str, *, stored: bool, derived: bool) -> CelVerdict:
        """Compile an expression; what is wrong with it is reported elsewhere, with advice."""
        verdict = check_expression(expression, features=self.features, stored=stored, derived=derived)
        return CelVerdict(verdict.error, verdict.max_cost)


@dataclass(slots=True)
class Judged:
    """An object after all that can be said about it alone."""

    problems: list[Problem]
    stored: JsonObject | None  # in the shape of storage; None when it cannot be read at all
    pods: list[PodTemplate] = field(
        default_factory=list
    )  # that could be read; their specs in shape of storage


def judge(obj: JsonObject, features: Features, namespace: str) -> Judged:
    """Check one object offline."""
    name = str(obj.get("kind"))
    problems: list[Problem] = []
    if not obj.get("apiVersion"):
        problems, obj = _with_version(obj, name)
    group, version = split_api_version(str(obj.get("apiVersion") or ""))
    removed = removed_api(obj, group, version, name)
    if removed:
        return Judged([*problems, *removed], None)
    kind = kind_of(group, name)
    if kind is None or not kind.is_stored:
        judged = _judge_unknown(obj, group, name, features, namespace)
        return Judged([*problems, *judged.problems], judged.stored, judged.pods)
    if version not in kind.versions:
        problems.append(
            error(
                "unknown-version",
                "apiVersion",
                f"{name} is not served in {obj.get('apiVersion')}",
                f"use {kind.api_version()}",
            )
        )
        return Judged(problems, None)
    if group == RESOURCE and version != kind.versions[0]:
        problems.append(
            info(
                "old-version",
                "apiVersion",
                f"{version} is an older version; {kind.api_version()} has the same features",
            )
        )
    shape_problems = list(check_shape(schema_of(group, version, name), obj))
    problems += shape_problems
    reading_version = version
    if group == RESOURCE and version != "v1beta1" and any(p.code == "old-shape" for p in shape_problems):
        # Go on as if the version had been right, to find the other mistakes in the same run.
        reading_version = "v1beta1"
    stored = _stored(kind, reading_version, obj, namespace, problems)
    if stored is None:
        return Judged(problems, None)
    gated = list(_gated(kind, stored, features))
    problems += gated
    drop_disabled_fields(group, name, stored, None, features)
    problems += merged_patch(stored, list(_validated(kind, stored, features, shape_problems, gated)))
    schema = schema_of(group, kind.storage_version, name)
    drop_empty(schema, stored)
    problems += _selector_problems(stored, features)
    problems += _config_problems(stored)
    problems += _habits(stored)
    return Judged(problems, stored, pod_templates(stored))


def _with_version(obj: JsonObject, name: str) -> tuple[list[Problem], JsonObject]:
    """Name a missing apiVersion; go on with the one that the kind has, where it is well known."""
    near = next((row for row in KINDS if row.is_stored and row.kind == name), None)
    hint = (
        f"write apiVersion: {near.api_version()}" if near is not None else "write the API group and version"
    )
    problem = error("no-api-version", "", f"apiVersion is missing: {name} could be of any API group", hint)
    return [problem], {**obj, "apiVersion": near.api_version()} if near is not None else obj


def _judge_unknown(obj: JsonObject, group: str, name: str, features: Features, namespace: str) -> Judged:
    problems: list[Problem] = []
    # A wrong group is the likeliest reason why a kind of Kubernetes is unknown; in a group of somebody
    # else the same name is another kind.
    near = next((row for row in KINDS if row.is_stored and row.kind.lower() == name.lower()), None)
    if near is not None and ("." not in group or any(row.group == group for row in KINDS)):
        problems.append(
            error(
                "unknown-version",
                "apiVersion" if near.kind == name else "kind",
                f"{name} is not served in {obj.get('apiVersion') or 'an empty apiVersion'}",
                f"use apiVersion: {near.api_version()}, kind: {near.kind}",
            )
        )
        return Judged(problems, None)
    pods: list[PodTemplate] = []
    templates = [
        template for template in pod_templates(obj) if isinstance(template.spec.get("containers"), list)
    ]
    for template in templates:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "template", "namespace": namespace},
            "spec": template.spec,
        }
        judged = judge(pod, features, namespace)
        problems += [
            replace(problem, path=template.below(problem.path))
            for problem in judged.problems
            if not _is_left_to_controller(problem)
        ]
        if judged.stored is not None:
            pods.append(replace(template, spec=judged.stored.get("spec") or {}))
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    problems += _named_wrongly(group, name, metadata, features)
    extent = "only its pod templates were checked" if templates else "it was not checked"
    problems.append(info("not-checked", "kind", f"{name} ({group or 'core'}) is unknown here; {extent}"))
    stored = {"apiVersion": obj.get("apiVersion"), "kind": name, "metadata": metadata}
    return Judged(problems, stored, pods)


def _named_wrongly(group: str, kind: str, metadata: JsonObject, features: Features) -> Iterator[Problem]:
    """Yield what the server refuses in name and namespace of objects of any kind."""
    names = {key: metadata[key] for key in ("name", "namespace") if isinstance(metadata.get(key), str)}
    if names.get("name"):
        context = ValidationContext(features, Checker(features), "")
        for failure in validate_create(kind_key(group, kind), {"metadata": names}, context):
            yield error("invalid", str(failure.field), failure.body())


_POD_FIELD = re.compile(r"spec\.([^.\[]+)")
_NEAR = 0.85  # how much alike two names are when one is a typo of the other


def _is_left_to_controller(problem: Problem) -> bool:
    """Return whether the kind around a pod spec may say more than a pod does, or fill in later what is missing."""
    if problem.code == "unknown-field":
        found = _POD_FIELD.fullmatch(problem.path)
        near = problem.hint.removeprefix("did you mean ").removesuffix("?").lower()
        return found is not None and SequenceMatcher(None, found[1].lower(), near).ratio() < _NEAR
    if problem.code != "invalid":
        return False
    if problem.message.startswith("Required value"):
        return "Limit must be set" not in problem.message
    return "volumeMounts" in problem.path and problem.message.startswith("Not found")


def _stored(
    kind: Kind, version: str, obj: JsonObject, namespace: str, problems: list[Problem]
) -> JsonObject | None:
    """Read, default and convert, as the server does before it validates."""
    try:
        stored, _complaints = read(
            schema_of(kind.group, version, kind.kind), copy.deepcopy(obj), keep_empty=True
        )
    except DecodeError as failure:
        if not any(problem.code == "wrong-type" for problem in problems):
            problems.append(error("wrong-type", "", str(failure)))
        return None
    metadata = stored.setdefault("metadata", {})
    if kind.namespaced:
        metadata.setdefault("namespace", namespace)
    else:
        metadata.pop("namespace", None)  # as the server does
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = f"{metadata['generateName']}x"
    apply_defaults(kind.group, version, kind.kind, stored, _NOW)
    return convert(kind.group, kind.kind, stored, version, kind.storage_version)


def _gated(kind: Kind, stored: JsonObject, features: Features) -> Iterator[Problem]:
    for rule in GATED_FIELDS.get((kind.group, kind.kind), ()):
        if features.issuperset(rule.gates):
            continue
        for path in rule.paths:
            for place in _present(stored, path.split("."), ""):
                yield warning(
                    "feature-off",
                    place,
                    f"the server drops this field silently: {', '.join(rule.gates)} is off by default",
                    f"switch it on in the cluster, and here with --feature-gates {rule.gates[0]}=true",
                )


def _present(value: Any, steps: list[str], path: str) -> Iterator[str]:
    """Yield the places where a gated path (`a.b[].c`) is set."""
    if not steps:
        if value is not None and value not in ([], {}):
            yield path
        return
    if not isinstance(value, dict):
        return
    name = steps[0].rstrip("[]{}")
    inner, place = value.get(name), f"{path}.{name}" if path else name
    if steps[0].endswith("[]"):
        for index, item in enumerate(inner if isinstance(inner, list) else []):
            yield from _present(item, steps[1:], f"{place}[{index}]")
    elif steps[0].endswith("{}"):
        for key, item in (inner if isinstance(inner, dict) else {}).items():
            yield from _present(item, steps[1:], f"{place}[{key}]")
    else:
        yield from _present(inner, steps[1:], place)


def _validated(
    kind: Kind, stored: JsonObject, features: Features, shape_problems: list[Problem], gated: list[Problem]
) -> Iterator[Problem]:
    context = ValidationContext(features, Checker(features), kind.storage_version)
    key = kind_key(kind.group, kind.kind)
    wrong_shape = [p.path for p in shape_problems if p.code in ("old-shape", "new-shape", "wrong-type")]
    for failure in validate_create(key, stored, context):
        field = str(failure.field)
        if field.endswith("expression") and any(w in failure.body() for w in ("compilation failed", "cost")):
            continue  # told by the rules on selectors, with advice
        # What is missing because it stood in the wrong place, or is dropped, was reported once already.
        if any(problem.path.rpartition(".")[0] == field for problem in gated):
            continue
        if any(field == path or field.startswith((f"{path}.", f"{path}[")) for path in wrong_shape):
            continue
        yield error(
            "invalid", field, failure.body(), _advice(stored, field, failure.message(), failure.body())
        )
    for text in warnings_create(key, stored):
        yield Problem(WARNING, "invalid", text.partition(":")[0], text)


def _advice(stored: JsonObject, field: str, message: str, body: str) -> str:
    """Say what to write instead, for refusals that puzzle people."""
    if field.endswith(("matchAttribute", "distinctAttribute")) and "fully qualified" in message:
        value = str(value_at(stored, field) or "")
        standard = {"pcieRoot", "pciBusID", "numaNode"}
        domain = "resource.kubernetes.io" if value in standard else "<driver>"
        return f"write {domain}/{value}" if value else "write <domain>/<name>"
    if "exactly one of `exactly` or `firstAvailable`" in message:
        return "write `exactly: {deviceClassName: …}`, or a list of alternatives in `firstAvailable`"
    if "pod.spec.resourceClaims" in message or ("resources.claims" in field and "Not found" in message):
        return "name the claim in spec.resourceClaims of the pod, too"
    if "resourceClaimName" in message and "resourceClaimTemplateName" in message:
        return (
            "each entry of resourceClaims names exactly one: resourceClaimName or resourceClaimTemplateName"
        )
    if field.endswith("count") and "allocationMode" in message:
        return "leave `count` out: allocationMode All takes what there is"
    return ""


def value_at(obj: Any, path: str) -> Any:
    """Return the value of a path such as `spec.items[0].name`; None where it leads nowhere."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if index:
            obj = obj[int(index)] if isinstance(obj, list) and int(index) < len(obj) else None
        else:
            obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


# --- selectors ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SelectorPlace:
    """One expression of an object, and what it belongs to."""

    path: str
    expression: str
    class_name: str  # of the request; empty for the selectors of a class
    derived: bool = False


def claim_spec_of(stored: JsonObject) -> tuple[str, JsonObject] | None:
    """Return the spec of a claim or a template, with its path."""
    spec = stored.get("spec") or {}
    if stored.get("kind") == "ResourceClaim":
        return "spec", spec
    if stored.get("kind") == "ResourceClaimTemplate":
        return "spec.spec", spec.get("spec") or {}
    return None


def exact_requests(stored: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield every `exactly` and every alternative of a claim or template, with its path."""
    found = claim_spec_of(stored)
    if found is None:
        return
    path, spec = found
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or []):
        place = f"{path}.devices.requests[{index}]"
        if request.get("exactly"):
            yield f"{place}.exactly", request["exactly"]
        for number, alternative in enumerate(request.get("firstAvailable") or []):
            yield f"{place}.firstAvailable[{number}]", alternative


def selectors_of(stored: JsonObject) -> Iterator[SelectorPlace]:
    """Yield the expressions of a claim, template or class."""
    if stored.get("kind") == "DeviceClass":
        yield from _expressions("spec", stored.get("spec") or {}, "")
    for path, request in exact_requests(stored):
        yield from _expressions(path, request, str(request.get("deviceClassName") or ""))
        for index, derived in enumerate(request.get("derivedAttributes") or []):
            expression = (derived or {}).get("expression") or ""
            place = f"{path}.derivedAttributes[{index}].expression"
            yield SelectorPlace(place, expression, "", derived=True)


def _expressions(path: str, holder: JsonObject, class_name: str) -> Iterator[SelectorPlace]:
    for index, selector in enumerate(holder.get("selectors") or []):
        expression = ((selector or {}).get("cel") or {}).get("expression") or ""
        yield SelectorPlace(f"{path}.selectors[{index}].cel.expression", expression, class_name)


def _selector_problems(stored: JsonObject, features: Features) -> Iterator[Problem]:
    for place in selectors_of(stored):
        yield from check_selector(place.expression, place.path, features, derived=place.derived)[0]


def _config_problems(stored: JsonObject) -> Iterator[Problem]:
    if stored.get("kind") == "DeviceClass":
        yield from config_problems(stored.get("spec") or {}, "spec")
    found = claim_spec_of(stored)
    if found is not None:
        path, spec = found
        yield from config_problems(spec.get("devices") or {}, f"{path}.devices")


# --- habits ---------------------------------------------------------------------------------


def _habits(stored: JsonObject) -> Iterator[Problem]:
    """Yield what is valid and yet does not do what its author wants."""
    if stored.get("kind") == "DeviceTaintRule":
        spec = stored.get("spec") or {}
        if not any((spec.get("deviceSelector") or {}).values()):
            effect = (spec.get("taint") or {}).get("effect")
            evicts = " and evicts every pod that uses one" if effect == "NoExecute" else ""
            yield warning(
                "taints-everything",
                "spec",
                f"a rule without selector taints every device of the cluster{evicts}",
                "name driver, pool or device; try effect None first: it only counts",
            )
    for template in pod_templates(stored):
        for problem in _pod_habits(template.spec):
            yield replace(problem, path=template.below(problem.path))


def _pod_habits(spec: JsonObject) -> Iterator[Problem]:
    if spec.get("resourceClaims") and spec.get("nodeName"):
        yield warning(
            "node-name",
            "spec.nodeName",
            "the pod names its node, so no scheduler allocates its claims: it starts only if they are allocated and reserved",
            "use nodeSelector with kubernetes.io/hostname",
        )


__all__ = [
    "INFO",
    "Checker",
    "Judged",
    "SelectorPlace",
    "claim_spec_of",
    "exact_requests",
    "judge",
    "selectors_of",
    "value_at",
]
