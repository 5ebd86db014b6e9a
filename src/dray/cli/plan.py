"""`dray plan`: allocate claims to devices without a cluster.

Cases come as JSON lines or as YAML documents, one cluster state and one request each; answers
leave as JSON lines in the same order, or as text for people with `--explain`. One process
answers many cases and keeps its inventory where a case says `slices: same`, so a stream
of questions against 5,000 nodes pays for loading them once.

A case that cannot be read is answered with an `error` and a message on stderr; the others
go on, and the exit code is 2 at the end.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dray.allocator import AllocationError, Allocator, Plan, Policy, Unsatisfied, policy_named
from dray.allocator.cases import Case, CaseError, add_rest, add_slices, features_of, read_case
from dray.api.parsing import ParseError, load_json
from dray.api.resource import ResourceClaim, ResourceSlice
from dray.api.yaml_text import load_documents
from dray.cli.output import plain_values, say, stdin_lines
from dray.client.bounded_files import bounded_lines, open_file

_LARGE = 100  # slices

EXAMPLE = """\
input, one case per line (or YAML document):
  {"name": "one gpu", "node": "n1",
   "classes": [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'x'"}}]}}],
   "slices": [...ResourceSlices...], "claims": [...ResourceClaims...]}
optional: features (default: those of v1.37), nodes instead of node, first, policy (first-fit, pack, spread, frag, topology),
  taintRules, allocatedDevices, allocatedSharedDevices, aggregatedCapacity, allocatedClaims;
  "slices": "same" keeps the hardware, classes and nodes of the case before.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="files with cases; - or none: standard input"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("json", "text"),
        default="json",
        help="output format (default: json, one line per case)",
    )
    parser.add_argument(
        "--explain", dest="output", action="store_const", const="text", help="the same as -o text"
    )
    parser.add_argument(
        "--no-reasons", action="store_true", help="leave out why claims do not fit (faster for many nodes)"
    )


def run(args: argparse.Namespace) -> int:
    """Answer all cases; 0 when every case could be read."""
    bench = Bench()
    exit_code = 0
    for place, document in _documents(args.files or ["-"]):
        if isinstance(document, CaseError):
            answer = Answer(error=str(document))
        else:
            answer = bench.answer(document, with_reasons=args.output == "text" or not args.no_reasons)
        if answer.error is not None:
            exit_code = 2
            say(f"error: {place}: {answer.error}")
        if args.output == "text":
            sys.stdout.write(answer.for_people())
        else:
            sys.stdout.write(msgspec.json.encode(answer.fields()).decode() + "\n")
        sys.stdout.flush()
    return exit_code


# --- reading ------------------------------------------------------------------


def _documents(files: Iterable[str]) -> Iterator[tuple[str, dict[str, Any] | CaseError]]:
    """Yield every case with the place it came from, unreadable ones as errors."""
    for name in files:
        place = "standard input" if name == "-" else name
        try:
            if name == "-":
                yield from _read(stdin_lines(), place)
                continue
            with open_file(name) as stream:
                yield from _read(bounded_lines(stream, place), place)
        except OSError as error:
            yield place, CaseError(f"cannot read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            yield (
                place,
                CaseError(f"cannot read: not UTF-8 text: {error.reason} at byte {error.start} of a line"),
            )


def _read(stream: Iterator[str], name: str) -> Iterator[tuple[str, dict[str, Any] | CaseError]]:
    """Read JSON lines as they come, anything else as YAML documents."""
    lines: Iterator[tuple[int, str]] = enumerate(stream, start=1)
    may_be_yaml = True
    while (entry := next(lines, None)) is not None:
        number, line = entry
        if not line.strip():
            continue
        if may_be_yaml and not line.lstrip().startswith("{"):
            yield from _read_yaml(line + "".join(stream), name)
            return
        place = f"{name}, line {number}"
        try:
            yield place, _mapping(load_json(line))
        except ParseError as error:
            if may_be_yaml and not line.rstrip().endswith("}"):
                rest = list(lines)
                if not any(other.startswith("{") for _, other in rest):
                    # One JSON object over many lines: YAML reads that as well.
                    yield from _read_yaml(line + "".join(other for _, other in rest), name)
                    return
                lines, may_be_yaml = iter(rest), False
            yield place, CaseError(f"not JSON: {error}")


