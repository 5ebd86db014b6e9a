"""How many partitions (MIG) each policy accepts: `python -m bench.packing.partitions [--loads …] [--seeds N]`.

64 GPUs of eight memory slices on eight nodes, each with every placement of every profile. Claims for one partition arrive
at random (Poisson) and hold it for a random time (exponential); who fits nowhere is refused. A load of 1.0 is as much
demand as there are slices. Node and device are chosen by the allocator, as the scheduler has it choose for partitions.

The first fifth of the arrivals fills the cluster and does not count. Policies get the same arrivals.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import msgspec

from bench.allocator.instances import claim, partitions, profile, request
from bench.allocator.measuring import load_allocator
from dray.allocator import policy_named
from dray.api.resource import ResourceClaim

N_GPUS, SLICES = 64, 8
MIX = {"1g": 0.40, "2g": 0.25, "3g": 0.20, "4g": 0.05, "7g": 0.10}  # share of the arrivals
SIZE = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}  # memory slices
HEAD = """| load | policy | seeds | accepted, % of claims | % of slices asked for | ms of CPU per claim |
|---|---|---|---|---|---|"""


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of the arrivals of one seed."""

    claims: float  # percent
    slices: float  # percent
    milliseconds: float  # of CPU, per claim


def accepted(policy: str, load: float, seed: int, n_arrivals: int) -> Accepted:
    """Play one seed."""
    allocator = load_allocator(partitions(N_GPUS))
    claims = {
        name: msgspec.convert(claim(request("p", "mig", 1, profile(name))), list[ResourceClaim])
        for name in MIX
    }
    chance = random.Random(seed)
    rate = load * N_GPUS * SLICES / sum(MIX[name] * SIZE[name] for name in MIX)
    running: list[tuple[float, int, Callable[[], None]]] = []  # (end, number, undo)
    asked = given = slices_asked = slices_given = 0
    now, started = 0.0, time.process_time()
    for number in range(n_arrivals):
        now += chance.expovariate(rate)
        ends = now + chance.expovariate(1)
        [name] = chance.choices(list(MIX), list(MIX.values()))
        while running and running[0][0] <= now:
            heapq.heappop(running)[2]()
        plans = allocator.plan_nodes(claims[name], policy=policy_named(policy)).plans
        if plans:
            undo = allocator.take(str(number), plans[0].allocations[0])
            heapq.heappush(running, (ends, number, undo))
        if number >= n_arrivals // 5:
            asked, slices_asked = asked + 1, slices_asked + SIZE[name]
            if plans:
                given, slices_given = given + 1, slices_given + SIZE[name]
    spent = (time.process_time() - started) * 1000 / n_arrivals
    return Accepted(100 * given / asked, 100 * slices_given / slices_asked, spent)


def main() -> None:
    """Measure and print a row per load and policy as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.packing.partitions")
    parser.add_argument("--loads", default="0.8,1.0,1.2", help="comma-separated (default: 0.8,1.0,1.2)")
    parser.add_argument("--policies", default="first-fit,pack,frag", help="comma-separated")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0, 1, … (default: 5)")
    parser.add_argument("--arrivals", type=int, default=2_000, metavar="N", help="per seed (default: 2000)")
    args = parser.parse_args()
    print(HEAD)
    for load in map(float, args.loads.split(",")):
        for policy in args.policies.split(","):
            found = [accepted(policy, load, seed, args.arrivals) for seed in range(args.seeds)]
            print(
                f"| {load} | {policy} | {args.seeds} | {mean(each.claims for each in found):.2f}"
                f" | {mean(each.slices for each in found):.2f} | {mean(each.milliseconds for each in found):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
