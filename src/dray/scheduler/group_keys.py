"""The name of a pod's group, as `namespace/name`."""

from __future__ import annotations

from dray.api.core import Pod


def group_key(pod: Pod) -> str:
    """Return `namespace/name` of the pod's group, empty when it has none."""
    reference = pod.spec.scheduling_group
    if reference is None or not reference.pod_group_name:
        return ""
    return f"{pod.metadata.namespace}/{reference.pod_group_name}"
