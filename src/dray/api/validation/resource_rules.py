"""What the schema of resource.k8s.io declares: the tables for `declared.check_declared`.

One table per type, in the shape of v1 (resource pool status: v1alpha3), inner
types first. Rules that need two fields at once are not here but in the modules
of the kinds.
"""

from __future__ import annotations

from dray.api.validation.declared import (
    Declared,
    at_least,
    at_most,
    extended_resource_name,
    formatted,
    fully_qualified_name,
    max_bytes,
    max_length,
    one_of,
    pool_name,
)
from dray.api.validation.formats import label_key, long_name, long_name_caseless, short_name, uuid

TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
ALLOCATION_MODES = ("All", "ExactCount")
SKIPPABLE_OPERATIONS = ("*", "NodePrepareResources", "NodeUnprepareResources")

_driver_name = Declared(required=True, checks=(formatted(long_name_caseless), max_length(63)))
_qualified_name = Declared(nullable=True, checks=(fully_qualified_name,))
_request_references = Declared(max_items=32, unique_by=())
_binding_conditions = Declared(max_items=4)
_skip_operations = Declared(
    unique_by=(), each=Declared(nullable=True, checks=(one_of(*SKIPPABLE_OPERATIONS),))
)
_count = Declared(nullable=True, checks=(at_least(0),))
_required_count = Declared(required=True, nullable=True, checks=(at_least(0),))

# --- claims ------------------------------------------------------------------------------

_toleration = Declared(
    fields={
        "key": Declared(checks=(formatted(label_key),)),
        "operator": Declared(required=True, checks=(one_of("Equal", "Exists"),)),
        "effect": Declared(checks=(one_of(*TAINT_EFFECTS),)),
    }
)
_tolerations = Declared(each=_toleration)
_derived_attribute = Declared(
    fields={
        "name": Declared(required=True, checks=(fully_qualified_name,)),
        "expression": Declared(required=True),
    }
)
_selection = {
    "selectors": Declared(max_items=32),
    "allocationMode": Declared(checks=(one_of(*ALLOCATION_MODES),)),
    "tolerations": _tolerations,
    "derivedAttributes": Declared(max_items=32, each=_derived_attribute),
}
_subrequest = Declared(
    fields={"deviceClassName": Declared(required=True, checks=(formatted(long_name),)), **_selection}
)
_request = Declared(
    fields={
        "exactly": Declared(nullable=True, fields=_selection),
        "firstAvailable": Declared(max_items=8, unique_by=("name",), each=_subrequest),
    }
)
_constraint = Declared(
    fields={
        "requests": _request_references,
        "matchAttribute": _qualified_name,
        "distinctAttribute": _qualified_name,
    }
)
_opaque = Declared(nullable=True, fields={"driver": _driver_name})
_claim_config = Declared(fields={"requests": _request_references, "opaque": _opaque})
_device_claim = Declared(
    fields={
        "requests": Declared(max_items=32, unique_by=("name",), each=_request),
        "constraints": Declared(max_items=32, each=_constraint),
        "config": Declared(max_items=32, each=_claim_config),
    }
)
_claim_spec = {"devices": _device_claim}

_result = Declared(
    fields={
        "driver": _driver_name,
        "pool": Declared(required=True, checks=(pool_name,)),
        "tolerations": _tolerations,
        "bindingConditions": _binding_conditions,
        "bindingFailureConditions": _binding_conditions,
        "shareID": Declared(nullable=True, checks=(formatted(uuid),)),
        "skipNodeOperations": _skip_operations,
    }
)
_allocation_config = Declared(
    fields={
        "source": Declared(required=True, checks=(one_of("FromClaim", "FromClass"),)),
        "requests": _request_references,
        "opaque": _opaque,
    }
)
_allocated_devices = Declared(
    fields={
        "results": Declared(max_items=32, each=_result),
        "config": Declared(max_items=64, each=_allocation_config),
    }
)
_device_status = Declared(
    fields={
        "shareID": Declared(nullable=True, checks=(formatted(uuid),)),
        "networkData": Declared(
            nullable=True,
            fields={
                "interfaceName": Declared(checks=(max_bytes(256),)),
                "ips": Declared(max_items=16, unique_by=()),
                "hardwareAddress": Declared(checks=(max_bytes(128),)),
            },
        ),
    }
)
_claim_status = Declared(
    fields={
        "allocation": Declared(nullable=True, write_once=True, fields={"devices": _allocated_devices}),
        "reservedFor": Declared(max_items=256, unique_by=("uid",)),
        "devices": Declared(unique_by=("driver", "device", "pool", "shareID"), each=_device_status),
    }
)

