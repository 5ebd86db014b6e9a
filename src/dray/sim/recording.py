"""What `dray record` writes: the arrivals, starts and ends of the pods of a cluster, as lines of a trace.

A pod is written when the claims that it asks for are known: a template or a claim may come after the pod that names it. What
was on the cluster when the recording began counts as an arrival at time 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dray.api.core import Pod
from dray.api.well_known import TERMINAL_PHASES
from dray.client import key_of
from dray.sim.trace import TraceWriter

# (namespace, template name or empty, claim name or empty) -> spec of the claim; None: not known yet
LookUp = Callable[[str, str, str], Any]


class Recorder:
    """Pods in, lines out."""

    def __init__(self, writer: TraceWriter, look_up: LookUp) -> None:
        self._writer = writer
        self._look_up = look_up
        self._waiting: dict[str, tuple[Pod, float]] = {}  # uid -> pod whose claims are not known yet
        self._written: dict[str, str] = {}  # uid -> phase written last
        self.pods = 0

    @property
    def unknown(self) -> int:
        """Return how many pods wait for claims or templates that nobody has made."""
        return len(self._waiting)

    def see(self, old: Pod | None, new: Pod | None, at: float) -> list[bytes]:
        """Take note of a change; return the lines to write."""
        lines: list[bytes] = []
        pod = new if new is not None else old
        assert pod is not None
        uid = pod.metadata.uid
        if new is not None and uid not in self._written and uid not in self._waiting:
            if new.status.phase not in TERMINAL_PHASES:
                self._waiting[uid] = (new, at)
        elif uid in self._waiting and new is not None:
            self._waiting[uid] = (new, self._waiting[uid][1])
        lines += self.retry()
        if uid in self._written:
            lines += self._moments(pod, is_gone=new is None, at=at)
        else:
            if new is None:
                self._waiting.pop(uid, None)
        return lines

    def retry(self) -> list[bytes]:
        """Write the pods whose claims have become known."""
        lines: list[bytes] = []
        for uid, (pod, at) in list(self._waiting.items()):
            claims = self._claims_of(pod)
            if claims is not None:
                del self._waiting[uid]
                self._written[uid] = ""
                self.pods += 1
                lines += self._writer.arrival(msgspec.to_builtins(pod), claims, at)
        return lines

    def _claims_of(self, pod: Pod) -> list[tuple[str, Any]] | None:
        found = []
        for entry in pod.spec.resource_claims:
            spec = self._look_up(
                pod.metadata.namespace,
                entry.resource_claim_template_name or "",
                entry.resource_claim_name or "",
            )
            if spec is None:
                return None
            found.append((entry.name, msgspec.to_builtins(spec)))
        return found

    def _moments(self, pod: Pod, *, is_gone: bool, at: float) -> list[bytes]:
        uid, phase = pod.metadata.uid, pod.status.phase
        before = self._written[uid]
        has_ended = is_gone or phase in TERMINAL_PHASES
        lines = []
        if before == "" and (phase == "Running" or (has_ended and pod.spec.node_name)):
            lines.append(self._writer.moment(key_of(pod.metadata), "started", at))
            self._written[uid] = "started"
        if has_ended and before != "ended":
            lines.append(self._writer.moment(key_of(pod.metadata), "ended", at))
            self._written[uid] = "ended"
        return lines
