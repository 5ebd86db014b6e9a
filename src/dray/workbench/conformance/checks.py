"""The checks: each tries one requirement on a real cluster and returns a verdict with what it saw.

A check uses a class that selects a free device, as a user would; it never names a driver. A verdict is one of the words of
the official checklist. What a cluster does not offer at all is "Not Implemented"; what works in part is
"Partially Implemented"; a check for which the hardware is missing is "N/A".
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dray.api.resource import Device
from dray.client import ClientError, NotFound, Request
from dray.client.resources import POD_GROUPS
from dray.host.clock import utc_now
from dray.sim.snapshot import Snapshot, capture
from dray.workbench.conformance.trials import Trials, has_ended, is_bound, is_running
from dray.workbench.doctor import check_cluster, read_cluster
from dray.workbench.fleet.validation import classes_by_device, distinguishing_attribute, equals
from dray.workbench.inventory import DeviceRow, Inventory

IMPLEMENTED, PARTLY, NOT, NOT_APPLICABLE = "Implemented", "Partially Implemented", "Not Implemented", "N/A"
MOST_METRICS = 16 << 20  # bytes of a metrics page
MOST_SCALING_PODS = 100
SCALING_PATIENCE = 10  # times the limit of one step: a node takes longer to come than a pod
_SEE = "env | sort; echo; find /dev -type c -o -type b 2>/dev/null | sort; awk '{print $5}' /proc/self/mountinfo | sort"
_ALWAYS = re.compile(
    r"^(HOSTNAME|PWD|OLDPWD|SHLVL|_|HOME|PATH|TERM)=|/etc/resolv|/etc/host|/dev/termination-log"
)


@dataclass(slots=True)
class Verdict:
    """What a check found."""

    status: str
    evidence: list[str] = field(default_factory=list)
    notes: str = ""


@dataclass(slots=True)
class Environment:
    """What checks work with."""

    trials: Trials
    snapshot: Snapshot
    metrics_url: str = ""

    def free(self, wanted: Callable[[DeviceRow], bool] = lambda row: True) -> tuple[DeviceRow, str] | None:
        """Return a free device that is wanted, with a class that selects it."""
        classes = classes_by_device(self.snapshot)
        # Accelerators first: that CPUs can be claimed says little.
        for row in sorted(Inventory(self.snapshot).devices.values(), key=lambda row: not is_accelerator(row)):
            if row.state == "free" and not row.is_partition and wanted(row) and classes.get(str(row.key)):
                return row, classes[str(row.key)][0]
        return None


def is_accelerator(row: DeviceRow) -> bool:
    """Return whether a device is neither a CPU nor a network interface."""
    return not re.search(r"cpu|(^|\.)net|nic|sriov", row.driver) and not is_network(row)


def is_network(row: DeviceRow) -> bool:
    """Return whether a device is a network interface: it has an interface's name, or says whether it can do RDMA."""
    names = {name.rpartition("/")[2].lower() for name in row.device.attributes or {}}
    return bool(names & {"ifname", "pfname", "rdma", "rdmacapable"})


Check = Callable[[Environment], Awaitable[Verdict]]


async def dra_support(env: Environment) -> Verdict:
    """Allocate a device by a CEL selector and see a pod run with it."""
    try:
        served = await env.trials.client.call("GET", "/apis/resource.k8s.io/v1")
    except NotFound:
        return Verdict(NOT, notes="the API server does not serve resource.k8s.io/v1")
    kinds = sorted({each["name"] for each in served.get("resources") or () if "/" not in each["name"]})
    found = env.free()
    if found is None:
        return Verdict(
            NOT_APPLICABLE, [f"resource.k8s.io/v1 serves {', '.join(kinds)}"], "no free device is published"
        )
    row, class_name = found
    expression = f'device.driver == "{row.driver}"'
    await env.trials.claim("dra", class_name, selectors=[{"cel": {"expression": expression}}])
    await env.trials.pod("dra", ["dra"])
    pod = await env.trials.until("dra", is_running)
    if pod is None:
        return Verdict(
            NOT, notes=f"a pod with a claim of class {class_name} does not run: {await env.trials.why('dra')}"
        )
    names = [f"{each['driver']}/{each['pool']}/{each['device']}" for each in await env.trials.devices("dra")]
    await env.trials.drop("dra")
    node = pod["spec"]["nodeName"]
    return Verdict(
        IMPLEMENTED,
        [
            f"resource.k8s.io/v1 serves {', '.join(kinds)}",
            f"a claim of class {class_name} with the selector {expression} was allocated {', '.join(names)}",
            f"its pod ran on {node}",
        ],
    )


