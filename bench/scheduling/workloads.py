"""The workloads: nodes with devices, claims that hold some already, pods that want the rest.

A workload knows a good answer to its own question (`Layout.free`): places that fit beside
one another and beside what is taken. The mock that decides nothing takes them one after
the other, and the tests let the checker judge them, so a workload that asks for too much
does not go unnoticed.

Modes: *burst*, all pods at once; *steady*, so many in flight, each bound pod is deleted
and replaced; *serial*, the next pod when the claim of the last one is gone.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from bench.scheduling import hardware
from bench.scheduling.hardware import DRIVER, ROOT, Hardware, Object, Results, result

SEED = 20  # every run has the same devices taken

ANY = f'device.driver == "{DRIVER}"'
PART = f'{ANY} && device.attributes["{DRIVER}"].type == "part"'
SHAREABLE = f"{ANY} && device.allowMultipleAllocations == true"
OTHER = 'device.driver == "another.example.com"'
BIG_AND_NEW = (
    f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi")) && '
    f'device.attributes["{DRIVER}"].driverVersion.compareTo(semver("560.0.0")) >= 0'
)
NOWHERE = f'device.attributes["{DRIVER}"].productName == "sold out"'
CLASSES = {"gpu": ANY, "part": PART, "link": SHAREABLE, "other": OTHER}


def of_profile(profile: str) -> str:
    """Return the expression that selects parts of a profile."""
    return f'device.attributes["{DRIVER}"].profile == "{profile}"'


# --- claims ---------------------------------------------------------------------


def exactly(count: int = 1, device_class: str = "gpu", selector: str = "", **more: object) -> Object:
    """Return what a request or a subrequest asks for."""
    wanted = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count, **more}
    if selector:
        wanted["selectors"] = [{"cel": {"expression": selector}}]
    return wanted


def claim(wanted: Object, **more: object) -> Object:
    """Return the spec of a claim with one request."""
    return {"devices": {"requests": [{"name": "wanted", "exactly": wanted}], **more}}


ONE = claim(exactly())
FIVE_ON_A_ROOT: Object = {
    "devices": {
        "requests": [{"name": f"wanted-{index}", "exactly": exactly()} for index in range(5)],
        "constraints": [{"matchAttribute": ROOT}],
    }
}
SECOND_CHOICE: Object = {
    "devices": {
        "requests": [
            {
                "name": "wanted",
                "firstAvailable": [{"name": "best", **exactly(1, "other")}, {"name": "good", **exactly()}],
            }
        ]
    }
}
TWO_SHARES = claim(
    exactly(2, "link", capacity={"requests": {"bandwidth": hardware.SHARE}}),
    constraints=[{"requests": ["wanted"], "distinctAttribute": f"{DRIVER}/index"}],
)


# --- what is taken, and where there is room -------------------------------------


class Place(NamedTuple):
    """Devices of one node for one claim."""

    node: int
    results: Results


@dataclass
class Layout:
    """A cluster before the first pod."""

    taken: list[tuple[Object, Place]] = field(default_factory=list)  # (spec of a claim, what it holds)
    free: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))  # by kind of claim


Room = Callable[[int], Layout]  # number of nodes -> what is taken of them, and what is left


def singles(n_devices: int, n_taken: Callable[[int], int]) -> Room:
    """Return rooms where so many of all devices are taken, on random nodes."""

    def room(n_nodes: int) -> Layout:
        all_places = [
            Place(node, [result(node, f"gpu-{index}")])
            for node in range(n_nodes)
            for index in range(n_devices)
        ]
        total = len(all_places)
        chosen = set(random.Random(SEED).sample(range(total), n_taken(total)))
        layout = Layout(taken=[(ONE, all_places[at]) for at in sorted(chosen)])
        layout.free["one"] = [place for at, place in enumerate(all_places) if at not in chosen]
        return layout

    return room


def none(total: int) -> int:
    return 0


def half(total: int) -> int:
    return total // 2


def all_but_ten(total: int) -> int:
    return max(0, total - 10)


def all_but_the_last(n_devices: int) -> Room:
    """Return rooms with one free device, on the last node."""

    def room(n_nodes: int) -> Layout:
        layout = Layout()
        for node in range(n_nodes):
            n_taken = n_devices - (node == n_nodes - 1)
            place = Place(node, [result(node, f"gpu-{index}") for index in range(n_taken)])
            layout.taken.append((claim(exactly(n_taken)), place))
        layout.free["one"] = [Place(n_nodes - 1, [result(n_nodes - 1, f"gpu-{n_devices - 1}")])]
        return layout

    return room


def big_and_new(n_nodes: int) -> Layout:
    """Return room on those whole devices that are large and have a new driver."""
    nodes = [node for node in range(n_nodes) if not hardware.is_old(node)]
    large = [index for index in range(10) if not hardware.is_small(index)]
    return Layout(
        free={"one": [Place(node, [result(node, f"gpu-{index}")]) for node in nodes for index in large]}
    )


def roots(n_nodes: int) -> Layout:
    """Return room for five devices of one root, of which a node has two."""
    fives = [[index for index in range(10) if hardware.root_of(index) == root] for root in range(2)]
    places = [
        Place(node, [result(node, f"gpu-{index}", f"wanted-{at}") for at, index in enumerate(five)])
        for node in range(n_nodes)
        for five in fives
    ]
    return Layout(free={"one": places})


def second_choices(n_nodes: int) -> Layout:
    places = [
        Place(node, [result(node, f"gpu-{index}", "wanted/good")])
        for node in range(n_nodes)
        for index in range(10)
    ]
    return Layout(free={"one": places})


def last_seven(n_nodes: int) -> Layout:
    places = [Place(node, [result(node, f"part-{at}") for at in range(1, 8)]) for node in range(n_nodes)]
    return Layout(free={"one": places})


MIX = ["1g.10gb"] * 5 + ["2g.20gb"] * 3 + ["3g.40gb"] * 2  # profiles of ten pods


def gpus_in_parts(n_nodes: int) -> Layout:
    """Return rooms where the first device of every second node is taken as a whole."""
    layout = Layout()
    profiles = sorted(set(MIX))
    n_free = 0
    for node in range(n_nodes):
        for gpu in range(2):
            if gpu == 0 and node % 2 == 0:
                layout.taken.append((ONE, Place(node, [result(node, "gpu-0")])))
                continue
            profile = profiles[n_free % len(profiles)]
            n_free += 1
            for part in hardware.parts_of(profile, gpu):
                layout.free[profile].append(Place(node, [result(node, part)]))
    return layout


def pairs_of_shares(n_nodes: int) -> Layout:
    """Return rooms where half of the bandwidth is taken, in pairs of shares of two links."""
    chance = random.Random(SEED)
    places = []
    for node in range(n_nodes):
        for first in range(0, hardware.LINKS, 2):
            for _ in range(hardware.SHARES):
                pair = [
                    result(
                        node,
                        f"link-{first + other}",
                        shareID=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
                        consumedCapacity={"bandwidth": hardware.SHARE},
                    )
                    for other in range(2)
                ]
                places.append(Place(node, pair))
    chance.shuffle(places)
    middle = len(places) // 2
    return Layout([(TWO_SHARES, place) for place in places[:middle]], {"one": places[middle:]})


# --- the list -------------------------------------------------------------------

Mode = Literal["burst", "steady", "serial"]
IN_FLIGHT = 10


def always_one(number: int) -> str:
    return "one"


def one_in_ten_impossible(number: int) -> str:
    if number % 10 != 9:
        return "one"
    return ("unknown", "too-many")[number // 10 % 2]


@dataclass(frozen=True)
class Workload:
    """One row of the tables."""

    name: str
    about: str
    mode: Mode
    hardware: Hardware
    room: Room
    claims: dict[str, Object]  # kind -> spec, each becomes a template
    kind_of: Callable[[int], str] = always_one  # number of a pod -> kind of its claim
    n_nodes: int = 500
    n_pods: int = IN_FLIGHT  # in flight, when steady
    short: int = 0  # pods of a burst when time is short; 0: as many
    impossible: frozenset[str] = frozenset()  # kinds that no node can serve

    def is_impossible(self, number: int) -> bool:
        """Tell whether no node can ever serve a pod."""
        return self.kind_of(number) in self.impossible

    def sized(
        self, n_nodes: int | None = None, n_pods: int | None = None, *, is_short: bool = False
    ) -> Workload:
        """Return it with other numbers of nodes, and of pods if it is a burst.

        On fewer nodes a burst has no more pods a node than it had: there would be no room for them.
        """
        nodes, wanted = n_nodes or self.n_nodes, self.n_pods
        if self.mode == "burst":
            wanted = n_pods or (self.short if is_short and self.short else self.n_pods)
            wanted = max(1, min(wanted, self.n_pods * nodes // self.n_nodes))
        return replace(self, n_nodes=nodes, n_pods=wanted)


def _all() -> list[Workload]:
    only_one = {"one": ONE}
    parts = {profile: claim(exactly(1, "part", of_profile(profile))) for profile in sorted(set(MIX))}
    no_use = frozenset({"unknown", "too-many"})

    def with_impossible(n_devices: int) -> dict[str, Object]:
        return {
            **only_one,
            "unknown": claim(exactly(1, selector=NOWHERE)),
            "too-many": claim(exactly(n_devices + 1)),
        }

    ten, eight = hardware.whole(10), hardware.whole(8)
    return [
        Workload("burst", "burst, half of the devices taken", "burst", ten, singles(10, half), only_one,
                 n_pods=2500, short=1000),
        Workload("empty", "steady, all devices free", "steady", ten, singles(10, none), only_one),
        Workload("half", "steady, half of the devices taken", "steady", ten, singles(10, half), only_one),
        Workload("full", "steady, all devices but ten taken", "steady", ten, singles(10, all_but_ten), only_one),
        Workload("selector", "CEL on a version and a quantity", "steady", ten, big_and_new,
                 {"one": claim(exactly(1, selector=BIG_AND_NEW))}),
        Workload("match", "five requests on one PCIe root", "steady", ten, roots, {"one": FIVE_ON_A_ROOT}),
        Workload("first-available", "the second choice, the first has no devices", "steady", ten, second_choices,
                 {"one": SECOND_CHOICE}),
        Workload("partitions", "burst, MIG-like parts of three profiles, a quarter taken", "burst",
                 hardware.partitioned, gpus_in_parts, parts, lambda number: MIX[number % len(MIX)],
                 n_pods=500, short=300),
        Workload("backtracking", "seven of eight parts, the first misleads", "steady", hardware.misleading,
                 last_seven, {"one": claim(exactly(7))}),
        Workload("shares", "burst, shares of two links, half taken", "burst", hardware.shared, pairs_of_shares,
                 {"one": TWO_SHARES}, n_pods=1000, short=500),
        Workload("impossible", "burst, half taken, one pod in ten is impossible", "burst", ten, singles(10, half),
                 with_impossible(10), one_in_ten_impossible, n_pods=1000, short=500, impossible=no_use),
        Workload("burst-5000", "burst, all devices free", "burst", eight, singles(8, none), only_one,
                 n_nodes=5000, n_pods=2000, short=500),
        Workload("impossible-5000", "burst, all free, one pod in ten is impossible", "burst", eight,
                 singles(8, none), with_impossible(8), one_in_ten_impossible,
                 n_nodes=5000, n_pods=1000, short=200, impossible=no_use),
        Workload("last-5000", "one by one, one device is free", "serial", eight, all_but_the_last(8), only_one,
                 n_nodes=5000),
    ]  # fmt: skip


WORKLOADS = {workload.name: workload for workload in _all()}
