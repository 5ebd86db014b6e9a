"""`dray cel`: try a device selector on devices, without a cluster.

Three ways to use it: with an expression (and devices from a file), as a filter of
JSON lines in the format of the reference vectors (`--jsonl`), or, on a terminal
without an expression, as a small prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from dray.api.features import Features
from dray.api.parsing import ParseError, load_json, load_yaml_documents
from dray.api.quantity import QuantityError
from dray.api.resource import DeviceAttribute, DeviceCapacity
from dray.cel import (
    CompileError,
    DeviceInput,
    EvaluationError,
    Program,
    compile_derived,
    compile_selector,
    explain_false,
    key_hint,
)
from dray.cli.arguments import add_flags, parse_gates
from dray.cli.output import CommandError, add_output_flag, emit, read_stdin, say, stdin_lines
from dray.cli.sources import add_source_flags, load_source
from dray.client.bounded_files import bounded_lines, open_file, read_file

_CONSUMABLE, _LISTS = "DRAConsumableCapacity", "DRAListTypeAttributes"
_GATE_PAIRS = ((False, False), (True, False), (False, True), (True, True))
_ENVIRONMENTS = ("NewExpressions", "StoredExpressions")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "expression",
        nargs="?",
        metavar="EXPRESSION",
        help="a selector, for example: device.driver == 'gpu.example.com'",
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="with --jsonl: files of JSON lines (default: standard input)"
    )
    parser.add_argument(
        "--device",
        metavar="FILE",
        action="append",
        default=[],
        help="ResourceSlice, device list or device (YAML or JSON)",
    )
    add_source_flags(parser)
    parser.add_argument(
        "--driver", metavar="NAME", default="", help="driver of devices that are not in a ResourceSlice"
    )
    parser.add_argument(
        "--jsonl",
        action="store_true",
        help="read test cases as JSON lines and add the results (Runs) to each",
    )
    parser.add_argument(
        "--stored", action="store_true", help="compile it as an expression that is already stored"
    )
    parser.add_argument(
        "--derived", action="store_true", help="compile it as the expression of a derived attribute"
    )
    add_flags(parser, "--feature-gates")
    add_output_flag(parser, "text")


def run(args: argparse.Namespace) -> int:
    """Run the command; 0: fine, 1: an expression is wrong or failed, 2: bad input."""
    if args.jsonl:
        return _filter(args)
    devices = [named for path in args.device for named in _load_devices(path, args.driver)]
    if args.against or args.kubeconfig:
        devices += _cluster_devices(args)
    if args.expression is None:
        if sys.stdin.isatty():
            return _prompt(args, devices)
        raise CommandError("no expression given", "write: dray cel EXPRESSION [--device FILE]")
    if args.files:
        raise CommandError(f"unexpected argument {args.files[0]!r}", "devices are given with --device FILE")
    return _evaluate(args.expression, args, devices)


# --- devices -----------------------------------------------------------------------------------


def _load_devices(path: str, driver: str) -> Iterator[tuple[str, DeviceInput]]:
    try:
        documents = load_yaml_documents(read_stdin() if path == "-" else read_file(path))
    except ParseError as error:
        raise CommandError(f"{path} is neither YAML nor JSON: {error}") from None
    for document in documents:
        yield from _devices_in(document, driver, path)


def _cluster_devices(args: argparse.Namespace) -> list[tuple[str, DeviceInput]]:
    """Return every device of a cluster, a snapshot or a hardware profile."""
    from dray.workbench.inventory import Inventory

    inventory = Inventory(load_source(args))
    return [
        (
            "/".join(key),
            DeviceInput.build(
                row.driver, row.device.attributes, row.device.capacity, row.device.allow_multiple_allocations
            ),
        )
        for key, row in inventory.devices.items()
    ]


def _devices_in(document: Any, driver: str, path: str) -> Iterator[tuple[str, DeviceInput]]:
    if isinstance(document, list):
        for item in document:
            yield from _devices_in(item, driver, path)
        return
    if not isinstance(document, dict):
        raise CommandError(f"{path}: expected a ResourceSlice, a list of devices or a device")
    if isinstance(document.get("items"), list):
        yield from _devices_in(document["items"], driver, path)
        return
    spec = document.get("spec")
    if isinstance(spec, dict):
        driver = str(spec.get("driver") or driver)
        yield from _devices_in(spec.get("devices") or [], driver, path)
        return
    if isinstance(document.get("devices"), list):
        yield from _devices_in(document["devices"], str(document.get("driver") or driver), path)
        return
    # Versions v1beta1 and older wrap the properties of a device in `basic`.
    basic = document.get("basic")
    fields = basic if isinstance(basic, dict) else document
    name = str(document.get("name") or "device")
    yield name, _device(fields, str(document.get("driver") or driver), f"{path}: device {name}")


def _device(fields: dict[str, Any], driver: str, where: str) -> DeviceInput:
    def pick(*names: str) -> Any:
        return next((fields[name] for name in names if name in fields), None)

    try:
        attributes = msgspec.convert(pick("attributes", "Attributes") or {}, dict[str, DeviceAttribute])
        amounts = {
            name: amount if isinstance(amount, dict) else {"value": amount}
            for name, amount in (pick("capacity", "Capacity") or {}).items()
        }
        capacity = msgspec.convert(amounts, dict[str, DeviceCapacity])
        return DeviceInput.build(
            driver, attributes, capacity, pick("allowMultipleAllocations", "AllowMultipleAllocations")
        )
    except (msgspec.ValidationError, AttributeError) as error:
        raise CommandError(f"{where}: {error}") from None
    except QuantityError as error:
        raise CommandError(f"{where}: bad capacity: {error}") from None


# --- one expression -----------------------------------------------------------------------------


def _compile(expression: str, args: argparse.Namespace) -> Program:
    build = compile_derived if args.derived else compile_selector
    return build(expression, features=parse_gates(args.feature_gates), stored=args.stored)


def _evaluate(expression: str, args: argparse.Namespace, devices: list[tuple[str, DeviceInput]]) -> int:
    try:
        program = _compile(expression, args)
    except CompileError as error:
        if args.output == "text":
            raise CommandError(str(error), code=1) from error
        emit({"expression": expression, "compileError": str(error)}, args.output)
        return 1
    answers = [_answer(program, name, device, derived=args.derived) for name, device in devices]
    if args.output != "text":
        summary = {
            "expression": expression,
            "maxCost": program.max_cost,
            "reads": _reads(program),
            "devices": answers,
        }
        emit(summary, args.output)
    else:
        print(f"type {program.output_type}, cost at most {program.max_cost}, reads {program.reads}")
        for answer, names in _grouped(answers):
            print(_line({**answer, "device": _some(names)}))
        if len(answers) > 1 and not args.derived:
            matching = sum(answer.get("match") is True for answer in answers)
            print(f"{matching} of {len(answers)} devices match")
    return 1 if any("error" in answer for answer in answers) else 0


def _reads(program: Program) -> dict[str, Any]:
    reads = program.reads
    return {
        "everything": reads.everything,
        "attributes": sorted("/".join(key) for key in reads.attributes),
        "capacity": sorted("/".join(key) for key in reads.capacities),
        "driver": reads.driver,
        "allowMultipleAllocations": reads.allow_multiple_allocations,
    }


def _answer(program: Program, name: str, device: DeviceInput, *, derived: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"device": name}
    outcome = program.outcome(device)
    answer["cost"] = outcome.cost
    if outcome.error:
        answer["error"] = outcome.error
        hint = key_hint(outcome.error, device)
        if hint:
            answer["hint"] = hint
        return answer
    if derived:
        try:
            answer["value"] = msgspec.to_builtins(program.evaluate_derived(device))
        except EvaluationError as error:
            answer["error"] = str(error)
        return answer
    answer["match"] = outcome.value
    if outcome.value is False:
        term = explain_false(program, device)
        if term is not None:
            answer["false"] = term.text
            answer["values"] = term.values
            if term.hint:
                answer["hint"] = term.hint
    return answer


def _grouped(answers: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[str]]]:
    """Put devices with the same answer together, in the order of their first."""
    groups: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for answer in answers:
        key = json.dumps({name: value for name, value in answer.items() if name != "device"}, sort_keys=True)
        groups.setdefault(key, (answer, []))[1].append(answer["device"])
    return list(groups.values())


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _line(answer: dict[str, Any]) -> str:
    words = [f"{answer['device']}:"]
    if "error" in answer:
        words.append(f"error: {answer['error']}")
    elif "value" in answer:
        words.append(json.dumps(answer["value"]))
    else:
        words.append("match" if answer["match"] else "no match")
    if answer["cost"] is not None:
        words.append(f"(cost {answer['cost']})")
    text = " ".join(words)
    if "false" in answer:
        values = ", ".join(f"{name} = {value}" for name, value in answer["values"].items())
        text += f"\n  false: {answer['false']}" + (f"\n  where: {values}" if values else "")
    return text + (f"\n  hint: {answer['hint']}" if "hint" in answer else "")


def _prompt(args: argparse.Namespace, devices: list[tuple[str, DeviceInput]]) -> int:
    print(f"{len(devices)} devices loaded. Type an expression, or nothing to leave.", file=sys.stderr)
    while True:
        try:
            expression = input("cel> ").strip()
        except EOFError:
            return 0
        if not expression:
            return 0
        try:
            _evaluate(expression, args, devices)
        except CommandError as error:
            say(f"error: {error}")


# --- JSON lines -------------------------------------------------------------------------------------


def _filter(args: argparse.Namespace) -> int:
    # With --jsonl the first positional argument is a file, too.
    paths = [path for path in (args.expression, *args.files) if path is not None]
    for path in paths or ["-"]:
        with contextlib.nullcontext() if path == "-" else open_file(path) as stream:
            lines = stdin_lines() if stream is None else bounded_lines(stream, path)
            for number, line in enumerate(lines, 1):
                if line.strip():
                    print(json.dumps(_answer_case(line, f"{path}:{number}")), flush=True)
    return 0


def _answer_case(line: str, where: str) -> dict[str, Any]:
    try:
        case = load_json(line)
    except ValueError as error:
        raise CommandError(f"{where}: not JSON: {error}") from None
    if not isinstance(case, dict) or not isinstance(case.get("Expression"), str):
        raise CommandError(f"{where}: expected an object with the string field Expression")
    device = _device(case, str(case.get("Driver") or ""), where)
    wanted = case.get("Runs")
    if not isinstance(wanted, list) or not wanted:
        wanted = [
            {"ConsumableCapacity": consumable, "ListTypeAttributes": lists, "EnvType": environment}
            for consumable, lists in _GATE_PAIRS
            for environment in _ENVIRONMENTS
        ]
    runs = [_run_case(case["Expression"], device, gates, where) for gates in wanted]
    return {**case, "Runs": runs}


def _run_case(expression: str, device: DeviceInput, gates: Any, where: str) -> dict[str, Any]:
    if not isinstance(gates, dict):
        raise CommandError(f"{where}: each of Runs must be an object")
    consumable, lists = bool(gates.get("ConsumableCapacity")), bool(gates.get("ListTypeAttributes"))
    environment = str(gates.get("EnvType") or "NewExpressions")
    if environment not in _ENVIRONMENTS:
        raise CommandError(f"{where}: EnvType must be one of {', '.join(_ENVIRONMENTS)}, not {environment!r}")
    features = Features([name for name, on in ((_CONSUMABLE, consumable), (_LISTS, lists)) if on])
    answer: dict[str, Any] = {
        "ActualCost": None,
        "CompileError": "",
        "ConsumableCapacity": consumable,
        "EnvType": environment,
        "ListTypeAttributes": lists,
        "Match": False,
        "MatchError": "",
        "MaxCost": 0,
    }
    try:
        program = compile_selector(expression, features=features, stored=environment == "StoredExpressions")
    except CompileError as error:
        answer["CompileError"] = str(error)
        return answer
    outcome = program.outcome(device)
    answer["MaxCost"] = program.max_cost
    answer["ActualCost"] = outcome.cost
    answer["MatchError"] = outcome.error
    answer["Match"] = outcome.value is True and not outcome.error
    return answer
