"""Who holds what, as Prometheus series: a function of the inventory.

Names follow kube-state-metrics (`kube_<resource>_<field>`) where a series shows fields of an object, and begin
with `dray_` where it is computed. `SERIES` is the table of all of them; docs/observability.md has the same, and
a test compares the two.

The number of series is bounded: those with a `device` or `resourceclaim` label are written for at most
`max_devices` devices and claims (in the order of their names, so that the same ones stay), and
`dray_exporter_omitted` says how many were left out. Sums (`dray_devices`, `dray_namespace_devices`,
`dray_fragmentation_ratio`) always count all. Label values come from published objects, whose lengths the API
bounds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from dray.api.quantity import parse_quantity
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.workbench.inventory import DeviceRow, Inventory, requested_class

Sample = tuple[Mapping[str, str], float]


class Family(NamedTuple):
    """The samples of one gauge."""

    name: str
    help: str
    samples: Sequence[Sample]


# name -> (help, labels)
SERIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "kube_resourceslice_device_info": (
        "A published device.",
        ("driver", "pool", "device", "node", "model", "uuid"),
    ),
    "kube_resourceslice_device_taint": (
        "A taint of a device, by its driver or by a DeviceTaintRule.",
        ("driver", "pool", "device", "node", "key", "effect"),
    ),
    "kube_resourceclaim_status_phase": (
        "The phase of a claim: pending, allocated, or reserved for pods.",
        ("namespace", "resourceclaim", "phase"),
    ),
    "kube_resourceclaim_status_allocated_device": (
        "A device that a claim holds, once for each pod that it is reserved for.",
        (
            "namespace",
            "resourceclaim",
            "request",
            "device_class",
            "driver",
            "pool",
            "device",
            "node",
            "pod",
            "admin_access",
        ),
    ),
    "kube_resourceclaim_status_consumed_capacity": (
        "How much of a shared device's capacity a claim holds.",
        ("namespace", "resourceclaim", "driver", "pool", "device", "capacity"),
    ),
    "dray_device_utilization_ratio": (
        "How much of a device is allocated, from 0 to 1.",
        ("driver", "pool", "device", "node"),
    ),
    "dray_devices": (
        "Devices by state: free, used, shared, blocked by a partition in use, tainted.",
        ("driver", "node", "state"),
    ),
    "dray_namespace_devices": (
        "Devices that the claims of a namespace hold.",
        ("namespace", "driver", "device_class"),
    ),
    "dray_fragmentation_ratio": (
        "Share of a driver's free devices that are on nodes where others of its devices are in use.",
        ("driver",),
    ),
    "dray_exporter_omitted": (
        "Devices and claims without series of their own, because there are more than --max-devices.",
        ("resource",),
    ),
}


def usage_series(inventory: Inventory, max_devices: int) -> list[Family]:
    """Return all families; at most `max_devices` devices and claims have series of their own."""
    rows = [inventory.devices[key] for key in sorted(inventory.devices)]
    claims = sorted(inventory.snapshot.claims, key=lambda claim: key_of(claim.metadata))
    shown_rows, shown_claims = rows[:max_devices], claims[:max_devices]
    claims_by_key = {key_of(claim.metadata): claim for claim in claims}
    samples: dict[str, Iterator[Sample]] = {
        "kube_resourceslice_device_info": (
            (_labels(row, model=row.model, uuid=row.attribute("uuid")), 1) for row in shown_rows
        ),
        "kube_resourceslice_device_taint": (
            (_labels(row, key=taint.key, effect=taint.effect), 1)
            for row in shown_rows
            for taint in row.taints
        ),
        "kube_resourceclaim_status_phase": (
            ({**_claim_labels(claim), "phase": phase_of(claim)}, 1) for claim in shown_claims
        ),
        "kube_resourceclaim_status_allocated_device": _once(
            islice(_holders(shown_rows, claims_by_key), 4 * max_devices)
        ),
        "kube_resourceclaim_status_consumed_capacity": _once(
            islice(_consumed(shown_rows, claims_by_key), 4 * max_devices)
        ),
        "dray_device_utilization_ratio": ((_labels(row), round(row.utilisation, 6)) for row in shown_rows),
        "dray_devices": _states(rows),
        "dray_namespace_devices": _by_namespace(rows, claims_by_key),
        "dray_fragmentation_ratio": _fragmentation(inventory),
        "dray_exporter_omitted": iter(
            [
                ({"resource": "devices"}, len(rows) - len(shown_rows)),
                ({"resource": "resourceclaims"}, len(claims) - len(shown_claims)),
            ]
        ),
    }
    return [Family(name, text, list(samples[name])) for name, (text, _) in SERIES.items()]


def phase_of(claim: ResourceClaim) -> str:
    """Return how far a claim is: pending, allocated or reserved."""
    if claim.status.allocation is None:
        return "pending"
    return "reserved" if claim.status.reserved_for else "allocated"


def _labels(row: DeviceRow, **more: str) -> dict[str, str]:
    return {"driver": row.driver, "pool": row.pool, "device": row.device.name, "node": row.node, **more}


def _claim_labels(claim: ResourceClaim) -> dict[str, str]:
    return {"namespace": claim.metadata.namespace, "resourceclaim": claim.metadata.name}


def _holders(rows: Sequence[DeviceRow], claims: dict[str, ResourceClaim]) -> Iterator[Sample]:
    for row in rows:
        for use in row.uses:
            namespace, _, name = use.claim.partition("/")
            for pod in use.pods or [""]:
                yield (
                    {
                        "namespace": namespace,
                        "resourceclaim": name,
                        "request": use.request,
                        "device_class": requested_class(claims.get(use.claim), use.request),
                        **_labels(row),
                        "pod": pod,
                        "admin_access": str(use.is_admin).lower(),
                    },
                    1,
                )


def _consumed(rows: Sequence[DeviceRow], claims: dict[str, ResourceClaim]) -> Iterator[Sample]:
    for row in rows:
        for use in row.uses:
            claim = claims.get(use.claim)
            for capacity, amount in use.consumed.items() if claim is not None else ():
                labels = {**_claim_labels(claim), "driver": row.driver, "pool": row.pool} if claim else {}
                value = parse_quantity(amount).as_approximate_float()
                yield {**labels, "device": row.device.name, "capacity": capacity}, value


def _once(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Add up samples with equal labels (two shares of one device in one claim): a series may occur once."""
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    is_info = True
    for labels, value in samples:
        key = tuple(labels.items())
        is_info = is_info and "capacity" not in labels
        sums[key] = 1 if is_info else sums.get(key, 0) + value
    for key, value in sums.items():
        yield dict(key), value