async def secure_accelerator_access(env: Environment) -> Verdict:
    """Compare what a container with a claim sees with what the one beside it sees."""
    found = env.free()
    if found is None:
        return Verdict(NOT_APPLICABLE, notes="no free device is published")
    row, class_name = found
    await env.trials.claim("access", class_name)
    await env.trials.pod("access", ["access"], command=_SEE, bystander=True)
    if await env.trials.until("access", has_ended) is None:
        return Verdict(NOT, notes=f"the pod does not end: {await env.trials.why('access')}")
    holder = _seen(await env.trials.log("access", "holder"))
    bystander = _seen(await env.trials.log("access", "bystander"))
    await env.trials.drop("access")
    added = sorted(holder - bystander)
    if not added:
        return Verdict(
            NOT,
            notes=f"the container with a device of {row.driver} sees nothing that the one beside it does not see",
        )
    leaked = sorted(bystander - holder)
    if leaked:
        return Verdict(
            PARTLY, added[:5], f"the container without a claim sees more in turn: {', '.join(leaked[:5])}"
        )
    return Verdict(
        IMPLEMENTED,
        [
            f"of two containers of one pod, only the one with the claim (class {class_name}) sees: {', '.join(added[:8])[:400]}",
        ],
    )


def _seen(text: str) -> set[str]:
    return {line for line in text.splitlines() if line.strip() and not _ALWAYS.search(line)}


async def gang_scheduling(env: Environment) -> Verdict:
    """A gang that does not fit as a whole is not placed at all; one that fits is."""
    try:
        await env.trials.client.list(POD_GROUPS, env.trials.namespace)
    except NotFound:
        return Verdict(
            NOT, notes=f"{POD_GROUPS.api_version} PodGroup is not served (feature gate GenericWorkload)"
        )
    found = env.free()
    if found is None:
        return Verdict(NOT_APPLICABLE, notes="no free device is published")
    row, class_name = found
    exact = [{"cel": {"expression": f'device.driver == "{row.driver}"'}}]
    total = sum(1 for each in Inventory(env.snapshot).devices.values() if each.driver == row.driver)
    # One member fits, the other wants more devices than there are (a claim may have 32 at most).
    await env.trials.group("impossible", 2)
    await env.trials.claim("fits", class_name, selectors=exact)
    impossible = [{"cel": {"expression": f'device.driver == "{row.driver}" && device.driver == "none"'}}]
    await env.trials.claim("never", class_name, selectors=impossible)
    await env.trials.pod("impossible-0", ["fits"], group="impossible")
    await env.trials.pod("impossible-1", ["never"], group="impossible")
    early = await env.trials.until("impossible-0", is_bound, seconds=min(8.0, env.trials.seconds))
    reason = await env.trials.why("impossible-0")
    await env.trials.drop("impossible-0", "impossible-1")
    if early is not None:
        return Verdict(NOT, notes="a member of a gang was placed although the other one fits nowhere")
    await env.trials.group("possible", 2)
    for number in range(2):
        await env.trials.claim(f"member-{number}", class_name, selectors=exact)
        await env.trials.pod(f"possible-{number}", [f"member-{number}"], group="possible")
    bound = [await env.trials.until(f"possible-{number}", is_bound) for number in range(2)]
    why = await env.trials.why("possible-0")
    await env.trials.drop("possible-0", "possible-1")
    if not all(bound):
        if total < 2:
            return Verdict(
                NOT_APPLICABLE, notes=f"a gang of two needs two devices of {row.driver}; there is {total}"
            )
        return Verdict(NOT, notes=f"a gang of two that fits was not placed: {why}")
    nodes = [pod["spec"]["nodeName"] for pod in bound if pod is not None]
    return Verdict(
        IMPLEMENTED,
        [
            f"of a gang of which one member fits nowhere, none was placed ({reason})",
            f"a gang of two with a claim each was placed on {', '.join(nodes)}",
        ],
    )


