"""Objects that speak of each other: pods of claims, containers of requests, claims of classes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE, split_api_version
from dray.api.validation import check_admin_access
from dray.sim.snapshot import Snapshot
from dray.workbench.lint.claim_use import check_use
from dray.workbench.lint.findings import Problem, error, info, warning
from dray.workbench.lint.objects import Judged, claim_spec_of, exact_requests
from dray.workbench.pod_templates import PodTemplate, containers_of

Key = tuple[str, str]  # namespace, name

# Classes that drivers made in former versions -> what stands for them.
DROPPED_CLASSES = {
    "imex.nvidia.com": "make a ComputeDomain and name the template of its channel: resourceClaimTemplateName",
    "npu-ascend310p.example.com": "use npu-ascend310p.project-hami.io",
    "npu-310p-mem6.example.com": "use npu-ascend310p-mem6.project-hami.io",
    "npu-310p-aicore4.example.com": "use npu-ascend310p-aicore4.project-hami.io",
}


@dataclass(slots=True)
class Known:
    """Every object that the manifests may refer to: those of the files, and those of the cluster."""

    claims: dict[Key, JsonObject] = field(default_factory=dict)
    templates: dict[Key, JsonObject] = field(default_factory=dict)
    classes: dict[str, JsonObject] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)  # name -> labels
    is_complete: bool = False  # a cluster is at hand: what is not here does not exist

    def add(self, stored: JsonObject) -> None:
        """Take in an object in the shape of storage."""
        metadata = stored.get("metadata") or {}
        name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "default")
        group, _ = split_api_version(str(stored.get("apiVersion") or ""))
        if group not in ("", RESOURCE):
            return  # the same name in another group is another kind
        match stored.get("kind"):
            case "ResourceClaim":
                self.claims[namespace, name] = stored
            case "ResourceClaimTemplate":
                self.templates[namespace, name] = stored
            case "DeviceClass":
                self.classes[name] = stored
            case "Namespace":
                self.namespaces[name] = metadata.get("labels") or {}

    @classmethod
    def of(cls, files: Iterable[JsonObject], cluster: Snapshot | None) -> Known:
        """Collect; objects of the files replace those of the cluster."""
        known = cls(is_complete=cluster is not None)
        for obj in cluster.objects if cluster is not None else ():
            known.add(obj)
        for stored in files:
            known.add(stored)
        return known


def check_references(judged: Judged, known: Known, default_namespace: str) -> Iterator[Problem]:
    """Yield references that lead nowhere, as far as that can be known."""
    stored = judged.stored or {}
    metadata = stored.get("metadata") or {}
    namespace = str(metadata.get("namespace") or default_namespace)
    for template in judged.pods:
        yield from _pod_references(template, namespace, known)
    for path, request in exact_requests(stored):
        name = str(request.get("deviceClassName") or "")
        if name in DROPPED_CLASSES and name not in known.classes:
            yield warning(
                "dropped-class", f"{path}.deviceClassName", f"its driver no longer makes the class {name}",
                DROPPED_CLASSES[name],
            )  # fmt: skip
        elif name and name not in known.classes and (known.is_complete or _is_typo(name, known.classes)):
            yield error(
                "unknown-class", f"{path}.deviceClassName", f"there is no DeviceClass {name!r}",
                _nearest(name, known.classes, "classes"),
            )  # fmt: skip
    if stored.get("kind") not in ("ResourceClaim", "ResourceClaimTemplate"):
        return
    label = f"kubectl label namespace {namespace} resource.kubernetes.io/admin-access=true"
    if namespace not in known.namespaces and not known.is_complete:
        for path, request in exact_requests(stored):
            if request.get("adminAccess"):
                text = (
                    f"the server refuses admin access unless the namespace {namespace} has the label for it"
                )
                yield info("admin-namespace", f"{path}.adminAccess", text, label)
    if namespace in known.namespaces:
        for failure in check_admin_access(stored, known.namespaces[namespace]):
            yield error(
                "admin-namespace", str(failure.field), failure.body(), label,
            )  # fmt: skip


def _pod_references(template: PodTemplate, namespace: str, known: Known) -> Iterator[Problem]:
    found_by_entry: dict[str, JsonObject] = {}
    for index, entry in enumerate(template.spec.get("resourceClaims") or []):
        path = template.below(f"spec.resourceClaims[{index}]")
        for word, kind, store in (
            ("resourceClaimName", "ResourceClaim", known.claims),
            ("resourceClaimTemplateName", "ResourceClaimTemplate", known.templates),
        ):
            name = entry.get(word)
            if not name:
                continue
            target = store.get((namespace, name))
            if target is not None:
                found_by_entry[str(entry.get("name"))] = target
                continue
            yield from _missing(kind, str(name), namespace, f"{path}.{word}", store, known)
    yield from _request_references(template, found_by_entry)
    yield from check_use(template, found_by_entry, known.classes)


def _missing(
    kind: str, name: str, namespace: str, path: str, store: dict[Key, JsonObject], known: Known
) -> Iterator[Problem]:
    elsewhere = sorted(other for other, found in store if found == name)
    if elsewhere:
        yield error(
            "other-namespace",
            path,
            f"{kind} {name!r} exists in namespace {', '.join(elsewhere)}, the pod is in {namespace}",
            f"a pod sees only its own namespace: create the {kind} in {namespace} too",
        )
        return
    swapped = known.templates if kind == "ResourceClaim" else known.claims
    here = {found for other, found in store if other == namespace}
    if (namespace, name) in swapped:
        other = "resourceClaimTemplateName" if kind == "ResourceClaim" else "resourceClaimName"
        yield error(
            "missing-object",
            path,
            f"{name!r} is no {kind} but the other kind of object",
            f"write {other}: {name}",
        )
    elif known.is_complete or _is_typo(name, here):
        yield error(
            "missing-object", path, f"there is no {kind} {name!r} in namespace {namespace}",
            _nearest(name, here, f"{kind}s there"),
        )  # fmt: skip


def _request_references(template: PodTemplate, found_by_entry: dict[str, JsonObject]) -> Iterator[Problem]:
    for path, container in containers_of(template.spec):
        for index, entry in enumerate((container.get("resources") or {}).get("claims") or []):
            target = found_by_entry.get(str(entry.get("name")))
            wanted = entry.get("request")
            if target is None or not wanted:
                continue
            spec = claim_spec_of(target)
            requests = ((spec[1] if spec else {}).get("devices") or {}).get("requests") or []
            names = [str(request.get("name")) for request in requests]
            if wanted not in names:
                yield error(
                    "unknown-request",
                    template.below(f"spec.{path}.resources.claims[{index}].request"),
                    f"the claim {entry.get('name')!r} has no request {wanted!r}",
                    _nearest(str(wanted), names, "requests"),
                )


def check_class_extended(stored: JsonObject, known: Known) -> Iterator[Problem]:
    """Yield classes that claim the same extended resource: only one of them gets the pods."""
    name = (stored.get("metadata") or {}).get("name")
    extended = (stored.get("spec") or {}).get("extendedResourceName")
    if stored.get("kind") != "DeviceClass" or not extended:
        return
    others = [
        other
        for other, found in known.classes.items()
        if other != name and (found.get("spec") or {}).get("extendedResourceName") == extended
    ]
    if others:
        yield warning(
            "invalid",
            "spec.extendedResourceName",
            f"{extended} is also the resource of class {', '.join(others)}; the newest class wins",
        )


def _is_typo(name: str, known: Iterable[str]) -> bool:
    return bool(difflib.get_close_matches(name, list(known), n=1, cutoff=0.75))


def _nearest(name: str, known: Iterable[str], what: str) -> str:
    listed = sorted(known)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    return f"{what}: {', '.join(listed[:8])}" if listed else f"there are no {what}"
