"""Validate devices with claims: which pods and claims to make, and what their outcome says of each device.

A validation claim has admin access, so it is never blocked by a device in use and blocks nobody. A selector cannot
name a device, only its attributes: where one attribute tells the devices of a node apart (a UUID, a PCI address)
each device has a claim and a pod of its own, and one that cannot be prepared does not hide the others. Where
none does, one claim takes all of them, up to the 32 devices that a claim may have.

Partitions that do not exist yet (MIG) are left out: preparing one would change the hardware.

Pure: `plan_probes` decides what to make, `judge` what the results mean. `probing` makes them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.resource import Device
from dray.cel import CompileError, compile_selector
from dray.client.resources import CLAIMS
from dray.sim.snapshot import Snapshot
from dray.workbench.fleet.draining import DRAIN_KEY
from dray.workbench.inventory import DeviceRow, PoolRow, attribute_text
from dray.workbench.lint.fitting import Devices

MOST_DEVICES = 32  # of one claim
MOST_EVIDENCE = 400  # characters
CONTAINER = "probe"
REQUEST = "device"
DEFAULT_COMMAND = ("sh", "-c", "env | sort")


@dataclass(frozen=True, slots=True)
class Probe:
    """One claim and the pod that uses it."""

    node: str
    driver: str
    pool: str
    devices: tuple[str, ...]
    class_name: str
    expressions: tuple[str, ...]
    takes_all: bool  # one claim for all of them, because no attribute tells them apart

    @property
    def text(self) -> str:
        """Return what it probes, for people."""
        return f"{self.driver}/{self.pool}/{self.devices[0] if len(self.devices) == 1 else '*'}"


@dataclass(frozen=True, slots=True)
class Result:
    """One statement about a device."""

    name: str  # published, attributes, taints, driver-version, allocated, prepared, health, probe
    status: str  # ok, failed, skipped
    evidence: str = ""


@dataclass(slots=True)
class DeviceReport:
    """All statements about a device."""

    node: str
    driver: str
    pool: str
    device: str
    results: list[Result] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        """Return whether nothing failed."""
        return all(result.status != "failed" for result in self.results)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a fleet should look like; empty parts are not judged."""

    devices: Mapping[tuple[str, str], Device] = field(default_factory=dict)  # (driver, device name) -> model
    driver_version: str = ""


# --- planning -----------------------------------------------------------------------


def to_check(rows: Iterable[DeviceRow]) -> list[DeviceRow]:
    """Return the devices that exist: a partition that nobody uses would only be made by preparing it."""
    return [row for row in rows if row.uses or not row.is_partition]


def plan_probes(
    snapshot: Snapshot, pools: Iterable[PoolRow], rows: Sequence[DeviceRow]
) -> tuple[list[Probe], dict[str, str]]:
    """Return the probes for these devices, and for each device that cannot be probed the reason."""
    classes = classes_by_device(snapshot)
    wanted = {row.key for row in rows}
    probes: list[Probe] = []
    reasons: dict[str, str] = {}
    for pool in pools:
        by_node: dict[str, list[DeviceRow]] = defaultdict(list)
        for row in pool.devices:
            if row.key in wanted:
                by_node[row.node].append(row)
        for node, members in by_node.items():
            made, failed = _probes_of(node, pool, members, classes)
            probes += made
            reasons.update(failed)
    return probes, reasons


def _probes_of(
    node: str, pool: PoolRow, rows: list[DeviceRow], classes: Mapping[str, list[str]]
) -> tuple[list[Probe], dict[str, str]]:
    reasons: dict[str, str] = {}
    usable: list[DeviceRow] = []
    for row in rows:
        if not node:
            reasons[str(row.key)] = "it does not belong to one node"
        elif row.is_partition and not row.uses:
            reasons[str(row.key)] = (
                "a partition that does not exist yet: preparing it would change the hardware"
            )
        elif row.holders and row.device.consumes_counters:
            # The allocator checks counters for admin access, too, as upstream's does.
            reasons[str(row.key)] = "in use, and admin access does not free the shared counters that it draws"
        elif not classes.get(str(row.key)):
            reasons[str(row.key)] = "no DeviceClass selects it"
        else:
            usable.append(row)
    if not usable:
        return [], reasons
    # Among all devices of the pool on this node: a claim must not get one that was not meant.
    neighbours = [row for row in pool.devices if row.node == node]
    attribute = distinguishing_attribute(usable, neighbours)
    of_driver = f"device.driver == {json.dumps(pool.driver)}"
    if attribute:
        return [
            Probe(
                node,
                pool.driver,
                pool.pool,
                (row.device.name,),
                classes[str(row.key)][0],
                (f"{of_driver} && {equals(pool.driver, attribute, row.device)}",),
                takes_all=False,
            )
            for row in usable
        ], reasons
    common = sorted(set.intersection(*(set(classes[str(row.key)]) for row in usable)))
    if len(usable) < len(neighbours) or len(usable) > MOST_DEVICES or not common:
        why = (
            f"no attribute tells it from the other devices of {node}, and one claim cannot take exactly these "
            f"{len(usable)} (at most {MOST_DEVICES}, and all that a class selects)"
        )
        return [], {**reasons, **{str(row.key): why for row in usable}}
    names = tuple(row.device.name for row in usable)
    best = next((name for name in common if name == pool.driver), common[0])
    return [Probe(node, pool.driver, pool.pool, names, best, (of_driver,), takes_all=True)], reasons