async def gpu_sharing(env: Environment) -> Verdict:
    """Two claims at a time on one device that can be shared, or a partition of a larger device."""
    rows = list(Inventory(env.snapshot).devices.values())
    shared = env.free(lambda row: is_accelerator(row) and bool(row.device.allow_multiple_allocations))
    if shared is not None:
        row, class_name = shared
        expression = _only(row, rows)
        names = []
        for number in range(2):
            await env.trials.claim(
                f"share-{number}", class_name, selectors=expression, **_share_of(row.device)
            )
            await env.trials.pod(f"share-{number}", [f"share-{number}"])
        for number in range(2):
            if await env.trials.until(f"share-{number}", is_bound) is None:
                return Verdict(NOT, notes=f"claim {number + 1} of 2 on a shareable device is not allocated: "
                               f"{await env.trials.why(f'share-{number}')}")  # fmt: skip
            names += [
                f"{one['driver']}/{one['pool']}/{one['device']}"
                for one in await env.trials.devices(f"share-{number}")
            ]
        await env.trials.drop("share-0", "share-1")
        if len(set(names)) > 1:
            return Verdict(PARTLY, [f"two claims were given {', '.join(names)}"], "not one device at a time")
        return Verdict(
            IMPLEMENTED, [f"two claims at a time were given shares of {', '.join(sorted(set(names)))}"]
        )
    parts = [row for row in rows if row.device.consumes_counters and row.is_partition and is_accelerator(row)]
    if parts:
        drivers = sorted({row.driver for row in parts})
        return Verdict(
            IMPLEMENTED,
            [f"{len(parts)} partitions with shared counters are published by {', '.join(drivers)}, "
             f"for example {parts[0].key}"],
        )  # fmt: skip
    return Verdict(NOT_APPLICABLE, notes="no published device can be shared or partitioned")


def _only(row: DeviceRow, rows: list[DeviceRow]) -> list[dict[str, dict[str, str]]]:
    """Return selectors for one device, or for those like it where no attribute tells it from them."""
    expression = f'device.driver == "{row.driver}" && device.allowMultipleAllocations'
    others = [other for other in rows if other.driver == row.driver]
    if attribute := distinguishing_attribute([row], others):
        expression += f" && {equals(row.driver, attribute, row.device)}"
    return [{"cel": {"expression": expression}}]


def _share_of(device: Device) -> dict[str, object]:
    """Return the smallest share of a device that its policies allow, or nothing where a policy has a default."""
    amounts = {}
    for name, capacity in (device.capacity or {}).items():
        policy = capacity.request_policy
        if policy is None:
            continue
        if policy.valid_range is not None and policy.valid_range.min is not None:
            amounts[name] = str(policy.valid_range.min)
        elif policy.valid_values:
            amounts[name] = str(policy.valid_values[0])
    return {"capacity": {"requests": amounts}} if amounts else {}


async def driver_runtime_management(env: Environment) -> Verdict:
    """Versions of drivers are published, and nothing is wrong with drivers, kubelets and runtimes."""

    versions: dict[str, set[str]] = {}
    for row in Inventory(env.snapshot).devices.values():
        if version := row.attribute("driverVersion"):
            versions.setdefault(row.driver, set()).add(version)
    facts = await read_cluster(env.trials.client, utc_now())
    about = ("driver-", "runtime-", "kubelet-", "pool-", "node-not-ready")
    wrong = [
        f"{each.subject}: {each.evidence}"
        for each in check_cluster(facts)
        if each.severity == "error" and each.code.startswith(about)
    ]
    if wrong:
        return Verdict(NOT, notes="; ".join(wrong)[:600])
    evidence = [
        f"{driver} publishes driverVersion {', '.join(sorted(found))}"
        for driver, found in sorted(versions.items())
    ]
    evidence.append("`dray doctor` finds no error in drivers, kubelets and container runtimes")
    return Verdict(
        IMPLEMENTED if versions else PARTLY, evidence, "" if versions else "no driver publishes its version"
    )


async def high_performance_networking(env: Environment) -> Verdict:
    """A network device is published with its characteristics and given to a pod."""
    found = env.free(is_network)
    if found is None:
        return Verdict(NOT_APPLICABLE, notes="no free network device is published through DRA")
    row, class_name = found
    await env.trials.claim(
        "nic", class_name, selectors=[{"cel": {"expression": f'device.driver == "{row.driver}"'}}]
    )
    await env.trials.pod("nic", ["nic"])
    if await env.trials.until("nic", is_running) is None:
        return Verdict(NOT, notes=f"a pod with a network device does not run: {await env.trials.why('nic')}")
    names = [str(each["device"]) for each in await env.trials.devices("nic")]
    await env.trials.drop("nic")
    shown = ", ".join(sorted(row.device.attributes or {})[:12])
    return Verdict(
        IMPLEMENTED, [f"a pod was given {row.driver} {', '.join(names)}; published attributes: {shown}"]
    )


