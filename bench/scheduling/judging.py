"""Were the allocations of a run right? The independent checker of the tests looks at them.

It sees every change of every claim in its order (no device, share or counter may be held
twice at any time), and the state at the end: counts, selectors, constraints, nodes,
reservations, and that nobody was bound who cannot be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.scheduling import objects
from bench.scheduling.following import get
from bench.scheduling.hardware import DRIVER, Object
from bench.scheduling.workloads import ANY, BIG_AND_NEW, NOWHERE, OTHER, PART, SHAREABLE, Workload
from bench.server.load import Connection

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
import checker


def judge_history(workload: Workload, before: list[Object], lines: Iterable[bytes]) -> list[str]:
    """Judge claims as they were, and then every event of a watch."""
    ledger = checker.Ledger(checker.Inventory(list(objects.slices(workload))))
    problems = [problem for claim in before for problem in ledger.see(claim)]
    decode = msgspec.json.Decoder().decode
    for line in lines:
        event = decode(line)
        problems += ledger.see(event["object"], is_gone=event["type"] == "DELETED")
    return problems


async def judge_state(port: int, workload: Workload) -> list[str]:
    """Judge what the server has now; nobody may write any more."""
    connection = await Connection.open(port)
    paths = [objects.CLASSES, objects.pods_path(), f"{objects.RESOURCE}/resourceclaims", objects.NODES]
    classes, pods, claims, nodes = [(await get(connection, path))["items"] for path in paths]
    connection.close()
    slices = list(objects.slices(workload))
    problems: list[str] = checker.check_state(
        slices=slices, classes=classes, claims=claims, pods=pods, nodes=nodes, matches=matches
    )
    for pod in pods:
        name = pod["metadata"]["name"]
        if pod["spec"].get("nodeName") and workload.is_impossible(int(name.split("-")[1])):
            problems.append(f"pod {name} is bound although no node can serve it")
    return problems


def matches(expression: str, driver: str, device: Object) -> bool:
    """Tell what the bench's own expressions mean, without CEL."""
    attributes = device.get("attributes") or {}

    def text(name: str) -> str:
        return str(next(iter(attributes.get(name, {"": ""}).values())))

    if expression == BIG_AND_NEW:
        is_new = int(text("driverVersion").split(".")[0]) >= 560
        return is_new and bool(checker.amount(device["capacity"]["memory"]["value"]) > checker.amount("60Gi"))
    if expression.endswith(f'.profile == "{text("profile")}"'):
        return True
    answers = {
        ANY: driver == DRIVER,
        PART: driver == DRIVER and text("type") == "part",
        SHAREABLE: driver == DRIVER and device.get("allowMultipleAllocations") is True,
        OTHER: driver == "another.example.com",
        NOWHERE: text("productName") == "sold out",
    }
    return answers.get(expression, False)
