"""What defragmentation adds where GPUs are cut in partitions (MIG): `python -m bench.packing.moves [--load X] [--policy P]`.

The arrivals are those of `bench.packing.partitions`, as pods of a ReplicaSet with a claim each. A pod that fits nowhere asks
`plan_defrag_for` for a plan with at most `--max-moves` moves; it is made while at most 30 pods in 1,000 arrivals
have been moved. The same arrivals without moves are printed beside. Each plan is replayed by the scheduler on
the live cluster, and it is counted how many ended otherwise than they were previewed.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from dataclasses import dataclass

import msgspec

from bench.allocator.instances import Inventory, partitions, profile, request
from bench.packing.partitions import MIX, N_GPUS, SIZE, SLICES
from dray.api.core import Node, Pod
from dray.api.resource import DeviceClass, ResourceClaimTemplate, ResourceSlice
from dray.scheduler.policies import policy_named
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot
from dray.workbench.defrag import DefragPlan, plan_defrag_for

PER_THOUSAND = 30  # moves


@dataclass(slots=True)
class Counts:
    """What became of the arrivals that count."""

    asked: int = 0
    given: int = 0
    slices_asked: int = 0
    slices_given: int = 0
    plans: int = 0
    moves: int = 0
    drifted: int = 0  # plans that ended otherwise than previewed
    seconds: float = 0.0  # of CPU, for plans

    def __str__(self) -> str:
        claims, slices = 100 * self.given / self.asked, 100 * self.slices_given / self.slices_asked
        each = self.seconds / self.plans if self.plans else 0.0
        return (
            f"| {claims:.2f} | {slices:.2f} | {self.plans} | {1000 * self.moves / self.asked:.1f}"
            f" | {self.drifted} | {each:.2f} |"
        )


class Cluster:
    """Nodes with GPUs in partitions, filled and emptied by the scheduler's own code."""

    def __init__(self, inventory: Inventory, policy: str) -> None:
        data, amounts = inventory.data(), {"cpu": "1000", "memory": "1Ti", "pods": "1000"}
        self.base = Snapshot()
        self.policy = policy
        status = {"status": {"allocatable": amounts, "capacity": amounts}}
        self.base.nodes = [msgspec.convert({**each, **status}, Node) for each in data["nodes"]]
        self.base.slices = msgspec.convert(data["slices"], list[ResourceSlice])
        self.base.classes = msgspec.convert(data["classes"], list[DeviceClass])
        self.base.templates = [
            msgspec.convert(
                {
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"spec": {"devices": {"requests": [request("p", "mig", 1, profile(name))]}}},
                },
                ResourceClaimTemplate,
            )
            for name in MIX
        ]
        self.offline = OfflineCluster(self.base, policy_named(policy))

    def pod(self, name: str, wanted: str) -> str:
        """Create a pod that waits; return its key."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
        meta = {"name": name, "namespace": "default", "uid": name, "ownerReferences": [owner]}
        spec = {
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1m"}}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": wanted}],
        }
        self.offline.add_pod(msgspec.convert({"metadata": meta, "spec": spec}, Pod))
        return f"default/{name}"

    def place(self, key: str) -> str:
        """Place a pod; return its node, or nothing."""
        placed = self.offline.place([self.offline.pods[key]], explains=False).placed
        return placed[0].node if placed else ""

    def plan(self, key: str, most: int) -> DefragPlan:
        """Plan on a copy, as `dray defrag` does."""
        copy = Snapshot(features=self.base.features)
        copy.nodes, copy.slices, copy.classes = self.base.nodes, self.base.slices, self.base.classes
        copy.templates = self.base.templates
        copy.pods, copy.claims = list(self.offline.pods.values()), list(self.offline.claims.values())
        return plan_defrag_for(copy, key, most, policy_named(self.policy))

    def carry_out(self, plan: DefragPlan, key: str) -> bool:
        """Move the pods, as `--execute` does, and place the one that waits; return whether all went as previewed."""
        as_planned = True
        closed = []
        for move in plan.moves:
            node = self.offline.state.nodes[move.source].node
            closed.append(node)
            self.offline.add_node(
                msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, unschedulable=True))
            )
            self.offline.evict(self.offline.pods[move.pod])
            as_planned &= self.place(move.pod) == move.target
        for node in reversed(closed):
            self.offline.add_node(node)
        return self.place(key) == plan.result[0].node and as_planned


def play(policy: str, load: float, seed: int, n_arrivals: int, most: int, n_gpus: int = N_GPUS) -> Counts:
    """Play one seed; `most` is the most moves of a plan, 0 for none."""
    cluster, chance, counts = Cluster(partitions(n_gpus), policy), random.Random(seed), Counts()
    rate = load * n_gpus * SLICES / sum(MIX[name] * SIZE[name] for name in MIX)
    running: list[tuple[float, int, str]] = []
    now = 0.0
    for number in range(n_arrivals):
        now += chance.expovariate(rate)
        ends = now + chance.expovariate(1)
        [wanted] = chance.choices(list(MIX), list(MIX.values()))
        while running and running[0][0] <= now:
            cluster.offline.remove_pod(heapq.heappop(running)[2])
        key = cluster.pod(f"p{number}", wanted)
        node = cluster.place(key)
        counting = number >= n_arrivals // 5
        if (
            counting
            and not node
            and most
            and 1000 * (counts.moves + most) <= PER_THOUSAND * (counts.asked + 1)
        ):
            started = time.process_time()
            plan = cluster.plan(key, most)
            counts.seconds += time.process_time() - started
            counts.plans += 1
            if plan.is_reached:
                as_previewed = cluster.carry_out(plan, key)
                node = cluster.offline.pods[key].spec.node_name
                counts.moves += len(plan.moves)
                counts.drifted += not as_previewed
        if node:
            heapq.heappush(running, (ends, number, key))
        else:
            cluster.offline.remove_pod(key)
        if counting:
            counts.asked, counts.slices_asked = counts.asked + 1, counts.slices_asked + SIZE[wanted]
            if node:
                counts.given, counts.slices_given = counts.given + 1, counts.slices_given + SIZE[wanted]
    return counts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.packing.moves")
    parser.add_argument("--policy", default="pack", help="of the scheduler (default: pack)")
    parser.add_argument("--load", type=float, default=1.0, metavar="X", help="demand / slices (default: 1.0)")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="seeds 0, 1, … (default: 2)")
    parser.add_argument("--arrivals", type=int, default=1_000, metavar="N", help="per seed (default: 1000)")
    parser.add_argument("--max-moves", type=int, default=1, metavar="N", help="of one plan (default: 1)")
    args = parser.parse_args()
    print(
        "| seed | moves | accepted, % of claims | % of slices asked for | plans | moves per 1,000 arrivals",
        end="",
    )
    print(" | otherwise than previewed | s of CPU per plan |\n|---|---|---|---|---|---|---|---|")
    for seed in range(args.seeds):
        for most in (0, args.max_moves):
            counts = play(args.policy, args.load, seed, args.arrivals, most)
            print(f"| {seed} | {f'at most {most} each' if most else 'none'} {counts}", flush=True)


if __name__ == "__main__":
    main()
