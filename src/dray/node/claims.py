"""Which pods of this node hold which claims, and what drivers made of them: the records, without I/O.

A claim is recorded when the first pod reserves it and leaves when the last
pod has released it and every driver has unprepared it. Pods may share a claim;
the second finds it prepared. The rules are kubelet's:

  * one name is one claim: a claim with the same name and another UID is refused
    until the old one is gone;
  * a claim that is being unprepared cannot be reserved: its pod must try again;
  * what a driver answered is the truth about (claim, driver), also when it answers
    differently the second time;
  * `is_prepared` is not in the checkpoint. After a restart every driver is asked
    again, which is why drivers must be idempotent.

Each change is a method that returns what to do next; the caller writes the
checkpoint before it acts (see `preparing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class ClaimKey(NamedTuple):
    """A claim by name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device that a driver has prepared."""

    pool: str
    device: str
    share_id: str | None = None
    requests: tuple[str, ...] = ()  # empty means: every request
    cdi_device_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class ClaimInfo:
    """One claim on this node."""

    key: ClaimKey
    uid: str
    pod_uids: set[str] = field(default_factory=set)
    devices_by_driver: dict[str, list[HeldDevice]] = field(default_factory=dict)
    is_prepared: bool = False
    is_unpreparing: bool = False
    skips_unprepare: frozenset[str] = frozenset()  # drivers; not in the checkpoint, where calling is harmless


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """What the API server says of a claim that a pod uses, after it was found fit for use."""

    key: ClaimKey
    uid: str
    drivers: Sequence[str]  # of the allocated devices, each once
    skips_prepare: frozenset[str] = frozenset()  # drivers that want no prepare call
    skips_unprepare: frozenset[str] = frozenset()


class ClaimRefused(Exception):
    """The claim cannot be used now; the text says why, and trying later may help."""


class ClaimNotReserved(ClaimRefused):
    """Nothing is wrong with the claim: the scheduler has not given it to the pod yet."""


class ClaimRecords:
    """All claims of this node."""

    def __init__(self) -> None:
        self.infos: dict[ClaimKey, ClaimInfo] = {}

    def restore(self, infos: Iterable[ClaimInfo]) -> None:
        """Begin with the checkpoint of a previous life."""
        self.infos = {info.key: info for info in infos}

    def reserve(self, pod_uid: str, claims: Sequence[ClaimFacts]) -> list[ClaimFacts]:
        """Enter the pod at all claims, or at none; return the claims that drivers must still prepare."""
        for facts in claims:
            info = self.infos.get(facts.key)
            if info is None:
                continue
            if info.uid != facts.uid:
                raise ClaimRefused(
                    f"claim {facts.key}: an older claim of that name (UID {info.uid}) is still in use on this node"
                )
            if info.is_unpreparing:
                raise ClaimRefused(f"claim {facts.key} is being unprepared")
        for facts in claims:
            info = self.infos.setdefault(facts.key, ClaimInfo(facts.key, facts.uid))
            info.pod_uids.add(pod_uid)
            info.skips_unprepare = facts.skips_unprepare
            for driver in facts.drivers:
                info.devices_by_driver.setdefault(driver, [])
        return [facts for facts in claims if not self.infos[facts.key].is_prepared]

    def record(self, key: ClaimKey, driver: str, devices: Sequence[HeldDevice]) -> None:
        """Enter what a driver answered."""
        self.infos[key].devices_by_driver[driver] = list(devices)

    def mark_prepared(self, key: ClaimKey) -> None:
        """Say that every driver has answered."""
        self.infos[key].is_prepared = True

    def release(self, pod_uid: str, keep: Collection[ClaimKey] = ()) -> list[ClaimInfo]:
        """Strike the pod out; return the claims that it was the last to hold: these must be unprepared.

        It keeps the claims in `keep`. Calling it again returns claims whose unprepare has not succeeded yet.
        """
        last = []
        for info in self.infos.values():
            if pod_uid not in info.pod_uids or info.key in keep:
                continue
            if len(info.pod_uids) == 1:
                # The reference stays until the drivers are done, so that a crash is found again.
                info.is_unpreparing = True
                info.is_prepared = False
                last.append(info)
            else:
                info.pod_uids.discard(pod_uid)
        return last

    def forget(self, key: ClaimKey) -> None:
        """Strike out a claim that every driver has unprepared."""
        self.infos.pop(key, None)

    def give_up_unpreparing(self, key: ClaimKey) -> None:
        """A driver failed: the claim stays in the records and may be unprepared again."""
        if key in self.infos:
            self.infos[key].is_unpreparing = False

    def held_by(self, pod_uid: str) -> set[ClaimKey]:
        """Return the claims that a pod is entered at."""
        return {key for key, info in self.infos.items() if pod_uid in info.pod_uids}

    def pods(self) -> set[str]:
        """Return the pods that hold claims."""
        return {uid for info in self.infos.values() for uid in info.pod_uids}

    def cdi_ids(self, references: Iterable[tuple[ClaimKey, str]]) -> list[str]:
        """Return the CDI names for a container that uses these (claim, request) pairs, each name once.

        An empty request means the whole claim; a device that names no requests serves all.
        """
        ids: dict[str, None] = {}
        for key, request in references:
            for _, device in self.devices_for(key, request):
                ids.update(dict.fromkeys(device.cdi_device_ids))
        return list(ids)

    def devices_for(self, key: ClaimKey, request: str) -> list[tuple[str, HeldDevice]]:
        """Return (driver, device) for one request of a claim, or for all."""
        info = self.infos.get(key)
        if info is None:
            return []
        return [
            (driver, device)
            for driver, devices in info.devices_by_driver.items()
            for device in devices
            if not request or not device.requests or request in device.requests
        ]


def group_by_driver(claims: Iterable[ClaimFacts]) -> Mapping[str, list[ClaimFacts]]:
    """Return which claims each driver has to prepare: a driver is called once for all of them."""
    found: dict[str, list[ClaimFacts]] = {}
    for facts in claims:
        for driver in facts.drivers:
            found.setdefault(driver, []).append(facts)
    return found
