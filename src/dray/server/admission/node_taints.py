"""TaintNodesByCondition and DefaultTolerationSeconds: nodes that are not ready, and pods that wait for them.

A new node carries the taint not-ready until its first heartbeat, so nothing is
placed on it too early. Pods get five minutes of patience with nodes that become
not ready or unreachable later.
"""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.well_known import NOT_READY_KEY, UNREACHABLE_KEY
from dray.server.admission.admission_plugin import BasePlugin, target_of
from dray.server.requests import Call


@dataclass(slots=True)
class TaintNodesByCondition(BasePlugin):
    """Taint new nodes as not ready."""

    name: str = "TaintNodesByCondition"

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Add the taint unless it is there."""
        if operation != "CREATE" or target_of(call) != ("", "nodes", ""):
            return
        spec = new.get("spec") or {}
        taints = spec.get("taints") or []
        if not any(
            taint.get("key") == NOT_READY_KEY and taint.get("effect") == "NoSchedule" for taint in taints
        ):
            new["spec"] = {**spec, "taints": [*taints, {"key": NOT_READY_KEY, "effect": "NoSchedule"}]}


@dataclass(slots=True)
class DefaultTolerationSeconds(BasePlugin):
    """Let pods bear troubled nodes for a while."""

    name: str = "DefaultTolerationSeconds"
    seconds: int = 300

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Add the tolerations that the pod does not bring itself."""
        if target_of(call) != ("", "pods", "") or not isinstance(new.get("spec"), dict):
            return
        tolerations = list(new["spec"].get("tolerations") or ())
        for key in (NOT_READY_KEY, UNREACHABLE_KEY):
            if not any(_covers(toleration, key) for toleration in tolerations):
                tolerations.append(
                    {
                        "key": key,
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": self.seconds,
                    }
                )
        new["spec"]["tolerations"] = tolerations


def _covers(toleration: JsonObject, key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in ("NoExecute", "")
