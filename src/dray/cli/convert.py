"""`dray convert`: device-plugin manifests, rewritten for DRA."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import yaml

from dray.cli.check import read_files
from dray.cli.output import CommandError, emit, plural, say
from dray.cli.sources import add_source_flags, load_source


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="manifests (YAML or JSON), folders of them, or - for standard input",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="RESOURCE=CLASS",
        help="device class of a resource that is not known, for example example.com/npu=npu.example.com",
    )
    parser.add_argument(
        "--classes", action="store_true", help="write the device classes too, where no driver installs them"
    )
    parser.add_argument(
        "-o", "--output", choices=("yaml", "json"), default="yaml", help="how to print (default: yaml)"
    )
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Convert; exit code 0 when all was carried over, 1 when something was not, 2 for bad input."""
    from dray.sim.converting import convert_objects

    if not args.files:
        raise CommandError("nothing to convert", "give manifests, a folder, or - for standard input")
    objects = _objects(args.files)
    known = None
    if args.against or args.kubeconfig:
        known = frozenset(found.metadata.name for found in load_source(args).classes)
    conversion = convert_objects(
        objects, mapped=_mapping(args.map), known_classes=known, with_classes=args.classes
    )
    if args.output == "json":
        emit({"items": conversion.objects, "notes": conversion.notes, "lost": conversion.lost}, "json")
    else:
        for number, result in enumerate(conversion.results):
            if number:
                print("---")
            for text in result.lost:
                print(f"# not carried over: {text}")
            for text in result.notes:
                print(f"# note: {text}")
            sys.stdout.write(dump(result.obj))
    for text in dict.fromkeys(conversion.lost):
        say(f"not carried over: {text}")
    for text in dict.fromkeys(conversion.notes):
        say(f"note: {text}")
    say(
        f"{plural(conversion.changed, 'pod template')} converted"
        if conversion.changed
        else "nothing asks for devices of a known device plugin"
    )
    return 1 if conversion.lost else 0


def _objects(names: list[str]) -> list[dict[str, Any]]:
    from dray.sim.linting.documents import SyntaxProblem, read_documents

    objects = []
    for file, data in read_files(names).items():
        try:
            documents = read_documents(file, data)
        except SyntaxProblem as problem:
            raise CommandError(f"{file}:{problem.line}: {problem}") from None
        for document in documents:
            if not isinstance(document.value, dict) or not document.value.get("kind"):
                line, _, _ = document.place("")
                raise CommandError(
                    f"{file}:{line}: expected a Kubernetes object with apiVersion and kind",
                    "`dray check` finds all such places",
                )
            objects.append(_plain(document.value))
    return objects


def _mapping(texts: list[str]) -> dict[str, str]:
    mapped = {}
    for text in texts:
        resource, equals, name = text.partition("=")
        if not equals or "/" not in resource or not name:
            raise CommandError(
                f"--map {text!r} is not of the form RESOURCE=CLASS",
                "for example example.com/npu=npu.example.com",
            )
        mapped[resource] = name
    return mapped


def _plain(value: Any) -> Any:
    """Return a value of plain types only: the reader's own dicts and floats remember too much to print."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value)
    return value


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and indents lists as people do."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(obj: Any) -> str:
    """Return an object as YAML."""
    return yaml.dump(obj, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
