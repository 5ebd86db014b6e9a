"""Jobs that begin after others: `dray run --after JOB`.

Such a pod has the scheduling gate `dray.dev/after` and names the pod of its namespace that must have ended first in
an annotation. When that pod has succeeded or failed, or is gone, the gate is removed and the scheduler takes over.
A pod that names itself, or pods that name each other, wait until somebody deletes one of them.
"""

from __future__ import annotations

from dray.api.core import Pod
from dray.api.well_known import AFTER_ANNOTATION, AFTER_GATE, TERMINAL_PHASES
from dray.client import NotFound
from dray.client.resources import PODS
from dray.control.reconcile_loop import Caches, Clock, Controller
from dray.host.clock import utc_now


class JobDependencies(Controller):
    """Removes the gate when the job before has ended."""

    name = "job-dependencies"

    def __init__(self, caches: Caches, clock: Clock = utc_now) -> None:
        super().__init__(caches, clock)
        self.pods = caches.of(PODS, Pod)
        self._waiting: dict[str, set[str]] = {}  # key of a pod -> keys of those that begin after it

    def watch(self) -> None:
        """Look at every pod: it may wait, or others may wait for it."""
        self.pods.add_handler(self._changed)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and (before := _waits_for(new)):
            self._waiting.setdefault(before, set()).add(_key(new))
            self.enqueue(_key(new))
        if old is not None and (before := _waits_for(old)) and (new is None or not _waits_for(new)):
            others = self._waiting.get(before, set())
            others.discard(_key(old))
            if not others:
                self._waiting.pop(before, None)
        if new is None or new.status.phase in TERMINAL_PHASES:
            ended = new or old
            for key in self._waiting.get(_key(ended), ()) if ended is not None else ():
                self.enqueue(key)

    async def reconcile(self, key: str) -> float | None:
        """Remove the gate of a pod whose turn has come."""
        pod = self.pods.get(key)
        before = _waits_for(pod) if pod is not None else ""
        if pod is None or not before:
            return None
        other = self.pods.get(before)
        if other is not None and other.status.phase not in TERMINAL_PHASES:
            return None
        gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates if gate.name != AFTER_GATE]
        patch = {
            "metadata": {"resourceVersion": pod.metadata.resource_version},
            "spec": {"schedulingGates": gates},
        }
        try:
            await self.client.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
        except NotFound:
            pass
        return None


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _waits_for(pod: Pod) -> str:
    """Return the key of the pod that must have ended first; empty: this one does not wait."""
    if not any(gate.name == AFTER_GATE for gate in pod.spec.scheduling_gates):
        return ""
    name = (pod.metadata.annotations or {}).get(AFTER_ANNOTATION, "")
    return f"{pod.metadata.namespace}/{name}"
