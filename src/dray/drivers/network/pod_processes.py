"""Finds processes of pods in /proc: the way to a pod's namespaces that every container runtime has.

kubelet, whatever the cgroup driver, and dray's node agent put the pod's UID into the names of its cgroups
(`kubepods-burstable-pod1234_….slice`, `pod1234-…`). A process is read once: its cgroup does not change
after the container runtime has placed it, except for a process that is seen before it is placed; so one that
is in no pod is read again for a while.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from dray.host.namespaces import OWN_NETWORK, is_same_namespace

_READS = 25  # of a process that is in no pod we look for


class PodProcesses:
    """A look at /proc that remembers what it has seen. Processes in our own network namespace are passed over:
    those of pods with hostNetwork, and those that a runtime has not moved into their namespaces yet."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._reads: dict[str, int] = {}  # process id -> how often it was read
        self._wanted: frozenset[str] = frozenset()
        self.in_own_network = False  # whether the last look saw a process of these pods in our own namespace

    def find(self, pod_uids: Collection[str]) -> dict[str, int]:
        """Return a process of each of these pods that has a network namespace of its own, by pod UID."""
        if not self._wanted.issuperset(pod_uids):
            self._reads.clear()  # processes that were of no interest may be now
        self._wanted = frozenset(pod_uids)
        self.in_own_network = False
        names = {form: uid for uid in pod_uids for form in (uid, uid.replace("-", "_"))}
        present = [entry.name for entry in self._proc.iterdir() if entry.name.isdecimal()]
        self._reads = {pid: count for pid in present if (count := self._reads.get(pid, 0))}
        found: dict[str, int] = {}
        for pid in present:
            if self._reads.get(pid, 0) >= _READS:
                continue
            self._reads[pid] = self._reads.get(pid, 0) + 1
            try:
                groups = (self._proc / pid / "cgroup").read_text()
            except OSError:
                continue
            for form, uid in names.items():
                if form in groups:
                    self._reads[pid] = 0
                    if self._has_own_network(pid):
                        found.setdefault(uid, int(pid))
                    else:
                        self.in_own_network = True
        return found

    def _has_own_network(self, pid: str) -> bool:
        try:
            return not is_same_namespace(self._proc / pid / "ns/net", OWN_NETWORK)
        except OSError:
            return False  # it has ended
