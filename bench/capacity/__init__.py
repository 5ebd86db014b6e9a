"""How far `plan_capacity` is above the cheapest plan there is, and how long it takes.

The optimum comes from a mixed-integer programme, solved by HiGHS (`pip install highspy`; without it the section says
so). It is exact because the instances are simple: devices are counted by model, so all maximal fillings of a node can be listed,
and the programme chooses how many nodes to fill in which way. The planner knows nothing of that: it sees pods,
claim templates with CEL selectors, and a catalogue.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from dray.api.core import Node, NodeStatus
from dray.api.meta import ObjectMeta
from dray.api.resource import ResourceSlice
from dray.sim.snapshot import Snapshot
from dray.workbench.capacity import Catalogue, NodeType, plan_capacity

SIZES: Final = (50, 300, 2000)
SEEDS: Final = (1, 2, 3, 4, 5)
_SECONDS: Final = 60.0  # for one optimum

HEAD = """## Capacity: the price of a plan

Pending pods of seven kinds (1, 2, 4 or 8 GPUs, GPUs of one model by a CEL selector, cpu only) and a catalogue of five node types;
`plan_capacity` beside the exact optimum (all maximal fillings listed, HiGHS, gap 0). Every plan is verified by `decide`. Mean and worst of the
seeds; CPU seconds of the planner, verification included.

| pods | seeds | above the optimum, mean | worst | CPU seconds, mean | worst |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that ask for the same."""

    name: str
    cpu: int
    memory: int  # GiB
    gpus: int
    models: tuple[str, ...] = ()  # empty: any


@dataclass(frozen=True, slots=True)
class Machine:
    """A node type in numbers."""

    name: str
    price: float
    cpu: int
    memory: int
    gpus: int
    model: str


KINDS: Final = (
    Kind("one", 8, 32, 1),
    Kind("two", 16, 64, 2),
    Kind("four", 24, 128, 4),
    Kind("eight", 64, 512, 8),
    Kind("hopper", 8, 64, 1, ("Hopper",)),
    Kind("small-cpu", 4, 8, 0),
    Kind("large-cpu", 12, 64, 0),
)
MACHINES: Final = (
    Machine("dgx-h100", 32.77, 224, 2048, 8, "Hopper"),
    Machine("dgx-a100", 20.5, 256, 2048, 8, "Ampere"),
    Machine("l40s", 6.4, 64, 512, 4, "Ada Lovelace"),
    Machine("workstation", 2.1, 32, 128, 2, "Ada Lovelace"),
    Machine("cpu", 0.9, 32, 128, 0, ""),
)


def instance(n_pods: int, seed: int) -> tuple[Snapshot, Catalogue, dict[str, int]]:
    """Return pending pods, a catalogue and how many pods of each kind there are."""
    chance = random.Random(seed)
    snapshot = Snapshot()
    for kind in KINDS:
        if kind.gpus:
            snapshot.add(_template(kind))
    counts = dict.fromkeys((kind.name for kind in KINDS), 0)
    for number in range(n_pods):
        kind = chance.choice(KINDS)
        counts[kind.name] += 1
        snapshot.add(_pod(kind, number))
    types = tuple(NodeType(machine.name, machine.price, partial(_node, machine)) for machine in MACHINES)
    return snapshot, Catalogue(types), counts


def _node(machine: Machine, name: str) -> tuple[Node, list[ResourceSlice]]:
    """Return a node with the machine's devices."""
    amounts = {"cpu": str(machine.cpu), "memory": f"{machine.memory}Gi", "pods": "250"}
    node = Node(metadata=ObjectMeta(name=name), status=NodeStatus(capacity=amounts, allocatable=amounts))
    if not machine.gpus:
        return node, []
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"architecture": {"string": machine.model}, "type": {"string": "gpu"}},
        }
        for number in range(machine.gpus)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": devices}
    return node, [msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)]


def _template(kind: Kind) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", "count": kind.gpus}
    if kind.models:
        expression = f"device.attributes['gpu.nvidia.com'].architecture in {list(kind.models)}"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": kind.name},
        "spec": {"spec": spec},
    }


def _pod(kind: Kind, number: int) -> dict[str, Any]:
    requests = {"cpu": str(kind.cpu), "memory": f"{kind.memory}Gi"}
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}]
    }
    if kind.gpus:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": kind.name}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": spec}