RESOURCE_CLAIM = Declared(
    fields={
        "spec": Declared(immutable=True, fields=_claim_spec),
        "status": _claim_status,
    }
)
RESOURCE_CLAIM_TEMPLATE = Declared(
    fields={"spec": Declared(fields={"spec": Declared(fields=_claim_spec)})},
)
DEVICE_CLASS = Declared(
    fields={
        "spec": Declared(
            fields={
                "selectors": Declared(max_items=32),
                "config": Declared(max_items=32, each=Declared(fields={"opaque": _opaque})),
                "extendedResourceName": Declared(nullable=True, checks=(extended_resource_name,)),
            }
        ),
    }
)

# --- slices ------------------------------------------------------------------------------

ATTRIBUTE_VALUES = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")

_counter_consumption = Declared(
    fields={
        "counterSet": Declared(required=True, checks=(formatted(short_name),)),
        "counters": Declared(required=True, each_key=formatted(short_name)),
        "compatibilityGroups": Declared(
            max_items=2, unique_by=(), each=Declared(nullable=True, checks=(formatted(short_name),))
        ),
    }
)
_taint = Declared(fields={"effect": Declared(required=True, checks=(one_of(*TAINT_EFFECTS),))})
_node_allocatable = Declared(
    fields={"mapping": Declared(nullable=True, union=("capacityKey", "deviceMultiplier"))},
)
_device = Declared(
    fields={
        "attributes": Declared(each=Declared(union=ATTRIBUTE_VALUES)),
        "consumesCounters": Declared(max_items=2, unique_by=("counterSet",), each=_counter_consumption),
        "taints": Declared(each=_taint),
        "bindingConditions": _binding_conditions,
        "bindingFailureConditions": _binding_conditions,
        "nodeAllocatableResources": Declared(each=_node_allocatable),
    }
)
_counter_set = Declared(
    fields={
        "name": Declared(required=True, checks=(formatted(short_name),)),
        "counters": Declared(required=True, each_key=formatted(short_name)),
    }
)
RESOURCE_SLICE = Declared(
    fields={
        "spec": Declared(
            fields={
                "devices": Declared(each=_device),
                "sharedCounters": Declared(max_items=8, unique_by=("name",), each=_counter_set),
                "partitionTypeAttribute": Declared(
                    nullable=True, gate="DRAPartitionableDevicesType", checks=(fully_qualified_name,)
                ),
                "skipNodeOperations": _skip_operations,
            }
        ),
    }
)
DEVICE_TAINT_RULE = Declared(fields={"spec": Declared(fields={"taint": _taint})})

# --- pool status -------------------------------------------------------------------------

_shared_capacity = Declared(
    fields={
        "name": Declared(required=True),
        "total": Declared(required=True, nullable=True),
        "consumed": Declared(required=True, nullable=True),
        "available": Declared(required=True, nullable=True),
    }
)
_partition_type = Declared(
    fields={
        "attribute": Declared(required=True),
        "type": Declared(required=True),
        "total": _required_count,
        "allocatable": _required_count,
    }
)
_pool = Declared(
    fields={
        "driver": Declared(required=True, checks=(formatted(long_name_caseless),)),
        "poolName": Declared(required=True, checks=(pool_name,)),
        # Required although 0 is a good generation: the reference refuses 0, too.
        "generation": Declared(required=True, checks=(at_least(0),)),
        "resourceSliceCount": Declared(nullable=True, checks=(at_least(1),)),
        "totalDevices": _count,
        "allocatedDevices": _count,
        "availableDevices": _count,
        "unavailableDevices": _count,
        "nodeName": Declared(nullable=True, checks=(formatted(long_name),)),
        "validationError": Declared(nullable=True, checks=(max_bytes(256),)),
        "partitionSummary": Declared(max_items=32, unique_by=("attribute", "type"), each=_partition_type),
        "shareableSummary": Declared(
            nullable=True,
            fields={
                "fullyAvailableDevices": _required_count,
                "partiallyAvailableDevices": _required_count,
                "capacity": Declared(max_items=32, each=_shared_capacity),
            },
        ),
    }
)
RESOURCE_POOL_STATUS_REQUEST = Declared(
    fields={
        "spec": Declared(
            immutable=True,
            fields={
                "driver": Declared(required=True, checks=(formatted(long_name_caseless),)),
                "poolName": Declared(nullable=True, checks=(pool_name,)),
                "limit": Declared(required=True, nullable=True, checks=(at_least(1), at_most(1000))),
                "defaultPartitionTypeAttribute": Declared(
                    nullable=True, gate="DRAPartitionableDevicesType", checks=(fully_qualified_name,)
                ),
            },
        ),
        "status": Declared(
            nullable=True,
            fields={
                "poolCount": _required_count,
                "pools": Declared(max_items=1000, each=_pool),
                "conditions": Declared(max_items=10),
            },
        ),
    }
)
