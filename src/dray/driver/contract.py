"""What a device vendor writes, and the values that go in and out of it.

A driver is one small class: it says which devices there are, makes a claim's
devices usable, and undoes that. It knows nothing of sockets, gRPC, slices,
checkpoints or Kubernetes; `dray.driver.run` does all of that around it.

    class Lamps:
        name = "lamp.example.com"

        def discover(self):
            return [Pool(devices=[Device(name="lamp-0")])]

        def prepare(self, claim):
            return [PreparedDevice.of(device, env={"LAMP": device.device}) for device in claim.devices]

        def unprepare(self, claim):
            pass

The rules of the contract:

  * Every method may be plain or `async`. Plain ones run in a worker thread, so
    they may block; async ones run on the event loop. `prepare` and `unprepare` are
    called one at a time; `discover` may be called beside them.
  * `prepare` may be called again for a claim whose first call was cut short (the
    process was killed, the disk was full). It must then succeed with the same
    result. Once it has returned and the answer is on disk, it is not called again
    for that claim, not even after a restart.
  * `unprepare` gets what `prepare` returned, with its `private` data; or, if
    `prepare` never came to its end, the devices that were allocated. It may be
    called again after a failure, and must succeed when there is nothing to undo.
  * An exception means failure; its text is shown to the user in the pod's events.
    `DriverError` is for expected refusals and is logged without a trace.
  * An exclusive device is never prepared for two claims: the second is refused
    before the driver hears of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from dray.api.cdi import ContainerEdits
from dray.api.meta import Condition, NodeSelector
from dray.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    NetworkDeviceData,
    QuantityValue,
    ResourceClaim,
)
from dray.client import Client

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"
UNKNOWN = "Unknown"
NO_EDITS = ContainerEdits()


class DriverError(Exception):
    """An expected refusal; the user sees its text and nothing else."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices that are published together, in order of preference.

    At most one of the four placements applies; without any, the pool belongs to
    the node on which the driver runs. Devices and counters are split into slices
    by the SDK; a pool may be of any size.
    """

    devices: Sequence[Device]
    counters: Sequence[CounterSet] = ()  # shared budgets; published in slices of their own
    name: str = ""  # empty means: the node's name
    node_name: str = ""  # another node than this one
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    partition_type_attribute: str | None = None
    skip_node_operations: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """Opaque parameters meant for this driver, with their origin."""

    source: str  # FromClass or FromClaim
    parameters: Any  # the JSON object that the administrator or user wrote


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """A device of this driver that a claim was given."""

    request: str  # the request's name, without alternative
    pool: str
    device: str
    subrequest: str = ""  # which alternative of a first-available request was taken
    share_id: str | None = None  # set when the device is given out in shares
    admin_access: bool = False
    consumed_capacity: Mapping[str, QuantityValue] = field(default_factory=dict)
    configs: Sequence[DeviceConfig] = ()  # that apply to this request; later ones override earlier


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A claim to prepare, as far as it concerns this driver."""

    namespace: str
    name: str
    uid: str
    devices: Sequence[AllocatedDevice]
    claim: ResourceClaim  # all of it, for drivers that need more

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What to report in the claim's `status.devices`."""

    conditions: Sequence[Condition] = ()
    data: Any = None  # a JSON object of at most 10 KiB
    network_data: NetworkDeviceData | None = None


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device that is ready, and what a container needs to use it."""

    request: str
    pool: str
    device: str
    share_id: str | None = None
    edits: ContainerEdits = NO_EDITS  # the SDK writes them to a CDI spec of the claim
    cdi_device_ids: Sequence[str] = ()  # names from CDI specs that exist already
    attributes: Mapping[str, DeviceAttribute] = field(
        default_factory=dict
    )  # for the metadata file in the container
    status: DeviceStatus | None = None
    private: Any = None  # JSON, kept on disk and handed to `unprepare`

    @classmethod
    def of(
        cls,
        allocated: AllocatedDevice,
        edits: ContainerEdits | None = None,
        *,
        env: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> PreparedDevice:
        """Answer an allocated device; `env` is short for edits that only set variables."""
        edits = edits or NO_EDITS
        if env:
            edits = edits.plus(ContainerEdits(env=[f"{name}={value}" for name, value in env.items()]))
        return cls(allocated.request, allocated.pool, allocated.device, allocated.share_id, edits, **rest)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim to unprepare: identity, and what is known of its preparation."""

    namespace: str
    name: str
    uid: str
    devices: Sequence[PreparedDevice]
    is_complete: bool = True  # False means: `prepare` was cut short; `private` is None then

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """The health of one device."""

    pool: str  # empty means: the pool named like the node
    device: str
    health: str = HEALTHY  # HEALTHY, UNHEALTHY or UNKNOWN
    message: str = ""
    valid_seconds: int = 30  # without news for this long, the node calls it unknown


