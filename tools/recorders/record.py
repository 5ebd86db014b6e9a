"""Record upstream's answers to our own cases into tests/recordings.

    make record                                   # with the version that the suite is built for
    make record KUBERNETES_VERSION=v1.38.0        # follow a release, then read the diff

Four recorders, each for one kind of case:
  * allocator: the cases of tests/cases/allocation and random cases by seed (tests/random_cases.py);
  * cel: the expressions of tests/recordings/cel/expressions.jsonl, and environments.jsonl;
  * api: the request sequences of tests/cases/api, played on a real kube-apiserver;
  * node: who may call kubelet's port; only if asked for, since it needs root (see node_access.py).

A recording has the answers only; a test that cannot find its recording fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
RECORDINGS = TESTS / "recordings"
sys.path[:0] = [str(TESTS), str(TESTS / "e2e")]

from allocation_cases import allocation_cases, expanded  # noqa: E402
from allocation_histories import N_STEPS, Follower  # noqa: E402
from random_cases import digest, random_case  # noqa: E402

from dray.api.defaults import apply_defaults  # noqa: E402
from dray.api.features import Features  # noqa: E402

DEFAULT_VERSION = "v1.37.1"
RANDOM_CASES = 3_000
# Seeds that took a mistake to light.
MORE_CASES = (
    1_071_198,  # "all devices" under a constraint that fails only after more combinations than a budget allows
)
HISTORIES = 300
# What upstream's allocator is not asked about: these are inputs of other parts of a scheduler.
NOT_UPSTREAMS = frozenset({"taintRules", "allocatedClaims", "nodes"})


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    path.write_text(text, "utf-8")
    print(f"{path.relative_to(ROOT)}: {text.count(chr(10))} answers, {len(text) // 1024} KB", file=sys.stderr)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read what `write_lines` wrote."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class UpstreamPrograms:
    """The Go program that runs upstream's packages, built for one version."""

    def __init__(self, version: str) -> None:
        build = ROOT / "tools" / "recorders" / "build"
        done = subprocess.run(
            [build],
            env={**os.environ, "KUBERNETES_VERSION": version},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        self._program = done.stdout.strip()

    def ask(self, what: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the answer to each case."""
        text = "\n".join(map(json.dumps, cases))
        done = subprocess.run(
            [self._program, what], input=text, stdout=subprocess.PIPE, text=True, check=True
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) != len(cases):
            raise SystemExit(f"{len(cases)} cases have {len(answers)} answers")
        return answers


# --- allocator --------------------------------------------------------------------


def upstream_case(document: dict[str, Any]) -> dict[str, Any]:
    """Write a case of ours in the form that the Go program reads."""
    data = expanded(document)
    if isinstance(data["node"], str):
        data["node"] = {"metadata": {"name": data["node"]}}
    if data.get("features") is None:
        data["features"] = sorted(Features.default())
    for claim in data["claims"]:
        # Upstream's allocator sees claims as the API server stores them.
        apply_defaults("resource.k8s.io", "v1", "ResourceClaim", claim, datetime(2026, 1, 1, tzinfo=UTC))
    return data


def without_share_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """Replace share ids, which are random."""
    for allocation in answer.get("results") or ():
        for result in allocation["devices"]["results"] or ():
            if "shareID" in result:
                result["shareID"] = "some"
    return answer


def record_allocator(upstream: UpstreamPrograms) -> None:
    """Record the answers of upstream's allocator."""
    named = [(name, upstream_case(document)) for name, document in allocation_cases()]
    named = [(name, case) for name, case in named if NOT_UPSTREAMS.isdisjoint(case)]
    answers = upstream.ask("allocator", [case for _, case in named])
    rows = [
        {"name": name, **without_share_ids(answer)} for (name, _), answer in zip(named, answers, strict=True)
    ]
    write_lines(RECORDINGS / "allocator" / "cases.jsonl", rows)

    seeds = [*range(RANDOM_CASES), *MORE_CASES]
    cases = [random_case(seed) for seed in seeds]
    answers = upstream.ask("allocator", cases)
    rows = [
        {"seed": seed, "case": digest(case), **without_share_ids(answer)}
        for seed, case, answer in zip(seeds, cases, answers, strict=True)
        if not answer.get("timedOut")
    ]
    write_lines(RECORDINGS / "allocator" / "random.jsonl", rows)
    write_lines(RECORDINGS / "allocator" / "histories.jsonl", history_rows(upstream))


def history_rows(upstream: UpstreamPrograms) -> list[dict[str, Any]]:
    """Return upstream's answers to the histories, step by step: an answer may be committed before the next step."""
    followers = [Follower(seed) for seed in range(HISTORIES)]
    rows: list[dict[str, Any]] = [{"seed": seed, "answers": []} for seed in range(HISTORIES)]
    for _ in range(N_STEPS):
        cases = [follower.history.upstream_case() for follower in followers]
        answers = upstream.ask("allocator", cases)
        for follower, row, case, answer in zip(followers, rows, cases, answers, strict=True):
            row["answers"].append({"case": digest(case), **without_share_ids(answer)})
            follower.advance(answer)
    return [row for row in rows if not any(answer.get("timedOut") for answer in row["answers"])]


# --- CEL --------------------------------------------------------------------------

CEL_GATES = (
    [],
    ["DRAConsumableCapacity"],
    ["DRAListTypeAttributes"],
    ["DRAConsumableCapacity", "DRAListTypeAttributes"],
)
CEL_ANSWER = ("compileError", "maxCost", "match", "error", "cost")


def record_cel(upstream: UpstreamPrograms) -> None:
    """Record compile errors, outcomes and costs of cel-go as Kubernetes configures it."""
    device = json.loads((TESTS / "cases" / "cel" / "device.json").read_text())
    for name in ("expressions.jsonl", "deviations.jsonl"):
        path = RECORDINGS / "cel" / name
        expressions = [row["expression"] for row in read_lines(path)]
        cases = [
            {"expression": each, "gates": ["DRAConsumableCapacity"], "device": device} for each in expressions
        ]
        answers = upstream.ask("cel", cases)
        write_lines(path, ({"expression": each, **a} for each, a in zip(expressions, answers, strict=True)))

    device = json.loads((TESTS / "cases" / "cel" / "device_with_lists.json").read_text())
    expressions = (TESTS / "cases" / "cel" / "environments.txt").read_text().splitlines()
    cases = [
        {"expression": each, "gates": gates, "stored": stored, "device": device}
        for each in expressions
        for gates in CEL_GATES
        for stored in (False, True)
    ]
    answers = upstream.ask("cel", cases)
    rows: Iterator[dict[str, Any]] = (
        {key: case[key] for key in ("expression", "gates", "stored")} | answer
        for case, answer in zip(cases, answers, strict=True)
    )
    write_lines(RECORDINGS / "cel" / "environments.jsonl", rows)


# --- the API ----------------------------------------------------------------------


def record_api(version: str) -> None:
    """Play the request sequences of tests/cases/api on a kube-apiserver and write its answers down."""
    peers = ROOT / "tools" / "peers" / "build"
    subprocess.run(
        [peers], env={**os.environ, "KUBERNETES_VERSION": version}, stdout=subprocess.DEVNULL, check=True
    )
    from api_sequences import GATES, play, sequences
    from peers import kubernetes

    gates = ",".join(f"{gate}=true" for gate in GATES)
    with kubernetes(gates, controllers="", version=version) as server:
        for name, steps in sequences():
            write_lines(RECORDINGS / "api" / f"{name}.jsonl", play(server.kubeconfig, steps))


def main() -> None:
    """Run the recorders that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", help="allocator, cel, api, node (default: all but node)")
    parser.add_argument("--version", default=os.environ.get("KUBERNETES_VERSION") or DEFAULT_VERSION)
    options = parser.parse_args()
    unknown = set(options.what) - {"allocator", "cel", "api", "node"}
    if unknown:
        parser.error(f"there is no recorder {sorted(unknown)[0]!r}")
    wanted = options.what or ["allocator", "cel", "api"]
    if "node" in wanted:
        from node_access import record as record_node_access

        record_node_access()
        if wanted == ["node"]:
            return
    upstream = UpstreamPrograms(options.version)
    if "allocator" in wanted:
        record_allocator(upstream)
    if "cel" in wanted:
        record_cel(upstream)
    if "api" in wanted:
        record_api(options.version)
    (RECORDINGS / "VERSION").write_text(f"{options.version}\n")


if __name__ == "__main__":
    main()