async def cluster_autoscaling(env: Environment) -> Verdict:
    """One pod more than there are free accelerators: a node must come for it, and go when nobody needs it."""
    rows = [row for row in Inventory(env.snapshot).devices.values() if is_accelerator(row)]
    classes = classes_by_device(env.snapshot)
    example = next((row for row in rows if not row.is_partition and classes.get(str(row.key))), None)
    if example is None:
        return Verdict(NOT_APPLICABLE, notes="no accelerator is published that a class selects")
    class_name = classes[str(example.key)][0]
    alike = [
        row for row in rows if row.driver == example.driver and class_name in classes.get(str(row.key), ())
    ]
    if any(row.is_partition or row.device.allow_multiple_allocations for row in alike):
        return Verdict(
            NOT_APPLICABLE,
            notes=f"class {class_name} has partitions or shares: how many claims fit is not known",
        )
    pods = sum(row.state == "free" for row in alike) + 1
    if pods > MOST_SCALING_PODS:
        return Verdict(
            NOT_APPLICABLE,
            notes=f"{pods - 1} accelerators are free; at most {MOST_SCALING_PODS - 1} are filled up",
        )
    before = await env.trials.until_nodes(lambda _: True, env.trials.seconds) or frozenset()
    selectors = [{"cel": {"expression": f'device.driver == "{example.driver}"'}}]
    names = [f"scale-{number}" for number in range(pods)]
    for name in names:
        await env.trials.claim(name, class_name, selectors=selectors)
        await env.trials.pod(name, [name])
    patience = SCALING_PATIENCE * env.trials.seconds
    for name in names:
        if await env.trials.until(name, is_running, patience) is None:
            return Verdict(NOT, notes=f"no node came within {patience:.0f} s: {await env.trials.why(name)}")
    during = await env.trials.until_nodes(lambda _: True, env.trials.seconds) or frozenset()
    came = sorted(during - before)
    await env.trials.drop(*names)
    if not came:
        return Verdict(PARTLY, notes="all pods ran, but no node came: devices became free meanwhile")
    evidence = [f"for {pods} claims of class {class_name} on {pods - 1} free devices came {', '.join(came)}"]
    # Which of equal nodes go is the autoscaler's choice: their number counts.
    left = await env.trials.until_nodes(lambda ready: len(ready) <= len(before), 2 * patience)
    if left is None:
        return Verdict(
            PARTLY, evidence, f"{2 * patience:.0f} s after the pods ended the nodes are still there"
        )
    return Verdict(
        IMPLEMENTED, [*evidence, f"after the pods had ended {len(left)} ready nodes were left, as before"]
    )


async def accelerator_metrics(env: Environment) -> Verdict:
    """Series per accelerator with utilisation and memory, at the given address or on the API server's /metrics."""
    try:
        if env.metrics_url:
            text = await _metrics(env.metrics_url)
        else:
            answer = await env.trials.client.answer(Request("GET", "/metrics"))
            text = answer.body[:MOST_METRICS].decode("utf-8", "replace")
    except (ClientError, OSError) as error:
        return Verdict(NOT, notes=f"the metrics cannot be read: {error}")
    names = {
        line.partition("{")[0]
        for line in text.splitlines()
        if re.match(r'[a-zA-Z_:]\w*\{[^}]*(gpu|device|uuid)="', line, re.I)
    }
    busy = sorted(name for name in names if re.search(r"util", name, re.I))
    memory = sorted(name for name in names if re.search(r"mem|fb_(used|free)", name, re.I))
    if busy and memory:
        return Verdict(
            IMPLEMENTED, [f"utilisation: {', '.join(busy[:3])}", f"memory: {', '.join(memory[:3])}"]
        )
    if busy or memory:
        return Verdict(PARTLY, [f"series per device: {', '.join((busy + memory)[:4])}"],
                       f"no series for {'memory' if busy else 'utilisation'}")  # fmt: skip
    return Verdict(
        NOT,
        notes="no series per device was found; name the metrics page of the accelerators with --metrics-url",
    )


async def _metrics(url: str) -> str:
    """Read a metrics page of an address that the user gave."""
    import asyncio
    import urllib.error
    import urllib.request

    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  (the user's own address, http or https)
            found: bytes = answer.read(MOST_METRICS)
            return found

    try:
        return (await asyncio.to_thread(read)).decode("utf-8", "replace")
    except urllib.error.URLError as error:
        raise OSError(str(error)) from error


CHECKS: dict[str, Check] = {
    "dra_support": dra_support,
    "driver_runtime_management": driver_runtime_management,
    "gpu_sharing": gpu_sharing,
    "high_performance_networking": high_performance_networking,
    "gang_scheduling": gang_scheduling,
    "accelerator_metrics": accelerator_metrics,
    "secure_accelerator_access": secure_accelerator_access,
}


# Tried only when asked for: nodes may cost money.
CHECKS_ON_REQUEST: dict[str, Check] = {"cluster_autoscaling": cluster_autoscaling}


async def run_check(check: Check, trials: Trials, metrics_url: str) -> Verdict:
    """Run one check on the cluster as it is now; a failing request is the verdict, not the end of the run."""
    try:
        return await check(Environment(trials, await capture(trials.client), metrics_url))
    except ClientError as error:
        return Verdict(NOT, notes=str(error)[:600])