def _read_yaml(text: str, name: str) -> Iterator[tuple[str, dict[str, Any] | CaseError]]:
    try:
        documents = load_documents(text)
    except ParseError as error:
        yield name, CaseError(f"neither JSON lines nor YAML: {' '.join(str(error).split())}")
        return
    for number, document in enumerate(documents, start=1):
        if document is not None:
            yield f"{name}, document {number}", _mapping(plain_values(document))


def _mapping(document: object) -> dict[str, Any] | CaseError:
    if isinstance(document, dict):
        return document
    return CaseError(f"a case is an object with claims, slices and a node, not {type(document).__name__}")


# --- answering ----------------------------------------------------------------


@dataclass
class NodeAnswer:
    """The answer for one node."""

    node: str
    results: list[dict[str, Any]] | None = None  # None: does not fit
    error: str | None = None
    reasons: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # the reasons for people


@dataclass
class Answer:
    """The answer for one case."""

    name: str = ""
    nodes: list[NodeAnswer] = field(default_factory=list)
    steps: int = 0
    ms: float = 0.0
    error: str | None = None  # the case could not be read

    def fields(self) -> dict[str, Any]:
        """Return the JSON form."""
        fields: dict[str, Any] = {
            "name": self.name,
            "nodes": [
                {"node": n.node, "results": n.results, "error": n.error, "reasons": n.reasons}
                for n in self.nodes
            ],
            "steps": self.steps,
            "ms": round(self.ms, 4),
        }
        if self.error is not None:
            fields["error"] = self.error
        return fields

    def for_people(self) -> str:
        """Return the form for people."""
        lines = [f"# {self.name or 'unnamed case'} ({self.steps} steps, {self.ms:.2f} ms)"]
        if self.error is not None:
            lines.append(f"  cannot be read: {self.error}")
        for node in self.nodes:
            if node.results is None and node.error:
                lines.append(f"  {node.node}: error: {node.error}")
            elif node.results is None:
                lines.append(f"  {node.node}: does not fit")
            else:
                lines.append(f"  {node.node}: fits")
                lines += [f"    {line}" for result in node.results for line in _allocation_lines(result)]
            lines += [f"    {line}" for line in node.lines]
        return "\n".join(lines) + "\n"


def _allocation_lines(allocation: dict[str, Any]) -> Iterator[str]:
    for result in allocation.get("devices", {}).get("results", []):
        extra = ""
        if result.get("consumedCapacity"):
            amounts = ", ".join(f"{name} {value}" for name, value in result["consumedCapacity"].items())
            extra += f" taking {amounts}"
        if result.get("adminAccess"):
            extra += " (admin access)"
        yield f"{result['request']}: {result['driver']}/{result['pool']}/{result['device']}{extra}"