def _states(rows: Sequence[DeviceRow]) -> Iterator[Sample]:
    # Free partitions of a GPU are alternatives, not hardware: only those in use count.
    counts = Counter((row.driver, row.node, row.state) for row in rows if not row.is_partition or row.holders)
    for (driver, node, state), count in sorted(counts.items()):
        yield {"driver": driver, "node": node, "state": state}, count


def _by_namespace(rows: Sequence[DeviceRow], claims: dict[str, ResourceClaim]) -> Iterator[Sample]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        for use in row.holders:
            counts[
                use.claim.partition("/")[0], row.driver, requested_class(claims.get(use.claim), use.request)
            ] += 1
    for (namespace, driver, device_class), count in sorted(counts.items()):
        yield {"namespace": namespace, "driver": driver, "device_class": device_class}, count


def _fragmentation(inventory: Inventory) -> Iterator[Sample]:
    free: Counter[str] = Counter()
    stranded: Counter[str] = Counter()
    by_driver_and_node: dict[tuple[str, str], list[DeviceRow]] = defaultdict(list)
    for pool in inventory.pools:
        for row in pool.countable:
            by_driver_and_node[row.driver, row.node].append(row)
    for (driver, _node), rows in by_driver_and_node.items():
        n_free = sum(row.state == "free" for row in rows)
        free[driver] += n_free
        if any(row.holders or row.state == "blocked" for row in rows):
            stranded[driver] += n_free
    for driver in sorted({driver for driver, _ in by_driver_and_node}):
        yield {"driver": driver}, round(stranded[driver] / free[driver], 6) if free[driver] else 0.0