def distinguishing_attribute(rows: Sequence[DeviceRow], neighbours: Sequence[DeviceRow]) -> str:
    """Return an attribute (text or integer) of all `rows` whose value no other of the neighbours has; or nothing."""
    common = set.intersection(*(set(row.device.attributes or {}) for row in rows)) if rows else set()
    for name in sorted(common, key=lambda each: (not each.lower().endswith(("uuid", "pcibusid")), each)):
        values = [
            value for row in neighbours if (value := (row.device.attributes or {}).get(name)) is not None
        ]
        texts = Counter(attribute_text(value) for value in values)
        own = [(row.device.attributes or {})[name] for row in rows]
        if all(_is_scalar(value) and texts[attribute_text(value)] == 1 for value in own):
            return name
    return ""


def _is_scalar(value: Any) -> bool:
    return value.string is not None or value.int_value is not None


def equals(driver: str, attribute: str, device: Device) -> str:
    """Return the expression that is true of devices with the same value of an attribute (text or integer)."""
    domain, slash, name = attribute.partition("/")
    if not slash:
        domain, name = driver, attribute
    value = (device.attributes or {})[attribute]
    literal = json.dumps(value.string) if value.string is not None else str(value.int_value)
    operand = f"device.attributes[{json.dumps(domain)}].{name}"
    # Another device may lack the attribute, and a selector that fails on one device fails the claim.
    return f"has({operand}) && {operand} == {literal}"


