"""Pod groups: one that is deleted stays as long as pods of it are at work.

Kubernetes puts a finalizer on new groups; this controller takes it off when the group is
deleted and all its pods have ended, so that what the group has reserved is not released
under pods that still use it.
"""

from __future__ import annotations

from dray.api.core import Pod, PodGroup
from dray.api.well_known import TERMINAL_PHASES
from dray.client import STRATEGIC_PATCH, key_of
from dray.client.resources import POD_GROUPS, PODS
from dray.control.reconcile_loop import Caches, Clock, Controller, ignoring_absence
from dray.host.clock import utc_now

FINALIZER = "scheduling.k8s.io/podgroup-protection"


def is_member(pod: Pod, group: str) -> bool:
    """Return whether the pod belongs to the group and has not ended."""
    named = pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name == group
    return named and pod.status.phase not in TERMINAL_PHASES


class GroupProtection(Controller):
    """Lets deleted pod groups go when their pods have ended."""

    name = "pod-group-protection"
    workers = 2

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.groups = caches.of(POD_GROUPS, PodGroup, optional=True)
        self.pods = caches.of(PODS, Pod)

    def watch(self) -> None:
        """Look at groups when they change, and when a pod of theirs may have ended."""
        self.groups.add_handler(lambda _old, new: self.enqueue(key_of(new.metadata)) if new else None)

        def pod_changed(old: Pod | None, new: Pod | None) -> None:
            pod = new or old
            assert pod is not None
            group = pod.spec.scheduling_group
            if group is not None and group.pod_group_name:
                self.enqueue(f"{pod.metadata.namespace}/{group.pod_group_name}")

        self.pods.add_handler(pod_changed)

    async def reconcile(self, key: str) -> float | None:
        """Take the finalizer off one group, if it may go."""
        group = self.groups.get(key)
        if group is None or group.metadata.deletion_timestamp is None:
            return None
        meta = group.metadata
        if FINALIZER not in meta.finalizers or any(
            pod.metadata.namespace == meta.namespace and is_member(pod, meta.name)
            for pod in self.pods.items.values()
        ):
            return None
        # The cache may not show a pod that was just made: the server decides.
        pods = (await self.client.list(PODS, meta.namespace, view=Pod)).items
        if any(is_member(pod, meta.name) for pod in pods):
            return 1.0
        patch = {
            "metadata": {
                "resourceVersion": meta.resource_version,
                "$deleteFromPrimitiveList/finalizers": [FINALIZER],
            }
        }
        await ignoring_absence(
            self.client.patch(POD_GROUPS, meta.name, patch, meta.namespace, kind=STRATEGIC_PATCH)
        )
        return None
