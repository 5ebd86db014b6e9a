"""Devices as a driver published them, word for word: entries of kind `published` in a profile.

`dray profile from-cluster` writes such entries from the ResourceSlices of a real node, `dray up --from` makes
the nodes of a copied cluster from them, and anybody may write one for a driver that dray has no model of:

    - kind: published
      driver: npu.example.com
      pool: "{node}"            # the default
      devices:                  # as in spec.devices of a ResourceSlice, resource.k8s.io/v1
      - name: npu-0
        attributes: {uuid: {string: "NPU-{uuid}"}}
      sharedCounters: []

In texts `{node}` stands for the name of the node, and `{uuid}` for a UUID that differs between nodes,
devices and attributes and stays the same over restarts.
"""

from __future__ import annotations

from typing import Any

from dray.api.codec import to_view
from dray.api.kinds import RESOURCE
from dray.api.reading import read
from dray.api.resource import ResourceSlice
from dray.api.schema import schema_of
from dray.drivers.hardware.attributes import Entry, stable_uuid
from dray.drivers.hardware.pools import PoolModel

_FIELDS = frozenset(["kind", "driver", "pool", "devices", "sharedCounters"])


def published(entry: Entry, node: str) -> PoolModel:
    """Return the pool of one entry; raise ValueError for one that the API would not take."""
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(unknown)}; known: {', '.join(sorted(_FIELDS))}")
    driver, pool = str(entry["driver"]), str(entry.get("pool") or "{node}").replace("{node}", node)
    spec: dict[str, Any] = {
        "driver": driver,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "nodeName": node,
    }
    for field in ("devices", "sharedCounters"):
        if entry.get(field):
            spec[field] = _filled(entry[field], node, (node, driver, pool))
    body = {"apiVersion": f"{RESOURCE}/v1", "kind": "ResourceSlice", "metadata": {"name": "x"}, "spec": spec}
    stored, complaints = read(schema_of(RESOURCE, "v1", "ResourceSlice"), body)
    if complaints:
        raise ValueError("; ".join(str(complaint) for complaint in complaints))
    made = to_view(ResourceSlice, stored).spec
    return PoolModel(driver, pool, tuple(made.devices), tuple(made.shared_counters), node)


def _filled(value: Any, node: str, place: tuple[str, ...]) -> Any:
    """Return a value with the placeholders of its texts filled in; `place` makes the UUIDs differ."""
    if isinstance(value, dict):
        return {key: _filled(item, node, (*place, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, node, (*place, str(index))) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    value = value.replace("{node}", node)
    return value.replace("{uuid}", stable_uuid(*place)) if "{uuid}" in value else value
