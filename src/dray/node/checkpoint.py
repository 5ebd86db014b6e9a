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

import msgspec

from dray.api.parsing import load_json
from dray.host.files import write_atomically
from dray.node.claims import ClaimInfo, ClaimKey, HeldDevice

FILE_NAME = "dra_manager_state"
MAX_BYTES = 64 << 20  # a node's claims need a few hundred bytes each
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


class _Outer(msgspec.Struct):
    data: str = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


class _Device(msgspec.Struct):
    pool: str = msgspec.field(name="PoolName", default="")
    device: str = msgspec.field(name="DeviceName", default="")
    share_id: str | None = msgspec.field(name="ShareID", default=None)
    requests: list[str] | None = msgspec.field(name="RequestNames", default=None)
    cdi_device_ids: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)


class _Driver(msgspec.Struct):
    devices: list[_Device] | None = msgspec.field(name="Devices", default=None)


class _Claim(msgspec.Struct):
    uid: str = msgspec.field(name="ClaimUID")
    name: str = msgspec.field(name="ClaimName")
    namespace: str = msgspec.field(name="Namespace")
    pod_uids: dict[str, Any] | None = msgspec.field(name="PodUIDs", default=None)
    drivers: dict[str, _Driver] | None = msgspec.field(name="DriverState", default=None)


class _Inner(msgspec.Struct):
    kind: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    claims: list[_Claim] | None = msgspec.field(name="ClaimInfoStateList", default=None)


def decode(content: bytes) -> list[ClaimInfo]:
    """Read claims; raise ValueError with the reason when the text is not what was written."""
    outer = load_json(content, _Outer, max_bytes=MAX_BYTES)
    actual = zlib.crc32(outer.data.encode())
    if actual != outer.checksum:
        raise ValueError(f"checksum is {actual}, the file says {outer.checksum}")
    inner = load_json(outer.data, _Inner, max_bytes=MAX_BYTES)
    if inner.kind != KIND or inner.api_version != API_VERSION:
        raise ValueError(f"it holds {inner.kind} {inner.api_version}, not {KIND} {API_VERSION}")
    return [_info_of(claim) for claim in inner.claims or ()]


def _device_to_json(device: HeldDevice) -> dict[str, Any]:
    return {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "ShareID": device.share_id,
        "RequestNames": list(device.requests) or None,
        "CDIDeviceIDs": list(device.cdi_device_ids) or None,
    }


def _info_of(claim: _Claim) -> ClaimInfo:
    return ClaimInfo(
        key=ClaimKey(claim.namespace, claim.name),
        uid=claim.uid,
        pod_uids=set(claim.pod_uids or ()),
        devices_by_driver={
            driver: [
                HeldDevice(
                    pool=device.pool,
                    device=device.device,
                    share_id=device.share_id,
                    requests=tuple(device.requests or ()),
                    cdi_device_ids=tuple(device.cdi_device_ids or ()),
                )
                for device in state.devices or ()
            ]
            for driver, state in (claim.drivers or {}).items()
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
            with self.path.open("rb") as file:
                return decode(file.read(MAX_BYTES + 1))
        except FileNotFoundError:
            return []
        except ValueError as error:
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
