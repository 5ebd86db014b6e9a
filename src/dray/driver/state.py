"""What a driver has prepared, in one file that survives kill -9.

One JSON file holds all claims of one driver on one node. It is written whole, to a
new file that is renamed over the old one: after a kill there is the old file or the
new one, never half of one. `sync` then waits for the disk, before anybody is told
of the result. A checksum detects damage, a hand edit or a torn write.

A claim is recorded *before* the driver is asked to prepare it ("started"),
and its result is recorded before the node hears of it ("completed"). So
whatever the driver did is always found again: a started claim is prepared again
or unprepared, a completed one is answered from the file.

A reboot undoes what was done to hardware, and empties /run where the CDI files
are. The file therefore carries the boot id; after a reboot every completed claim
counts as started only, and is prepared anew when the node asks.

A file that cannot be read is set aside, not deleted, and the caller is told;
what to do then is a decision (see `running`), not a matter of storage.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import ContainerEdits
from dray.api.parsing import load_json
from dray.api.resource import AllocatedDeviceStatus, DeviceAttribute
from dray.host.files import sync_directory, write_atomically

FORMAT = "dray.driver/v1"


class RecordedDevice(msgspec.Struct, omit_defaults=True, frozen=True):
    """One device of a recorded claim."""

    request: str
    pool: str
    device: str
    share_id: str | None = None
    full_request: str = ""  # with the alternative that was taken: `request/subrequest`
    admin_access: bool = False
    edits: ContainerEdits = ContainerEdits()
    given_cdi_device_ids: list[str] = []  # from the driver
    cdi_device_ids: list[str] = []  # as answered to the node
    attributes: dict[str, DeviceAttribute] = {}
    status: AllocatedDeviceStatus | None = None
    private: Any = None


class RecordedClaim(msgspec.Struct, omit_defaults=True, frozen=True):
    """One claim that was started, and perhaps completed."""

    namespace: str
    name: str
    uid: str
    devices: list[RecordedDevice] = []
    is_complete: bool = False
    pod_claim_name: str | None = None  # the entry of the pod, for a claim made from a template


class _Records(msgspec.Struct):
    format: str = FORMAT
    boot_id: str = ""
    claims: list[RecordedClaim] = []


class _Sealed(msgspec.Struct):
    records: msgspec.Raw = msgspec.field(name="book")  # its name in the file since the first version
    checksum: int  # crc32 of the bytes of the records


class StateError(Exception):
    """The state file cannot be read or written."""


class CorruptStateError(StateError):
    """The state file is damaged; it was set aside."""


class StateFile:
    """The recorded claims, kept in memory and on disk alike."""

    def __init__(self, path: Path, boot_id: str = "") -> None:
        self.path = path
        self.claims_by_uid: dict[str, RecordedClaim] = {}
        self._boot_id = boot_id
        self._seen: tuple[int, int, int] | None = None  # which file `claims_by_uid` came from
        self._n_written = 0
        self._n_synced = 0
        self._syncing = asyncio.Lock()

    def load(self) -> None:
        """Read the file; without one nothing is recorded. A damaged one is set aside and CorruptStateError says where.

        Cheap when nobody else has written since: during a rolling update two
        instances of a driver share the file, so each looks before it acts.
        """
        try:
            seen = _identity(self.path)
            if seen == self._seen:
                return
            content = self.path.read_bytes()
        except FileNotFoundError:
            self.claims_by_uid, self._seen = {}, None
            return
        except OSError as error:
            raise StateError(f"cannot read {self.path}: {error.strerror}") from error
        try:
            records = _open(content)
        except (msgspec.MsgspecError, ValueError) as error:
            aside = self.path.with_name(f"{self.path.name}.corrupt")
            os.replace(self.path, aside)
            self.claims_by_uid, self._seen = {}, None
            raise CorruptStateError(
                f"state file {self.path} is damaged ({error}); it was moved to {aside} and a new one begins empty"
            ) from error
        self._seen = seen
        is_same_boot = records.boot_id == self._boot_id
        self.claims_by_uid = {
            claim.uid: claim if is_same_boot else msgspec.structs.replace(claim, is_complete=False)
            for claim in records.claims
        }

    def record(self, claim: RecordedClaim) -> None:
        """Enter or replace a claim. It survives a kill at once, and a power cut after `sync`."""
        self._write({**self.claims_by_uid, claim.uid: claim})

    def forget(self, uid: str) -> None:
        """Strike a claim out; nothing happens if it is not there. `sync` makes it last."""
        if uid in self.claims_by_uid:
            self._write({known: claim for known, claim in self.claims_by_uid.items() if known != uid})

    async def sync(self) -> None:
        """Return when everything written so far is safe on disk.

        Waiting for a disk takes longer than all else in a prepare, so the wait is in a thread, and
        claims that arrive meanwhile share the next one.
        """
        wanted = self._n_written
        async with self._syncing:
            if self._n_synced >= wanted:
                return
            covers = self._n_written
            try:
                await asyncio.to_thread(_sync_file, self.path)
            except OSError as error:
                raise StateError(f"cannot sync {self.path}: {error.strerror}") from error
            self._n_synced = covers

    def _write(self, claims_by_uid: dict[str, RecordedClaim]) -> None:
        records = msgspec.json.encode(_Records(boot_id=self._boot_id, claims=list(claims_by_uid.values())))
        sealed = msgspec.json.encode(_Sealed(msgspec.Raw(records), zlib.crc32(records)))
        try:
            write_atomically(self.path, sealed, 0o600, durable=False)
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error.strerror}") from error
        # Memory follows the disk, never leads it: a failed write changes nothing.
        self.claims_by_uid, self._seen = claims_by_uid, _identity(self.path)
        self._n_written += 1


class MemoryState(StateFile):
    """The same, kept in memory only: for simulated nodes, whose hardware ends with the process."""

    def __init__(self) -> None:
        super().__init__(Path())

    def load(self) -> None:
        """There is nothing to read."""

    async def sync(self) -> None:
        """There is nothing to wait for."""

    def _write(self, claims_by_uid: dict[str, RecordedClaim]) -> None:
        self.claims_by_uid = claims_by_uid


def _sync_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # nothing was ever written
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sync_directory(path.parent)


def _identity(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def read_boot_id() -> str:
    """Return what identifies this boot of the machine; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _open(content: bytes) -> _Records:
    sealed = load_json(content, _Sealed)
    actual = zlib.crc32(bytes(sealed.records))
    if actual != sealed.checksum:
        raise ValueError(f"checksum is {actual}, the file says {sealed.checksum}")
    records: _Records = load_json(bytes(sealed.records), _Records)
    if records.format != FORMAT:
        raise ValueError(f"format is {records.format!r}, this version reads {FORMAT!r}")
    return records
