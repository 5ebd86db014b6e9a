"""Parts of objects that look like manifests: the patches of kustomize.

A strategic merge patch has the kind and the name of the object that it changes, and only the fields that it changes.
Seen alone it lacks what every whole object of its kind has, and validation names each of these fields. The cause is
one: it is a patch. A workload counts as one where everything that validation misses comes from the object that it is
merged into: the selector of its pods (of a Job: the restart policy) and the image of every container.
"""

from __future__ import annotations

from dray.api.json_types import JsonObject
from dray.workbench.lint.findings import Problem, error
from dray.workbench.pod_templates import containers_of, pod_templates

_SELECTING = ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet")
_HINT = "check what `kubectl kustomize` prints: kubectl kustomize DIR | dray check -"


def merged_patch(stored: JsonObject, problems: list[Problem]) -> list[Problem]:
    """Return one problem instead of those that a patch has because it is one; other problems stay as they are."""
    if not _is_patch(stored):
        return problems
    others = [problem for problem in problems if not _is_of_patch(problem)]
    kind = stored.get("kind")
    patch = error(
        "patch",
        "",
        f"a part of a {kind}, as in a patch of kustomize: what it is merged into has the selector and the images",
        _HINT,
    )
    return [patch, *others]


def _is_patch(stored: JsonObject) -> bool:
    kind, spec = stored.get("kind"), stored.get("spec") or {}
    templates = pod_templates(stored)
    if len(templates) != 1:
        return False
    pod = templates[0].spec
    containers = [container for _, container in containers_of(pod)]
    if any(container.get("image") for container in containers):
        return False
    if kind == "Job":
        return pod.get("restartPolicy") == "Always"  # the default, which no whole Job can have
    return kind in _SELECTING and not spec.get("selector")


def _is_of_patch(problem: Problem) -> bool:
    if problem.code != "invalid":
        return False
    is_missing = problem.message.startswith("Required value")
    return is_missing or "`selector` does not match template `labels`" in problem.message
