"""Where the pods are in a manifest: in itself, in a workload's template, or deep inside a custom resource.

Tools that read or rewrite pods must not care which controller makes them. A pod
template is recognised by its shape (a `spec` with a list of `containers`), so kinds
that nobody here has heard of (a training job, a serving runtime) work as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One place in a manifest that describes pods."""

    path: str  # of the dict with `metadata` and `spec`; empty means: the object itself
    metadata: JsonObject
    spec: JsonObject  # the manifest's own dict: changing it changes the manifest

    def below(self, path: str) -> str:
        """Return the path of a field of the template, seen from the object."""
        return f"{self.path}.{path}" if self.path else path


def pod_templates(obj: JsonObject) -> list[PodTemplate]:
    """Return the pod templates of an object, outermost first."""
    return list(_search(obj, ""))


def _search(value: Any, path: str) -> Iterator[PodTemplate]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _search(item, f"{path}[{index}]")
        return
    if not isinstance(value, dict):
        return
    spec = value.get("spec")
    if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
        metadata = value.get("metadata")
        yield PodTemplate(path, metadata if isinstance(metadata, dict) else {}, spec)
        return
    for key, item in value.items():
        if key not in ("metadata", "status"):
            yield from _search(item, f"{path}.{key}" if path else str(key))


def containers_of(spec: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield the containers of a pod with their paths: the init containers first, as they run."""
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            if isinstance(container, dict):
                yield f"{field}[{index}]", container