# --- the optimum --------------------------------------------------------------------


def fillings(machine: Machine, counts: dict[str, int]) -> list[tuple[int, ...]]:
    """List the maximal fillings of a machine: those to which no further pod can be added."""
    kinds = [
        kind
        for kind in KINDS
        if not kind.gpus or (kind.gpus <= machine.gpus and (not kind.models or machine.model in kind.models))
    ]
    found: set[tuple[int, ...]] = set()

    def most(kind: Kind, cpu: int, memory: int, gpus: int) -> int:
        by_gpu = gpus // kind.gpus if kind.gpus else 1 << 30
        return min(cpu // kind.cpu, memory // kind.memory, by_gpu, counts[kind.name])

    def fill(index: int, cpu: int, memory: int, gpus: int, taken: dict[str, int]) -> None:
        if index == len(kinds):
            for kind in kinds:
                if taken[kind.name] < counts[kind.name] and most(kind, cpu, memory, gpus):
                    return  # not maximal
            found.add(tuple(taken.get(kind.name, 0) for kind in KINDS))
            return
        kind = kinds[index]
        for count in range(most(kind, cpu, memory, gpus), -1, -1):
            taken[kind.name] = count
            fill(
                index + 1,
                cpu - count * kind.cpu,
                memory - count * kind.memory,
                gpus - count * kind.gpus,
                taken,
            )

    fill(0, machine.cpu, machine.memory, machine.gpus, {})
    return sorted(found)


def optimum(counts: dict[str, int]) -> tuple[float, bool]:
    """Return the least price, and whether it was proved (else it is a lower bound)."""
    import highspy
    import numpy

    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("time_limit", _SECONDS)
    solver.setOptionValue("mip_rel_gap", 0.0)
    for kind in KINDS:
        solver.addRow(
            counts[kind.name], highspy.kHighsInf, 0, numpy.array([], dtype=numpy.int32), numpy.array([])
        )
    column = 0
    for machine in MACHINES:
        for filling in fillings(machine, counts):
            rows = [index for index, count in enumerate(filling) if count]
            solver.addCol(
                machine.price,
                0,
                sum(counts.values()),
                len(rows),
                numpy.array(rows, dtype=numpy.int32),
                numpy.array([float(filling[index]) for index in rows]),
            )
            solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
            column += 1
    solver.run()
    is_proved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    info = solver.getInfo()
    return (info.objective_function_value if is_proved else info.mip_dual_bound), is_proved


# --- measuring ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """One instance."""

    n_pods: int
    seed: int
    price: float
    least: float
    is_proved: bool
    seconds: float

    @property
    def above(self) -> float:
        """Return the percentage above the optimum."""
        return 100 * (self.price / self.least - 1)


def measure(n_pods: int, seed: int) -> Result:
    """Plan one instance and compare."""
    snapshot, catalogue, counts = instance(n_pods, seed)
    started = time.process_time()
    plan = plan_capacity(snapshot, snapshot.pods, catalogue)
    seconds = time.process_time() - started
    assert len(plan.placed) == n_pods, plan.unserved
    least, is_proved = optimum(counts)
    return Result(n_pods, seed, plan.cost, least, is_proved, seconds)


def run(quick: bool) -> str:
    """Measure all sizes (`quick`: the smallest, one seed) and return the section."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return (
            HEAD.partition("\n\n")[0]
            + "\n\nNot measured: highspy is not installed (pip install highspy numpy)."
        )
    lines = []
    unproved = 0
    for size in SIZES[:1] if quick else SIZES:
        results = [measure(size, seed) for seed in (SEEDS[:1] if quick else SEEDS)]
        unproved += sum(not each.is_proved for each in results)
        above = [each.above for each in results]
        seconds = [each.seconds for each in results]
        lines.append(
            f"| {size} | {len(results)} | {sum(above) / len(above):.2f} % | {max(above):.2f} %"
            f" | {sum(seconds) / len(seconds):.1f} | {max(seconds):.1f} |"
        )
    note = (
        f"\n{unproved} optima were not proved within {_SECONDS:.0f} s; their lower bounds are used.\n"
        if unproved
        else ""
    )
    return HEAD + "\n".join(lines) + "\n" + note
