"""The objects of resource.k8s.io/v1, completely: what crosses the wire in DRA.

Other versions are converted to and from this shape (see `conversion`). Fields
are documented in docs/api.md with their limits; here only what a reader of the
code needs. Quantities stay text (or a bare number, in hand-written YAML) until
somebody computes with them: see `quantity.parse_quantity`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dray.api.meta import Condition, NodeSelector, ObjectMeta, View

QuantityValue = str | int | float


# --- ResourceSlice: what hardware there is -----------------------------------


class DeviceAttribute(View, frozen=True):
    """One attribute value: exactly one field is set."""

    int_value: int | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None  # semver 2.0.0
    ints: list[int] | None = None
    bools: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRequestPolicyRange(View, frozen=True):
    """Requests are rounded up to min + n * step, at most max."""

    min: QuantityValue | None = None
    max: QuantityValue | None = None
    step: QuantityValue | None = None


class CapacityRequestPolicy(View, frozen=True):
    """How a share of a capacity may be asked for."""

    default: QuantityValue | None = None
    valid_values: list[QuantityValue] = []
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(View, frozen=True):
    """How much of something the device has."""

    value: QuantityValue = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(View, frozen=True):
    """An amount of a shared counter."""

    value: QuantityValue = "0"


class CounterSet(View, frozen=True):
    """A named budget that several devices of the pool draw from."""

    name: str = ""
    counters: dict[str, Counter] = {}


class DeviceCounterConsumption(View, frozen=True):
    """What a device draws from one counter set when it is allocated."""

    counter_set: str = ""
    counters: dict[str, Counter] = {}
    compatibility_groups: list[str] = []


class DeviceTaint(View, frozen=True):
    """A reason to keep away from a device."""

    key: str = ""
    value: str = ""
    effect: str = ""  # None, NoSchedule, NoExecute
    time_added: str | None = None


class NodeAllocatableMapping(View, frozen=True):
    """How a device turns into an amount of a node resource."""

    capacity_key: str | None = None
    capacity_multiplier: QuantityValue | None = None
    device_multiplier: QuantityValue | None = None


class NodeAllocatableOverhead(View, frozen=True):
    """What using the device costs beside the mapping."""

    per_pod: QuantityValue | None = None
    per_container: QuantityValue | None = None


class NodeAllocatableResource(View, frozen=True):
    """The node resource that a device stands for or costs."""

    mapping: NodeAllocatableMapping | None = None
    overhead: NodeAllocatableOverhead | None = None


class Device(View, frozen=True):
    """One allocatable thing."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[DeviceCounterConsumption] = []
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] = []
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None  # None and [] differ: see the pool order
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None
    node_allocatable_resources: dict[str, NodeAllocatableResource] | None = None


class ResourcePool(View, frozen=True):
    """The pool a slice belongs to; the highest generation wins."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(View, frozen=True):
    """A part of a pool: devices, or the counters they draw from."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] = []
    shared_counters: list[CounterSet] = []
    partition_type_attribute: str | None = None
    skip_node_operations: list[str] = []


class ResourceSlice(View, frozen=True):
    """Published by a driver: what hardware there is."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceSlice"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()


# --- DeviceClass, ResourceClaim, ResourceClaimTemplate: what is wanted --------


class CELDeviceSelector(View, frozen=True):
    """A CEL expression over `device`."""

    expression: str = ""


class DeviceSelector(View, frozen=True):
    """A condition a device must meet."""

    cel: CELDeviceSelector | None = None


class OpaqueDeviceConfiguration(View, frozen=True):
    """Parameters that only the named driver understands."""

    driver: str = ""
    parameters: Any = None  # a JSON object


class DeviceClassConfiguration(View, frozen=True):
    """Config that every allocation through the class carries."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(View, frozen=True):
    """Selectors and config shared by all who name the class."""

    selectors: list[DeviceSelector] = []
    config: list[DeviceClassConfiguration] = []
    extended_resource_name: str | None = None


class DeviceClass(View, frozen=True):
    """A kind of device that an administrator offers."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceClass"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceToleration(View, frozen=True):
    """A taint that the request can live with."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""  # empty means: every effect
    toleration_seconds: int | None = None


class CapacityRequirements(View, frozen=True):
    """How much of each capacity the request wants."""

    requests: dict[str, QuantityValue] = {}


class DerivedAttribute(View, frozen=True):
    """An attribute computed from the device for use in constraints."""

    name: str = ""
    expression: str = ""


class ExactDeviceRequest(View, frozen=True):
    """One class, one count."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""  # ExactCount (default) or All
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None
    derived_attributes: list[DerivedAttribute] = []


class DeviceSubRequest(View, frozen=True):
    """One alternative of a first-available request."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = ""
    count: int = 0
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None
    derived_attributes: list[DerivedAttribute] = []


