"""`dra.cpu`: exclusive CPUs by NUMA node, taken from the kernel's topology.

One device per NUMA node, given out in shares of whole CPUs. At prepare the driver
picks that many CPUs which nobody holds: whole cores first, all from one L3 cache
where they fit, so that claims share as few cores and caches as possible. The set is
told to the container in the environment (`DRAY_CPUSET_<DEVICE>`), and the container is
pinned to the sets of all its claims before its program starts (`cpu_pinning`).

Choosing is a function of the topology and what is free (`choose_cpus`); who holds
what is rebuilt from the recorded claims after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dray.api.caching import BoundedMap
from dray.api.number_ranges import format_ranges, parse_ranges
from dray.api.quantity import parse_quantity
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    ContainerEdits,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.container_hook import ContainerState, HookServer, PodView, check_pod
from dray.drivers.cpu_pinning import CGROUPS, check_cgroups, pin_container
from dray.drivers.hardware.cpus import CAPACITY, CpuGroup, group_device
from dray.drivers.sysfs import read_int, read_text

NAME = driver_names.CPU
_MAX_PINNED = 4096  # containers whose hooks are remembered


@dataclass(frozen=True, slots=True)
class Cpu:
    """One logical CPU and its place in the machine."""

    id: int
    core: tuple[int, int]  # (socket, core id): siblings share it
    cache: int  # L3 id; -1 means: unknown
    socket: int
    numa_node: int


def read_topology(sysfs: Path) -> list[Cpu]:
    """Read the online CPUs from sysfs."""
    root = sysfs / "devices/system"
    online = read_text(root / "cpu/online")
    if not online:
        raise DriverError(f"{root}/cpu/online cannot be read: is {sysfs} a sysfs?")
    node_by_cpu: dict[int, int] = {}
    for folder in (root / "node").glob("node[0-9]*"):
        for cpu in parse_ranges(read_text(folder / "cpulist") or ""):
            node_by_cpu[cpu] = int(folder.name.removeprefix("node"))
    cpus = []
    for cpu in parse_ranges(online):
        folder = root / f"cpu/cpu{cpu}"
        socket = max(0, read_int(folder / "topology/physical_package_id") or 0)
        core = read_int(folder / "topology/core_id")
        cache = read_int(folder / "cache/index3/id")
        cpus.append(
            Cpu(
                cpu,
                (socket, cpu if core is None else core),
                -1 if cache is None else cache,
                socket,
                node_by_cpu.get(cpu, 0),
            )
        )
    return cpus


def choose_cpus(free: Sequence[Cpu], count: int) -> list[int] | None:
    """Pick `count` of the free CPUs, or None when there are too few.

    Whole cores before parts of cores, and from as few caches as possible: the
    smallest cache group that holds them all, else the largest groups first.
    """
    if len(free) < count:
        return None
    by_cache: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in free:
        by_cache.setdefault((cpu.socket, cpu.cache), []).append(cpu)
    groups = sorted(by_cache.values(), key=lambda group: (len(group), group[0].id))
    fitting = next((group for group in groups if len(group) >= count), None)
    order = [fitting] if fitting is not None else list(reversed(groups))
    chosen: list[int] = []
    for group in order:
        cores: dict[tuple[int, int], list[Cpu]] = {}
        for cpu in group:
            cores.setdefault(cpu.core, []).append(cpu)
        # Cores with most free siblings first; the odd CPU comes from the most broken core.
        whole_first = sorted(cores.values(), key=lambda core: (-len(core), core[0].id))
        for core in whole_first:
            left = count - len(chosen)
            if left >= len(core):
                chosen += [cpu.id for cpu in core]
        left = count - len(chosen)
        if left and len(group) > 0:
            rest = sorted((core for core in cores.values() if core[0].id not in chosen), key=len)
            chosen += [cpu.id for core in rest for cpu in core][:left]
        if len(chosen) == count:
            break
    return sorted(chosen)


class CpuDriver:
    """Hands out exclusive CPUs of this machine."""

    name = NAME

    def __init__(
        self,
        state: Path,
        sysfs: Path = Path("/sys"),
        reserved: Iterable[int] = (),
        cgroups: Path = CGROUPS,
        proc: Path = Path("/proc"),
    ) -> None:
        self._hooks = HookServer(state / "hooks", self._pin)
        self._sysfs = sysfs
        self._cgroups = cgroups
        self._proc = proc
        self._pinned: BoundedMap[str, set[int]] = BoundedMap(
            _MAX_PINNED
        )  # container id -> CPUs of the claims whose hooks have run
        self._reserved = frozenset(reserved)  # CPUs left to the system
        self._held: dict[tuple[str, str, str | None], list[int]] = {}  # (claim uid, device, share) -> CPUs

    def _by_node(self) -> dict[int, list[Cpu]]:
        groups: dict[int, list[Cpu]] = {}
        for cpu in read_topology(self._sysfs):
            if cpu.id not in self._reserved:
                groups.setdefault(cpu.numa_node, []).append(cpu)
        return groups

    def discover(self) -> list[Pool]:
        """Return one shared device per NUMA node."""
        smt = (read_text(self._sysfs / "devices/system/cpu/smt/active") or "0") == "1"
        return [
            Pool(
                [
                    group_device(CpuGroup(len(cpus), smt, node, cpus[0].socket))
                    for node, cpus in sorted(self._by_node().items())
                ]
            )
        ]

    def recover(self, known: Sequence[PreparedClaim]) -> None:
        """Rebuild what is held from the recorded claims."""
        self._held = {
            (claim.uid, device.device, device.share_id): list(device.private["cpus"])
            for claim in known
            for device in claim.devices
            if device.private
        }

    def check_host(self) -> None:
        """Refuse to start where containers could not be pinned."""
        view = PodView(self._proc)
        check_pod("cpu", ("CAP_SYS_PTRACE",), view)
        if view.is_pod:
            check_cgroups(self._cgroups)

    async def run_beside(self) -> None:
        """Answer the hooks of containers."""
        await self._hooks.run()

    def _pin(self, key: str, container: ContainerState) -> None:
        """Pin a container to one claim's CPUs, in addition to those of its other claims."""
        cpus = {cpu for (uid, _, _), held in list(self._held.items()) if uid == key for cpu in held}
        if not cpus:
            raise DriverError(f"no CPUs are prepared for claim {key}")
        known = self._pinned.setdefault(container.id or str(container.pid), set())
        known &= {cpu for held in list(self._held.values()) for cpu in held}
        known |= cpus
        pin_container(container, known, self._proc, self._cgroups)

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Pick CPUs for every share; all or none."""
        taken: list[tuple[str, str, str | None]] = []
        prepared = []
        try:
            for allocated in claim.devices:
                key = (claim.uid, allocated.device, allocated.share_id)
                if key not in self._held:
                    self._held[key] = self._take(allocated)
                    taken.append(key)
                prepared.append(self._prepared(claim.uid, allocated, self._held[key]))
        except DriverError:
            for key in taken:
                del self._held[key]
            raise
        return prepared

    def _take(self, allocated: AllocatedDevice) -> list[int]:
        try:
            node = int(allocated.device.removeprefix("cpudevnuma"))
        except ValueError:
            raise DriverError(
                f"there is no device {allocated.device}: CPUs are offered per NUMA node"
            ) from None
        cpus = self._by_node().get(node, [])
        held = {cpu for group in self._held.values() for cpu in group}
        wanted = parse_quantity(allocated.consumed_capacity.get(CAPACITY, str(len(cpus)))).ceil_value()
        chosen = choose_cpus([cpu for cpu in cpus if cpu.id not in held], wanted)
        if chosen is None:
            raise DriverError(
                f"{wanted} CPUs of NUMA node {node} are wanted, {len(cpus) - len(held & {c.id for c in cpus})} are free"
            )
        return chosen

    def _prepared(self, claim_uid: str, allocated: AllocatedDevice, cpus: list[int]) -> PreparedDevice:
        listing = format_ranges(cpus)
        edits = ContainerEdits(
            env=[f"DRAY_CPUSET_{allocated.device.upper()}={listing}"], hooks=[self._hooks.hook(claim_uid)]
        )
        return PreparedDevice.of(allocated, edits, private={"cpus": cpus})

    def unprepare(self, claim: PreparedClaim) -> None:
        """Give the CPUs back."""
        for key in [key for key in self._held if key[0] == claim.uid]:
            del self._held[key]
