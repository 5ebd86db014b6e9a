"""Where the pods are in a manifest: in itself, in a workload's template, or deep inside a custom resource.

Tools that read or rewrite pods must not care which controller makes them. Pods are recognised by
their shape, so kinds that nobody here has heard of (a training job, a serving runtime) work as well:

  template    a mapping whose `spec` has a list of `containers`: Pod, Deployment, RayCluster, MPIJob, JobSet, ...
  inline      a mapping that has a list of `containers` itself: the `predictor` of KServe, a serving runtime
  component   a mapping of KServe that describes its only container as `model` (or by the name of a framework)
  step        a template of Argo Workflows: `container` or `script`; it has no field for claims of the pod,
              only `podSpecPatch`, a text

`check`, `convert` and `whatif` all look here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import split_api_version

ARGO = "argoproj.io"
KSERVE = "serving.kserve.io"
_COMPONENTS = ("predictor", "transformer", "explainer")
_STEP_FIELDS = ("container", "script")


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One place in a manifest that describes pods."""

    path: str  # of the mapping with `metadata` and `spec`, or of the spec itself; empty: the object itself
    metadata: JsonObject
    spec: JsonObject  # the manifest's own dict: changing it changes the manifest
    is_inline: bool = False  # `path` is that of the spec
    is_step: bool = False  # of Argo Workflows: claims of the pod go into `podSpecPatch`

    def below(self, path: str) -> str:
        """Return the path of a field of the template (`spec.nodeName`), seen from the object."""
        if self.is_inline:
            path = path.removeprefix("spec").removeprefix(".")
        return ".".join(part for part in (self.path, path) if part)


def pod_templates(obj: JsonObject) -> list[PodTemplate]:
    """Return the pod templates of an object, outermost first."""
    group, _ = split_api_version(str(obj.get("apiVersion") or ""))
    return list(_search(obj, "", "", group))


def _search(value: Any, path: str, name: str, group: str) -> Iterator[PodTemplate]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _search(item, f"{path}[{index}]", name, group)
        return
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        metadata = value.get("metadata")
        yield PodTemplate(path, metadata if isinstance(metadata, dict) else {}, spec)
        return
    if group == ARGO and any(isinstance(value.get(field), dict) for field in _STEP_FIELDS):
        metadata = value.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        yield PodTemplate(path, metadata, value, is_inline=True, is_step=True)
        return
    if path and (_has_containers(value) or (group == KSERVE and name in _COMPONENTS and _models(value))):
        yield PodTemplate(path, {}, value, is_inline=True)
        return
    for key, item in value.items():
        if key not in ("metadata", "status"):
            yield from _search(item, f"{path}.{key}" if path else str(key), str(key), group)


def _has_containers(value: JsonObject) -> bool:
    """Return whether a mapping is the spec of a pod: other things are called containers, too."""
    containers = value.get("containers")
    if not isinstance(containers, list) or not containers:
        return False
    return all(
        isinstance(item, dict) and (("name" in item and "resources" in item) or "image" in item)
        for item in containers
    )


def _models(value: JsonObject) -> list[str]:
    """Return the fields of a component of KServe that describe a container: `model`, `triton`, ..."""
    return [
        key
        for key, item in value.items()
        if isinstance(item, dict) and ("modelFormat" in item or isinstance(item.get("resources"), dict))
    ]


def mappings(value: Any) -> list[JsonObject]:
    """Return the mappings of a list; manifests have placeholders and mistakes where lists belong."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def containers_of(spec: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the containers of a pod with their paths: the init containers first, as they run."""
    for field in ("initContainers", "containers"):
        items = spec.get(field)
        for index, container in enumerate(items if isinstance(items, list) else ()):
            if isinstance(container, dict):
                yield f"{field}[{index}]", container
    if isinstance(spec.get("containers"), list):
        return
    fields = [field for field in _STEP_FIELDS if isinstance(spec.get(field), dict)] or _models(spec)
    for field in fields:
        yield field, spec[field]
