"""The device series on the /metrics of `dray server`, which stores the objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dray.api.codec import decode
from dray.api.core import Node
from dray.api.kinds import RESOURCE, Kind, kind_of
from dray.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dray.server import Cluster
from dray.server.objects import prefix_of
from dray.server.store import Event, Record
from dray.workbench.device_metrics import DeviceMetrics

if TYPE_CHECKING:
    from dray.sim.snapshot import Snapshot

# attribute of Snapshot -> (group, kind, view)
_STORED: dict[str, tuple[str, str, Any]] = {
    "nodes": ("", "Node", Node),
    "slices": (RESOURCE, "ResourceSlice", ResourceSlice),
    "claims": (RESOURCE, "ResourceClaim", ResourceClaim),
    "taint_rules": (RESOURCE, "DeviceTaintRule", DeviceTaintRule),
}


def server_device_metrics(cluster: Cluster, max_devices: int) -> DeviceMetrics:
    """Return the series of what the server stores."""
    kinds = {attribute: _kind(group, name) for attribute, (group, name, _) in _STORED.items()}

    def gather() -> Callable[[], Snapshot]:
        records = {
            attribute: cluster.store.list(prefix_of(kind)).records for attribute, kind in kinds.items()
        }
        # Stored objects are bytes: they are decoded in the thread, each time anew, because views of a
        # large fleet would take more memory than the store itself.
        return lambda: _snapshot(records)

    metrics = DeviceMetrics(gather, max_devices)
    prefix, kind = prefix_of(kinds["claims"]), kinds["claims"]

    def observe(event: Event) -> None:
        if event.record is None or event.previous is None or not event.key.startswith(prefix):
            return
        new = cluster.objects.decoded(kind, event.record)
        if not _is_allocated(new):
            return
        # Most updates of an allocated claim come after its allocation; one without the word is not allocated.
        if b'"allocation"' in event.previous.value and _is_allocated(
            cluster.objects.decoded_past(kind, event.previous)
        ):
            return
        metrics.claim_waits.allocated(new["metadata"].get("creationTimestamp"))

    cluster.store.observe(observe)
    return metrics


def _kind(group: str, name: str) -> Kind:
    found = kind_of(group, name)
    assert found is not None
    return found


def _snapshot(records: dict[str, list[Record]]) -> Snapshot:
    from dray.sim.snapshot import Snapshot

    snapshot = Snapshot()
    for attribute, found in records.items():
        getattr(snapshot, attribute).extend(decode(_STORED[attribute][2], record.value) for record in found)
    return snapshot


def _is_allocated(claim: Any) -> bool:
    return bool((claim.get("status") or {}).get("allocation"))