class Driver(Protocol):
    """The three methods that every driver has."""

    name: str  # a DNS name, e.g. gpu.example.com; claims and classes refer to it

    def discover(self) -> Iterable[Pool] | Awaitable[Iterable[Pool]]:
        """Return all pools as they are now. Called at start and whenever something may have changed."""
        ...

    def prepare(self, claim: ClaimRequest) -> Iterable[PreparedDevice] | Awaitable[Iterable[PreparedDevice]]:
        """Make the claim's devices usable; answer each allocated device once."""
        ...

    def unprepare(self, claim: PreparedClaim) -> Awaitable[None] | None:
        """Undo `prepare`; succeed if there is nothing to undo."""
        ...


@runtime_checkable
class ReportsHealth(Protocol):
    """Optional: a driver that watches its devices."""

    def health(self) -> AsyncIterator[Iterable[DeviceHealth]]:
        """Yield the complete list whenever something changed, and at least every `valid_seconds`."""
        ...


@runtime_checkable
class AnnouncesChanges(Protocol):
    """Optional: a driver that knows when its inventory changes."""

    def changes(self) -> AsyncIterator[object]:
        """Yield anything when `discover` should be called again."""
        ...


@runtime_checkable
class ChecksHost(Protocol):
    """Optional: a driver that needs privileges or programs which its pod or node may lack."""

    def check_host(self) -> None:
        """Raise DriverError, with what is missing, before anything is served or published."""
        ...


@runtime_checkable
class UsesApi(Protocol):
    """Optional: a driver that reads or writes objects beside its claims and slices."""

    def connect(self, client: Client) -> None:
        """Take the access to the API, with the driver's own rights; called once, before anything is served."""
        ...


@runtime_checkable
class RunsBeside(Protocol):
    """Optional: a driver with work of its own between the calls, such as answering container hooks."""

    async def run_beside(self) -> None:
        """Work until cancelled; started after `recover`, started again when it fails."""
        ...


@runtime_checkable
class AttachesToRunningPods(Protocol):
    """Optional: a driver whose devices can be given to a pod that runs, and be taken from it, without a restart.

    Its devices are published with the attribute `dray.dev/attachable`. `unprepare` may then be called while the
    pod runs, and must take the devices out of it.
    """

    def attach(self, claim: PreparedClaim, pod_uids: Sequence[str]) -> Awaitable[None] | None:
        """Bring a prepared claim's devices into those of its pods that run already; the others are left alone.

        Called whenever the node asks for the claim, after what `prepare` returned is on disk; so it may be called
        again, and after a crash in its middle. Raises DriverError when a device cannot be brought in.
        """
        ...


@runtime_checkable
class Recovers(Protocol):
    """Optional: a driver that cleans up after a crash before it serves."""

    def recover(self, known: Sequence[PreparedClaim]) -> Awaitable[None] | None:
        """Make the hardware agree with the claims that are on record: destroy what belongs to none of them."""
        ...
