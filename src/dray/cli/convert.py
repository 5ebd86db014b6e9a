"""`dray convert`: manifests of device plugins and of former API versions, rewritten for resource.k8s.io/v1."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dray.api.json_types import JsonObject
from dray.api.parsing import decode_text
from dray.api.wording import plural
from dray.cli.manifests import read_files
from dray.cli.output import CommandError, add_output_flag, as_data, emit, plain_values, say
from dray.cli.sources import add_source_flags, load_source
from dray.host.files import write_atomically
from dray.workbench.conversion import Conversion, Converted
from dray.workbench.conversion.yaml_editing import rewritten
from dray.workbench.conversion.yaml_texts import as_yaml


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
        help="device class of a resource that dray does not know, for example example.com/npu=npu.example.com",
    )
    parser.add_argument(
        "--classes", action="store_true", help="write the device classes too, where no driver installs them"
    )
    parser.add_argument(
        "--diff", action="store_true", help="print what would change in each file, as a unified diff"
    )
    parser.add_argument(
        "--in-place", action="store_true", help="change the files themselves; comments are kept"
    )
    add_output_flag(parser, "yaml")
    add_source_flags(parser)


@dataclass(slots=True)
class _File:
    """One file, its objects, and what became of them."""

    name: str
    text: str
    objects: list[JsonObject]
    is_json: bool
    groups: list[list[Converted]] = field(default_factory=list)

    def converted(self, made: Sequence[Converted], *, with_comments: bool) -> str:
        """Return the new text: edited where that is possible, else written anew."""
        comments = [_comments(group) if with_comments else "" for group in self.groups]
        wanted = [[result.obj for result in group] for group in self.groups]
        if made and wanted:
            wanted[0] = [*(result.obj for result in made), *wanted[0]]
        edited = None if self.is_json else rewritten(self.text, wanted, comments)
        if edited is not None:
            return edited
        if not self.is_json and _has_comments(self.text):
            say(f"warning: {self.name}: written anew: its comments could not be kept")
        parts = [as_yaml(result.obj) for result in made]
        for group, comment in zip(self.groups, comments, strict=True):
            parts += [as_yaml(result.obj) for result in group[:-1]]
            parts.append(comment + as_yaml(group[-1].obj))
        return "---\n".join(parts)

    def as_json(self, made: Sequence[Converted]) -> str:
        """Return the new text of a JSON file: one object, or a list of several."""
        objects = [result.obj for group in ([*made], *self.groups) for result in group]
        whole = objects[0] if len(objects) == 1 else {"apiVersion": "v1", "kind": "List", "items": objects}
        return as_data(whole, "json")

    @property
    def is_changed(self) -> bool:
        """Return whether any object is another one now."""
        return [result.obj for group in self.groups for result in group] != self.objects


def run(args: argparse.Namespace) -> int:
    """Convert; exit code 0 when all was carried over, 1 when something was not, 2 for bad input."""
    from dray.workbench.conversion import convert_objects

    if not args.files:
        raise CommandError("nothing to convert", "give manifests, a folder, or - for standard input")
    if args.in_place and (args.diff or args.output == "json"):
        raise CommandError("--in-place prints nothing", "leave out --diff and --output")
    if args.in_place and "-" in args.files:
        raise CommandError("standard input cannot be changed in place", "give files, or leave out --in-place")
    files = _files(args.files)
    known = None
    if args.against or args.kubeconfig:
        known = frozenset(found.metadata.name for found in load_source(args).classes)
    conversion = convert_objects(
        [obj for file in files for obj in file.objects],
        mapped=_mapping(args.map),
        known_classes=known,
        with_classes=args.classes,
    )
    groups = iter(conversion.groups)
    for file in files:
        file.groups = [next(groups) for _ in file.objects]
    if args.output == "json":
        emit({"items": conversion.objects, "notes": conversion.notes, "lost": conversion.lost}, "json")
    else:
        _write(files, conversion, args)
    for text in dict.fromkeys(conversion.lost):
        say(f"not carried over: {text}")
    for text in dict.fromkeys(conversion.notes):
        say(f"note: {text}")
    say(_summary(conversion))
    return 1 if conversion.lost else 0


def _summary(conversion: Conversion) -> str:
    parts = []
    if conversion.changed:
        parts.append(f"{plural(conversion.changed, 'pod template')} converted")
    if conversion.upgraded:
        parts.append(f"{plural(conversion.upgraded, 'object')} brought to today's version")
    return ", ".join(parts) or "nothing asks for devices of a known device plugin"


def _write(files: list[_File], conversion: Conversion, args: argparse.Namespace) -> None:
    for number, file in enumerate(files):
        made = conversion.made if number == 0 else []
        if args.in_place or args.diff:
            if not file.is_changed and not made:
                continue
            text = file.as_json(made) if file.is_json else file.converted(made, with_comments=False)
            if args.in_place:
                path = Path(file.name).resolve()  # a link stays a link
                write_atomically(path, text.encode(), path.stat().st_mode & 0o777)
                say(f"changed {file.name}")
            else:
                old, new = file.text.splitlines(keepends=True), text.splitlines(keepends=True)
                sys.stdout.writelines(difflib.unified_diff(old, new, file.name, file.name))
            continue
        if number:
            print("---")
        sys.stdout.write(file.converted(made, with_comments=True))


def _comments(group: list[Converted]) -> str:
    lines = [f"# not carried over: {text}" for result in group for text in result.lost]
    lines += [f"# note: {text}" for result in group for text in result.notes]
    return "".join(f"{line}\n" for line in lines)


def _has_comments(text: str) -> bool:
    return any(line.lstrip().startswith("#") for line in text.splitlines())


def _files(names: list[str]) -> list[_File]:
    from dray.workbench.lint.documents import SyntaxProblem, read_documents

    files = []
    for name, data in read_files(names).items():
        try:
            documents = read_documents(name, data)
        except SyntaxProblem as problem:
            hint = "run `helm template` first and convert what it prints" if b"{{" in data else ""
            raise CommandError(f"{name}:{problem.line}: {problem}", hint) from None
        objects = []
        for document in documents:
            if not isinstance(document.value, dict) or not document.value.get("kind"):
                line, _, _ = document.place("")
                raise CommandError(
                    f"{name}:{line}: expected a Kubernetes object with apiVersion and kind",
                    "`dray check` finds all such places",
                )
            objects.append(plain_values(document.value))
        text = decode_text(data)
        is_json = text.lstrip()[:1] in ("{", "[")
        files.append(_File(name, text, objects, is_json))
    return files


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