class DeviceRequest(View, frozen=True):
    """What is asked for under one name: exactly one of the two."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(View, frozen=True):
    """A tie between the devices of the named requests."""

    requests: list[str] = []  # empty means: every request
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(View, frozen=True):
    """Config for the named requests (empty means: all)."""

    requests: list[str] = []
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(View, frozen=True):
    """Everything wanted in one claim."""

    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceClaimConfiguration] = []


class ResourceClaimSpec(View, frozen=True):
    """What the claim asks for; immutable."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(View, frozen=True):
    """One device given to one request."""

    request: str = ""  # `request` or `request/subrequest`
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] = []
    binding_conditions: list[str] = []
    binding_failure_conditions: list[str] = []
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, QuantityValue] | None = None
    skip_node_operations: list[str] = []


class DeviceAllocationConfiguration(View, frozen=True):
    """Config as the driver will see it, with its source."""

    source: str = ""  # FromClass, FromClaim
    requests: list[str] = []
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(View, frozen=True):
    """The devices of one claim."""

    results: list[DeviceRequestAllocationResult] = []
    config: list[DeviceAllocationConfiguration] = []


class AllocationResult(View, frozen=True):
    """The answer to a claim; write-once."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None  # None means: every node
    allocation_timestamp: str | None = None


class ResourceClaimConsumerReference(View, frozen=True):
    """Who may use the claim now."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class NetworkDeviceData(View, frozen=True):
    """What a network driver reports of an interface."""

    interface_name: str = ""
    ips: list[str] = []
    hardware_address: str = ""


class AllocatedDeviceStatus(View, frozen=True):
    """What a driver reports of one allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: list[Condition] = []
    data: Any = None
    network_data: NetworkDeviceData | None = None


class ResourceClaimStatus(View, frozen=True):
    """Who got what."""

    allocation: AllocationResult | None = None
    reserved_for: list[ResourceClaimConsumerReference] = []
    devices: list[AllocatedDeviceStatus] = []


class ResourceClaim(View, frozen=True):
    """A request for devices, and what was allocated."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(View, frozen=True):
    """Metadata and spec of the claims to be made."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(View, frozen=True):
    """From which a claim is made for each pod."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "ResourceClaimTemplate"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# --- DeviceTaintRule, ResourcePoolStatusRequest: operations -------------------


class DeviceTaintSelector(View, frozen=True):
    """Which devices a rule taints; each unset field matches all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(View, frozen=True):
    """Put this taint on these devices."""

    device_selector: DeviceTaintSelector | None = None
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRuleStatus(View, frozen=True):
    """How far the eviction has come."""

    conditions: list[Condition] = []


class DeviceTaintRule(View, frozen=True):
    """An administrator's taint on devices."""

    api_version: str = "resource.k8s.io/v1"
    kind: str = "DeviceTaintRule"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()
    status: DeviceTaintRuleStatus = DeviceTaintRuleStatus()


class ResourcePoolStatusRequestSpec(View, frozen=True):
    """Which pools to report on; immutable."""

    driver: str = ""
    pool_name: str | None = None
    limit: int | None = None  # 1 to 1000; the server fills in 100
    default_partition_type_attribute: str | None = None


class PartitionTypeStatus(View, frozen=True):
    """The partitions of one type."""

    attribute: str = ""
    type: str = ""
    total: int | None = None
    allocatable: int | None = None


class ShareableCapacityStatus(View, frozen=True):
    """One capacity, summed over the shareable devices of a pool."""

    name: str = ""
    total: QuantityValue | None = None
    consumed: QuantityValue | None = None
    available: QuantityValue | None = None


class ShareableSummaryStatus(View, frozen=True):
    """The devices of a pool that several claims can share."""

    fully_available_devices: int | None = None
    partially_available_devices: int | None = None
    capacity: list[ShareableCapacityStatus] = []


class PoolStatus(View, frozen=True):
    """The state of one pool."""

    driver: str = ""
    pool_name: str = ""
    generation: int = 0
    resource_slice_count: int | None = None
    total_devices: int | None = None
    allocated_devices: int | None = None
    available_devices: int | None = None
    unavailable_devices: int | None = None
    node_name: str | None = None
    validation_error: str | None = None
    partition_summary: list[PartitionTypeStatus] = []
    shareable_summary: ShareableSummaryStatus | None = None


class ResourcePoolStatusRequestStatus(View, frozen=True):
    """The report; frozen once it is there."""

    pool_count: int | None = None
    pools: list[PoolStatus] = []
    conditions: list[Condition] = []  # Complete or Failed


class ResourcePoolStatusRequest(View, frozen=True):
    """Asks for a count of devices, free and in use, per pool."""

    api_version: str = "resource.k8s.io/v1alpha3"
    kind: str = "ResourcePoolStatusRequest"
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourcePoolStatusRequestSpec = ResourcePoolStatusRequestSpec()
    status: ResourcePoolStatusRequestStatus | None = None  # None until the report is done