class Bench:
    """Answers cases one after the other, keeping the hardware where asked to."""

    def __init__(self) -> None:
        self._allocator: Allocator | None = None
        self._slices: list[ResourceSlice] = []
        self._release: Callable[[], None] = lambda: None

    def answer(self, document: dict[str, Any], *, with_reasons: bool) -> Answer:
        """Answer one case; what is wrong with it goes into the answer."""
        name = str(document.get("name", ""))
        try:
            case = read_case(document)
            policy = policy_named(case.policy) if case.policy else None
            allocator = self._prepare(case, keeps_features="features" not in document)
        except ValueError as error:
            return Answer(name, error=str(error))
        nodes = [node.metadata.name for node in case.all_nodes()] or list(allocator.nodes)
        if not nodes:
            return Answer(name, error="the case names no node; give `node` or `nodes`")
        return _ask(
            Answer(name), allocator, case.claims or [], nodes, case.first, policy, with_reasons=with_reasons
        )

    def _prepare(self, case: Case, *, keeps_features: bool) -> Allocator:
        if case.slices == "same":
            if self._allocator is None:
                raise CaseError('slices are "same", but no case before this one could be read')
            if not keeps_features and features_of(case.features) != self._allocator.features:
                same = msgspec.structs.replace(case, slices=self._slices)
                return self._load(same, list(self._allocator.classes.values()))
            self._release()
            self._release = add_rest(self._allocator, case)
            return self._allocator
        return self._load(case, [])

    def _load(self, case: Case, classes: list[Any]) -> Allocator:
        allocator = Allocator(features_of(case.features), new_share_id=lambda: str(uuid.uuid4()))
        if isinstance(case.slices, str):
            raise CaseError(f'slices must be a list of ResourceSlices or "same", not {case.slices!r}')
        for device_class in classes:
            allocator.set_class(device_class)
        add_slices(allocator, case)
        self._release = add_rest(allocator, case)
        self._allocator, self._slices = allocator, case.slices or []
        if len(self._slices) > _LARGE:
            # What is loaded stays; the collector need not visit it for every case.
            gc.collect()
            gc.freeze()
        return allocator


def _ask(
    answer: Answer,
    allocator: Allocator,
    claims: list[ResourceClaim],
    nodes: list[str],
    first: int | None,
    policy: Policy | None,
    *,
    with_reasons: bool,
) -> Answer:
    started = time.perf_counter()
    answers: list[tuple[str, Plan | Unsatisfied | AllocationError]] = []
    try:
        found = allocator.plan_nodes(claims, nodes, first=None if policy else first, policy=policy)
    except AllocationError:
        # Some node ends the attempt with an error: say on which nodes.
        for node in nodes:
            answers.append((node, _ask_node(allocator, node, claims)))
            if first is not None and sum(isinstance(a, Plan) for _, a in answers) >= first:
                break
    else:
        answer.steps = found.steps
        planned: dict[str, Plan | Unsatisfied] = {plan.node: plan for plan in found.plans[:first]}
        if policy is None:  # in the order asked; a policy puts the best first
            asked = [node for node in nodes if node in planned or node in found.refusals]
        else:
            asked = [*planned, *found.refusals]
        answers = [(node, planned.get(node) or found.refusals[node]) for node in asked]
        for plan in planned.values():
            assert isinstance(plan, Plan)
            plan.allocations  # noqa: B018  # built when they are read
    answer.ms = (time.perf_counter() - started) * 1000
    answer.nodes = [_node_answer(node, found, with_reasons=with_reasons) for node, found in answers]
    return answer


def _ask_node(
    allocator: Allocator, node: str, claims: list[ResourceClaim]
) -> Plan | Unsatisfied | AllocationError:
    try:
        return allocator.plan(node, claims)
    except AllocationError as error:
        return error


def _node_answer(node: str, found: Plan | Unsatisfied | AllocationError, *, with_reasons: bool) -> NodeAnswer:
    if isinstance(found, AllocationError):
        return NodeAnswer(node, error=str(found))
    if isinstance(found, Plan):
        # No claims, nothing allocated: null, as the reference vectors have it.
        return NodeAnswer(node, [msgspec.to_builtins(allocation) for allocation in found.allocations] or None)
    answer = NodeAnswer(node, error=found.error)
    if found.gave_up:
        answer.error = found.summary
    if with_reasons:
        for reasons in found.reasons:
            answer.reasons.append(
                {
                    "claim": reasons.claim,
                    "request": reasons.request,
                    "wanted": reasons.wanted,
                    "devices": reasons.devices,
                    "usable": reasons.usable,
                    "because": [
                        {"cause": r.cause, "detail": r.detail, "devices": r.devices} for r in reasons.reasons
                    ],
                    "hint": reasons.relaxation,
                }
            )
            answer.lines.append(str(reasons))
    return answer
