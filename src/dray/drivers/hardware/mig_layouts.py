"""Partitions (MIG devices) of GPUs: how a GPU and its partitions are published, which layouts fit, and what else is possible.

A layout is the partitions that exist on one GPU, each a profile at a placement: `3g.20gb@4`. The empty layout is the
GPU as a whole. `published_gpus` reads GPUs and their layouts from devices, of a model or of a real driver;
`devices_of_layout` says what would be published with another layout, and `possible_devices` all devices that some layout has, over one
counter set, so that an allocator can find out which layout a set of claims needs.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dray.api.resource import Counter, CounterSet, Device, DeviceCapacity, DeviceCounterConsumption
from dray.drivers.hardware.attributes import Attributes, stable_uuid, text
from dray.drivers.hardware.gpus import GPU_MODELS, GpuModel, MigProfile

WHOLE = "whole"  # how the empty layout is written
MOST_PARTITIONS = 16  # of one GPU; no product has more
_DEVICE_NAME = re.compile(r"gpu-(?P<minor>\d{1,4})(-mig-\S+)?")
_MIG_NAME = re.compile(r"gpu-\d+-mig-.+-(?P<start>\d{1,2})")
_OWN_ATTRIBUTES = ("type", "uuid", "parentUUID", "profile")  # the others are those of the GPU
_MODEL_BY_PRODUCT = {model.product_name: model for model in GPU_MODELS.values()}


class LayoutError(ValueError):
    """A layout that the GPU cannot have; the message says why."""


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """One partition: a profile, and the memory slice where it begins."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """One GPU as its driver publishes it."""

    minor: int
    uuid: str
    attributes: Attributes  # that it shares with its partitions
    devices: tuple[Device, ...]  # the whole GPU, or its partitions
    model: GpuModel | None  # None: not a product that has partitions
    fixed_because: str = ""  # why its layout cannot be changed

    @property
    def name(self) -> str:
        """Return the name of the GPU, partitions or not."""
        return f"gpu-{self.minor}"

    @property
    def layout(self) -> tuple[Placement, ...]:
        """Return the partitions that exist; none when it is whole."""
        found = []
        for device in self.devices:
            profile = _string(device, "profile")
            match = _MIG_NAME.fullmatch(device.name)
            if profile and match is not None:
                found.append(Placement(int(match["start"]), profile))
        return tuple(sorted(found))


def layout_text(layout: Iterable[Placement]) -> str:
    """Return a layout for people: `3g.20gb + 2 x 1g.5gb`."""
    tally = Tally(each.profile for each in sorted(layout))
    return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in tally.items()) or WHOLE


# --- how devices look -----------------------------------------------------------


def kebab(name: str) -> str:
    """Turn a capacity name into a counter name.

    >>> kebab("copyEngines")
    'copy-engines'
    """
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


def amounts_of(model_or_profile: GpuModel | MigProfile) -> dict[str, str]:
    """Return the capacities of a GPU or of a partition."""
    amounts = {name: str(count) for name, count in model_or_profile.engines.amounts().items()}
    return amounts | {"memory": f"{model_or_profile.memory_mib}Mi"}


def counters_of(amounts: Mapping[str, str], memory_slices: range) -> dict[str, Counter]:
    """Return amounts and a run of memory slices as counters."""
    counters = {kebab(name): Counter(value=amount) for name, amount in amounts.items()}
    return counters | {f"memory-slice-{index}": Counter(value="1") for index in memory_slices}


def mig_name(minor: int, profile: MigProfile, start: int) -> str:
    """Return the name of a partition."""
    return f"gpu-{minor}-mig-{profile.label}-{profile.instance_profile_id}-{start}"


def mig_attributes(parent: str, profile: MigProfile, common: Attributes) -> Attributes:
    """Return what a partition says of itself; `common` is what it shares with its GPU."""
    return {"type": text("mig"), "parentUUID": text(parent), "profile": text(profile.name), **common}


def existing_mig_device(
    minor: int, parent: str, common: Attributes, profile: MigProfile, start: int
) -> Device:
    """Return a partition that exists: it has an identity of its own, and its memory slices are capacities."""
    capacity = {key: DeviceCapacity(value=amount) for key, amount in amounts_of(profile).items()}
    capacity |= {f"memorySlice{index}": DeviceCapacity(value="1") for index in _span(profile, start)}
    identity = f"MIG-{stable_uuid(parent, profile.name, start)}"
    attributes = mig_attributes(parent, profile, common) | {"uuid": text(identity)}
    return Device(name=mig_name(minor, profile, start), attributes=attributes, capacity=capacity)


def _span(profile: MigProfile, start: int) -> range:
    return range(start, start + profile.memory_slices)


def _string(device: Device, attribute: str) -> str:
    found = (device.attributes or {}).get(attribute)
    return (found.string or "") if found is not None else ""


# --- layouts --------------------------------------------------------------------


def profiles_by_name(model: GpuModel) -> dict[str, MigProfile]:
    """Return the profiles of a product."""
    return {profile.name: profile for profile in model.mig_profiles}


def parse_layout(model: GpuModel, texts: Sequence[str]) -> tuple[Placement, ...]:
    """Return the layout that `PROFILE` or `PROFILE@START` describe, each at its first free placement; raise LayoutError."""
    if len(texts) > MOST_PARTITIONS:
        raise LayoutError(f"{len(texts)} partitions; {model.product_name} cannot have so many")
    known = profiles_by_name(model)
    layout: list[Placement] = []
    taken: set[int] = set()
    for item in texts:
        name, _, place = str(item).partition("@")
        profile = known.get(name)
        if profile is None:
            raise LayoutError(
                f"{model.product_name} has no MIG profile {name[:40]!r}; it has {', '.join(known) or 'none'}"
            )
        starts = [start for start in profile.starts if not place or place == str(start)]
        start = next((start for start in starts if taken.isdisjoint(_span(profile, start))), None)
        if start is None:
            raise LayoutError(f"no place for {str(item)[:40]} beside the partitions before it")
        taken |= set(_span(profile, start))
        layout.append(Placement(start, name))
    if not has_engines(model, layout):
        raise LayoutError(f"{model.product_name} has too few engines for {layout_text(layout)}")
    return tuple(sorted(layout))


def has_engines(model: GpuModel, layout: Iterable[Placement]) -> bool:
    """Return whether the engines of a GPU suffice for its partitions; memory slices are not looked at."""
    profiles = profiles_by_name(model)
    used: Tally[str] = Tally()
    for each in layout:
        used.update(profiles[each.profile].engines.amounts())
    have = model.engines.amounts()
    return all(used[name] <= have[name] for name in have)


def filled_up(
    model: GpuModel, layout: Iterable[Placement], preferred: Iterable[Placement | str]
) -> tuple[Placement, ...]:
    """Return the layout with more partitions where there is room: the preferred ones first, as many as fit."""
    profiles = profiles_by_name(model)
    result = list(layout)
    taken = {index for each in result for index in _span(profiles[each.profile], each.start)}
    for wanted in preferred:
        name = wanted.profile if isinstance(wanted, Placement) else wanted
        profile = profiles.get(name)
        if profile is None:
            continue
        starts = (wanted.start,) if isinstance(wanted, Placement) else profile.starts
        for start in starts:
            span = _span(profile, start)
            more = [*result, Placement(start, name)]
            if taken.isdisjoint(span) and has_engines(model, more):
                result, taken = more, taken | set(span)
    return tuple(sorted(result))


# --- GPUs that are published ----------------------------------------------------


def published_gpus(devices: Iterable[Device]) -> list[PublishedGpu]:
    """Return the GPUs among the devices of one pool of `gpu.nvidia.com`."""
    members: dict[str, list[Device]] = {}
    minors: dict[str, int] = {}
    for device in devices:
        match = _DEVICE_NAME.fullmatch(device.name)
        kind = _string(device, "type")
        uuid = _string(device, "parentUUID" if kind == "mig" else "uuid")
        if match is not None and kind in ("gpu", "mig") and uuid:
            members.setdefault(uuid, []).append(device)
            minors[uuid] = int(match["minor"])
    return [_published(minors[uuid], uuid, tuple(found)) for uuid, found in members.items()]


def _published(minor: int, uuid: str, devices: tuple[Device, ...]) -> PublishedGpu:
    attributes = {
        name: value for name, value in (devices[0].attributes or {}).items() if name not in _OWN_ATTRIBUTES
    }
    model = _MODEL_BY_PRODUCT.get(_string(devices[0], "productName"))
    reason = ""
    if model is None or not model.mig_profiles:
        reason, model = "the product has no partitions, or is not known", None
    elif any(device.consumes_counters for device in devices):
        reason = "it offers all partitions already: the scheduler chooses them"
    elif any(device.allow_multiple_allocations for device in devices):
        reason = "it is shared"
    return PublishedGpu(minor, uuid, attributes, devices, model, reason)


def devices_of_layout(gpu: PublishedGpu, layout: Sequence[Placement]) -> list[Device]:
    """Return what is published of a GPU with a layout."""
    assert gpu.model is not None
    if not layout:
        return [_whole(gpu)]
    profiles = profiles_by_name(gpu.model)
    return [
        existing_mig_device(gpu.minor, gpu.uuid, gpu.attributes, profiles[each.profile], each.start)
        for each in layout
    ]


def _whole(gpu: PublishedGpu) -> Device:
    assert gpu.model is not None
    if not gpu.layout:
        return gpu.devices[0]
    attributes = {"type": text("gpu"), "uuid": text(gpu.uuid), **gpu.attributes}
    capacity = {"memory": DeviceCapacity(value=f"{gpu.model.memory_mib}Mi")}
    return Device(name=gpu.name, attributes=attributes, capacity=capacity)


def possible_devices(gpu: PublishedGpu, allowed: Collection[str] = ()) -> tuple[list[Device], CounterSet]:
    """Return all devices that some layout has, over one counter set; `allowed` names profiles, or WHOLE."""
    assert gpu.model is not None
    amounts = amounts_of(gpu.model)
    counters = CounterSet(
        name=f"{gpu.name}-layout", counters=counters_of(amounts, range(gpu.model.memory_slices))
    )
    draws_all = DeviceCounterConsumption(counter_set=counters.name, counters=counters.counters)
    found = []
    if not allowed or WHOLE in allowed:
        found.append(_drawing(_whole(gpu), draws_all))
    for profile in gpu.model.mig_profiles:
        if allowed and profile.name not in allowed:
            continue
        for start in profile.starts:
            device = devices_of_layout(gpu, (Placement(start, profile.name),))[0]
            drawn = counters_of(amounts_of(profile), _span(profile, start))
            found.append(
                _drawing(device, DeviceCounterConsumption(counter_set=counters.name, counters=drawn))
            )
    return found, counters


def _drawing(device: Device, consumption: DeviceCounterConsumption) -> Device:
    return Device(
        name=device.name,
        attributes=device.attributes,
        capacity=device.capacity,
        consumes_counters=[consumption],
    )
