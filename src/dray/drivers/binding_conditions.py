"""Sets the binding conditions of modelled devices, as the controller of a real driver would.

A device with binding conditions is allocated first, and its pod is bound only when all of
them are true in the claim's `status.devices`. `ready_devices` decides what to write;
`satisfy_binding_conditions` watches claims and writes it for the devices of one pool.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from dray.api.meta import Condition
from dray.api.resource import AllocatedDeviceStatus, ResourceClaim
from dray.api.times import format_time
from dray.client import Client, ClientError, Informer
from dray.client.resources import CLAIMS
from dray.drivers.hardware import PoolModel
from dray.host.clock import utc_now

log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0


def has_conditions(model: PoolModel) -> bool:
    """Return whether any device of the pool makes pods wait."""
    return any(device.binding_conditions for device in model.devices)


def ready_devices(claim: ResourceClaim, driver: str, pool: str) -> list[AllocatedDeviceStatus] | None:
    """Return the driver's entries of `status.devices` with all conditions of the pool's devices true.

    None means: there is nothing to change.
    """
    allocation = claim.status.allocation
    if allocation is None:
        return None
    entries = {
        (entry.pool, entry.device, entry.share_id): entry
        for entry in claim.status.devices
        if entry.driver == driver
    }
    before = dict(entries)
    for result in allocation.devices.results:
        if (result.driver, result.pool) != (driver, pool) or not result.binding_conditions:
            continue
        key = (result.pool, result.device, result.share_id)
        entry = entries.get(key) or AllocatedDeviceStatus(
            driver=driver, pool=result.pool, device=result.device, share_id=result.share_id
        )
        true = {condition.type for condition in entry.conditions if condition.status == "True"}
        missing = [name for name in result.binding_conditions if name not in true]
        if not missing:
            continue
        kept = [condition for condition in entry.conditions if condition.type not in missing]
        made = [
            Condition(type=name, status="True", reason="Ready", message="Device is ready") for name in missing
        ]
        entries[key] = msgspec.structs.replace(entry, conditions=kept + made)
    return list(entries.values()) if entries != before else None


async def _write_ready_devices(client: Client, seen: ResourceClaim, driver: str, pool: str) -> None:
    meta = seen.metadata
    claim: dict[str, Any] = await client.get(CLAIMS, meta.name, meta.namespace)
    entries = ready_devices(msgspec.convert(claim, ResourceClaim), driver, pool)
    if entries is None or claim["metadata"]["uid"] != meta.uid:
        return
    written = [msgspec.to_builtins(entry) for entry in entries]
    for entry in written:
        for condition in entry["conditions"]:
            condition.setdefault("lastTransitionTime", format_time(utc_now()))
    others = [entry for entry in claim["status"].get("devices", ()) if entry["driver"] != driver]
    claim["status"]["devices"] = others + written
    await client.update(CLAIMS, meta.name, claim, meta.namespace, subresource="status")


async def satisfy_binding_conditions(client: Client, driver: str, pool: str) -> None:
    """Call the pool's devices ready as soon as they are allocated, until cancelled."""
    claims = Informer(client, CLAIMS, ResourceClaim)
    changed: asyncio.Queue[ResourceClaim] = asyncio.Queue()

    def see(_old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if new is not None and ready_devices(new, driver, pool) is not None:
            changed.put_nowait(new)

    claims.add_handler(see)
    async with asyncio.TaskGroup() as group:
        group.create_task(claims.run())
        while True:
            claim = await changed.get()
            meta = claim.metadata
            try:
                await _write_ready_devices(client, claim, driver, pool)
            except ClientError as error:
                log.warning("claim %s/%s: conditions not written: %s", meta.namespace, meta.name, error)
                known = claims.get(f"{meta.namespace}/{meta.name}")
                if known is not None:
                    await asyncio.sleep(RETRY_SECONDS)
                    see(None, known)
