"""Claims, slices and admission reviews, as far as the guard reads them.

A field that is not named here cannot make an object unreadable: a claim that the guard could not
decode would be a hole in its record.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.meta import ObjectMeta, OwnerReference, View
from dray.api.resource import CounterSet, DeviceCounterConsumption, ResourcePool


class BareMeta(ObjectMeta, frozen=True):
    """Name, identity and revision."""

    labels: dict[str, str] | None = msgspec.field(default=None, name="labels (not read)")
    annotations: dict[str, str] | None = msgspec.field(default=None, name="annotations (not read)")
    owner_references: list[OwnerReference] = msgspec.field(default=[], name="ownerReferences (not read)")
    finalizers: list[str] = msgspec.field(default=[], name="finalizers (not read)")
    managed_fields: list[Any] = msgspec.field(default=[], name="managedFields (not read)")


class Result(View, frozen=True):
    """One device given to one request."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int | float] | None = None


class Results(View, frozen=True):
    """The devices of an allocation."""

    results: list[Result] = []


class Allocation(View, frozen=True):
    """An allocation."""

    devices: Results = Results()


class Status(View, frozen=True):
    """What was given to a claim."""

    allocation: Allocation | None = None


class Claim(View, frozen=True):
    """A claim: who it is, and what it holds."""

    metadata: BareMeta = BareMeta()
    status: Status = Status()

    @property
    def results(self) -> list[Result]:
        """The devices that it holds."""
        return self.status.allocation.devices.results if self.status.allocation is not None else []


class Amount(View, frozen=True):
    """How much of something a device has."""

    value: str | int | float = "0"


class Device(View, frozen=True):
    """What of a device can be used up."""

    name: str = ""
    capacity: dict[str, Amount] = {}
    consumes_counters: list[DeviceCounterConsumption] = []
    allow_multiple_allocations: bool | None = None


class SliceSpec(View, frozen=True):
    """A part of a pool."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []


class Slice(View, frozen=True):
    """A slice."""

    metadata: BareMeta = BareMeta()
    spec: SliceSpec = SliceSpec()


class ReviewRequest(View, frozen=True):
    """A write that waits for the verdict."""

    uid: str = ""
    dry_run: bool | None = None
    object: Claim | None = None
    old_object: Claim | None = None


class Review(View, frozen=True):
    """admission.k8s.io/v1 AdmissionReview."""

    request: ReviewRequest | None = None