def classes_by_device(snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the classes that select each device, the one named like its driver first."""
    devices = Devices(snapshot)
    found: dict[str, list[str]] = defaultdict(list)
    for device_class in snapshot.classes:
        name = device_class.metadata.name
        try:
            programs = [
                compile_selector(each.cel.expression, features=snapshot.features, stored=True)
                for each in device_class.spec.selectors
                if each.cel is not None
            ]
        except CompileError:
            continue  # `dray doctor` reports it
        for index in devices.matching(programs):
            found[devices.names[index]].append(name)
    for key, names in list(found.items()):
        driver = key.partition("/")[0]
        found[key] = [*(name for name in names if name == driver), *sorted(n for n in names if n != driver)]
    return found


def manifests(
    probe: Probe,
    name: str,
    *,
    command: Sequence[str],
    image: str,
    scheduler: str,
    seconds: int,
    labels: Mapping[str, str] | None = None,
    exclusive_config: JsonObject | None = None,
) -> tuple[JsonObject, JsonObject]:
    """Return the claim and the pod of a probe; with a config for the driver the claim holds the devices alone."""
    exactly: JsonObject = {
        "deviceClassName": probe.class_name,
        "selectors": [{"cel": {"expression": text}} for text in probe.expressions],
        **({"allocationMode": "All"} if probe.takes_all else {"allocationMode": "ExactCount", "count": 1}),
    }
    devices: JsonObject = {"requests": [{"name": REQUEST, "exactly": exactly}]}
    if exclusive_config is None:
        # A device under maintenance is exactly what is to be examined.
        exactly |= {"adminAccess": True, "tolerations": [{"operator": "Exists"}]}
    else:
        opaque = {"driver": probe.driver, "parameters": exclusive_config}
        devices["config"] = [{"requests": [REQUEST], "opaque": opaque}]
    claim = {
        "apiVersion": CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"devices": devices},
    }
    field_is = {"key": "metadata.name", "operator": "In", "values": [probe.node]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {
            **({"schedulerName": scheduler} if scheduler else {}),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [field_is]}]
                    }
                }
            },
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "command": list(command),
                    "resources": {"claims": [{"name": REQUEST}]},
                }
            ],
            "resourceClaims": [{"name": REQUEST, "resourceClaimName": name}],
        },
    }
    return claim, pod


# --- judging ------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What became of a probe."""

    claim: JsonObject = field(default_factory=dict)
    pod: JsonObject = field(default_factory=dict)
    events: list[str] = field(default_factory=list)  # messages, newest last
    log: str = ""
    is_late: bool = False


def judge_published(row: DeviceRow, pool: PoolRow, expected: Expected) -> list[Result]:
    """Judge what the driver publishes of a device."""
    found = [
        Result("published", "ok" if pool.is_complete else "failed",
               f"generation {pool.generation}, {pool.slices} of {pool.expected_slices} slices")
    ]  # fmt: skip
    taints = [
        f"{taint.key}={taint.value}:{taint.effect}"
        for taint in row.taints
        if taint.effect in ("NoSchedule", "NoExecute") and taint.key != DRAIN_KEY
    ]
    found.append(Result("taints", "failed" if taints else "ok", ", ".join(taints)))
    if expected.devices:
        found.append(_attributes_result(row, expected))
    if expected.driver_version:
        version = row.attribute("driverVersion")
        is_right = version == expected.driver_version
        evidence = f"{version or 'no attribute driverVersion'}, expected {expected.driver_version}"
        found.append(Result("driver-version", "ok" if is_right else "failed", evidence))
    return found


def _attributes_result(row: DeviceRow, expected: Expected) -> Result:
    model = expected.devices.get((row.driver, row.device.name))
    if model is None:
        return Result("attributes", "failed", "the profile has no device of this name")
    # What a profile cannot know of one device: its identity.
    own = ("uuid", "pcibusid", "serial", "mac", "driverversion")
    wrong = []
    for name, value in sorted((model.attributes or {}).items()):
        if name.lower().endswith(own):
            continue
        actual = (row.device.attributes or {}).get(name)
        if actual is None:
            wrong.append(f"{name} is missing")
        elif attribute_text(actual) != attribute_text(value):
            wrong.append(f"{name} is {attribute_text(actual)}, expected {attribute_text(value)}")
    for name, capacity in sorted((model.capacity or {}).items()):
        size = (row.device.capacity or {}).get(name)
        if size is None or str(size.value) != str(capacity.value):
            wrong.append(f"capacity {name} is {size.value if size else 'missing'}, expected {capacity.value}")
    return Result("attributes", "failed" if wrong else "ok", "; ".join(wrong)[:MOST_EVIDENCE])


def judge_probe(device: str, outcome: Outcome) -> list[Result]:
    """Judge what a probe showed of one of its devices."""
    allocation = ((outcome.claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    allocated = [result.get("device") for result in allocation.get("results") or ()]
    last = outcome.events[-1] if outcome.events else "no event"
    if device not in allocated:
        return [Result("allocated", "failed", last[:MOST_EVIDENCE])]
    found = [Result("allocated", "ok")]
    state = _container_state(outcome.pod)
    ended = state.get("terminated")
    if ended is None and "running" not in state:
        reason = (state.get("waiting") or {}).get("message") or last
        return [*found, Result("prepared", "failed", reason[:MOST_EVIDENCE])]
    found.append(Result("prepared", "ok"))
    health = _health(device, outcome.pod, is_alone=len(allocated) == 1)
    if health:
        found.append(Result("health", "ok" if health == "Healthy" else "failed", health))
    else:
        found.append(Result("health", "skipped", "the driver reports no health"))
    if ended is None:
        found.append(Result("probe", "failed", "the probe did not end in time"))
    elif ended.get("exitCode") == 0:
        found.append(Result("probe", "ok"))
    else:
        text = f"exit code {ended.get('exitCode')}: {outcome.log.strip()[-MOST_EVIDENCE:]}"
        found.append(Result("probe", "failed", text))
    return found


def _container_state(pod: JsonObject) -> JsonObject:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            return status.get("state") or {}
    return {}


def _health(device: str, pod: JsonObject, *, is_alone: bool) -> str:
    """Return the worst health reported of a device; Unknown counts as not reported.

    A status names a device by its CDI id, whose form is the driver's choice: among several devices it is
    recognised by its name at the end.
    """
    found = []
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        for resource in status.get("allocatedResourcesStatus") or ():
            for entry in resource.get("resources") or ():
                if is_alone or str(entry.get("resourceID", "")).endswith(device):
                    found.append(str(entry.get("health") or "Unknown"))
    return "Unhealthy" if "Unhealthy" in found else "Healthy" if "Healthy" in found else ""
