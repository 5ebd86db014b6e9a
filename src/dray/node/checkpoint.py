"""The node's record of claims on disk, in kubelet's own format.

`dra_manager_state` is JSON with two fields: `Data`, itself JSON as text, and
`Checksum`, the CRC-32 of that text. The names inside are Go's field names. A node
can therefore change from kubelet to dray and back without forgetting a claim.

Writing happens in a thread, whole and atomically. Many pods may ask at the same
time; they share writes: one that starts after the asking covers all who asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dray.api.parsing import load_json
from dray.driver.state import write_atomically
from dray.node.claims import ClaimInfo, ClaimKey, HeldDevice

FILE_NAME = "dra_manager_state"
KIND, API_VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class CorruptCheckpointError(Exception):
    """The checkpoint is damaged; it was set aside."""


def encode(claims: Iterable[ClaimInfo]) -> bytes:
    """Write claims as kubelet would."""
    listed = [
        {
            "ClaimUID": info.uid,
            "ClaimName": info.key.name,
            "Namespace": info.key.namespace,
            "PodUIDs": {uid: {} for uid in sorted(info.pod_uids)},
            "DriverState": {
                driver: {"Devices": [_device_to_json(device) for device in devices] or None}
                for driver, devices in sorted(info.devices_by_driver.items())
            },
        }
        for info in claims
    ]
    data = json.dumps(
        {"kind": KIND, "apiVersion": API_VERSION, "ClaimInfoStateList": listed or None}, separators=(",", ":")
    )
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}, separators=(",", ":")).encode()


def decode(content: bytes) -> list[ClaimInfo]:
    """Read claims; raise ValueError with the reason when the text is not what was written."""
    outer = load_json(content)
    data = outer["Data"]
    actual = zlib.crc32(data.encode())
    if actual != outer["Checksum"]:
        raise ValueError(f"checksum is {actual}, the file says {outer['Checksum']}")
    inner = load_json(data)
    if inner.get("kind") != KIND or inner.get("apiVersion") != API_VERSION:
        raise ValueError(f"it holds {inner.get('kind')} {inner.get('apiVersion')}, not {KIND} {API_VERSION}")
    return [_info_from_json(entry) for entry in inner.get("ClaimInfoStateList") or ()]


def _device_to_json(device: HeldDevice) -> dict[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "ShareID": device.share_id,
        "RequestNames": list(device.requests) or None,
        "CDIDeviceIDs": list(device.cdi_device_ids) or None,
    }


def _info_from_json(entry: dict[str, Any]) -> ClaimInfo:
    return ClaimInfo(
        key=ClaimKey(entry["Namespace"], entry["ClaimName"]),
        uid=entry["ClaimUID"],
        pod_uids=set(entry.get("PodUIDs") or ()),
        devices_by_driver={
            driver: [
                HeldDevice(
                    pool=device.get("PoolName", ""),
                    device=device.get("DeviceName", ""),
                    share_id=device.get("ShareID"),
                    requests=tuple(device.get("RequestNames") or ()),
                    cdi_device_ids=tuple(device.get("CDIDeviceIDs") or ()),
                )
                for device in state.get("Devices") or ()
            ]
            for driver, state in (entry.get("DriverState") or {}).items()
        },
    )


class CheckpointFile:
    """The file, and the shared writing of it."""

    def __init__(self, path: Path, snapshot: Callable[[], Iterable[ClaimInfo]]) -> None:
        self.path = path
        self._snapshot = snapshot
        self._lock = asyncio.Lock()
        self._asked = 0
        self._written = 0

    def load(self) -> list[ClaimInfo]:
        """Read the claims; none if there is no file. A damaged file is set aside: CorruptCheckpointError."""
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = self.path.with_name(f"{self.path.name}.corrupt")
            os.replace(self.path, aside)
            raise CorruptCheckpointError(
                f"checkpoint {self.path} is damaged ({error}); it was moved to {aside}"
            ) from error

    async def commit(self) -> None:
        """Return when the state as of now (or newer) is on disk."""
        self._asked += 1
        ticket = self._asked
        async with self._lock:
            if self._written >= ticket:
                return
            covers = self._asked
            content = encode(self._snapshot())
            await asyncio.to_thread(write_atomically, self.path, content, 0o600)
            self._written = covers
