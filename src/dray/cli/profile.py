"""`dray profile`: the hardware of simulated nodes: list, show, check, and make from a real cluster."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from dray.api.parsing import load_yaml
from dray.api.wording import plural
from dray.cli.output import CommandError, add_output_flag, emit, say, table
from dray.cli.sources import add_source_flags, load_source
from dray.client.bounded_files import read_file
from dray.drivers.hardware import Profile, ProfileError, load_profile, profile_names
from dray.workbench.conversion.yaml_texts import as_yaml


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the built-in profiles")
    add_output_flag(listing)
    show = actions.add_parser("show", help="show what a node with this hardware publishes")
    show.add_argument("profile", metavar="PROFILE", help="a built-in profile, or the path of a file")
    add_output_flag(show)
    check = actions.add_parser("validate", help="check profile files")
    check.add_argument("files", nargs="+", metavar="FILE", help="profiles (YAML)")
    add_output_flag(check, "text")
    make = actions.add_parser("from-cluster", help="write a profile from the ResourceSlices of a real node")
    make.add_argument("file", nargs="?", metavar="FILE", help="where to write (default: standard output)")
    make.add_argument("--force", action="store_true", help="overwrite the file")
    make.add_argument("--node", metavar="NAME", help="the node to take (default: the commonest hardware)")
    make.add_argument("--name", metavar="NAME", default="", help="name of the profile (default: the node's)")
    add_source_flags(make)


def run(args: argparse.Namespace) -> int:
    """Do one action; exit code 1 when a profile is wrong, 2 when it cannot be read."""
    if args.action == "list":
        return _list(args.output)
    if args.action == "show":
        return _show(load_profile(args.profile), args.output)
    if args.action == "validate":
        return _validate(args.files, args.output)
    return _from_cluster(args)


def _devices(profile: Profile) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for pool in profile.pools("node-1"):
        counts[pool.driver] += len(pool.devices)
    return dict(counts)


def _list(output: str) -> int:
    profiles = [load_profile(name) for name in profile_names()]
    if output == "table":
        rows = [[each.name, each.description or "-", ", ".join(_devices(each))] for each in profiles]
        table(["PROFILE", "DESCRIPTION", "DRIVERS"], rows)
    else:
        emit(
            [
                {"name": each.name, "description": each.description, "devices": _devices(each)}
                for each in profiles
            ],
            output,
        )
    return 0


def _show(profile: Profile, output: str) -> int:
    from dray.sim.twin import node_profile, profile_document

    if output != "table":
        from dray.drivers.hardware import pool_slices
        from dray.sim.hardware import hardware_node

        # As any node would publish it: the form in which every profile can be written.
        node = hardware_node(profile, "{node}")
        made = node_profile(node, pool_slices(profile.pools("{node}")), profile.name)
        document = profile_document(made) | {
            "description": profile.description,
            "labels": dict(profile.labels),
        }
        emit(document, output)
        return 0
    print(f"{profile.name}: {profile.description}" if profile.description else profile.name)
    amounts = ", ".join(f"{key}: {value}" for key, value in profile.allocatable.items())
    print(f"allocatable: {amounts}")
    for key, value in profile.labels.items():
        print(f"label: {key}={value}")
    rows = []
    for pool in profile.pools("node-1"):
        for device in pool.devices:
            shown = [f"{key}={_value(value)}" for key, value in (device.attributes or {}).items()]
            rows.append([pool.driver, device.name, " ".join(shown) or "-"])
    table(["DRIVER", "DEVICE", "ATTRIBUTES"], rows)
    return 0


def _value(attribute: object) -> object:
    from msgspec import to_builtins

    return next((value for value in to_builtins(attribute).values() if value is not None), "")


def _validate(names: list[str], output: str) -> int:
    from dray.workbench.profiles import profile_problems

    problems: dict[str, list[str]] = {}
    for name in names:
        if not Path(name).is_file():
            raise CommandError(f"{name} does not exist", "give the path of a profile file")
        try:
            profile = load_profile(str(Path(name).absolute()))
            problems[name] = list(profile_problems(profile, load_yaml(read_file(Path(name)))))
        except ProfileError as error:
            problems[name] = [str(error)]
    if output == "text":
        for name, found in problems.items():
            for text in found:
                print(f"{name}: {text}")
    else:
        emit(problems, output)
    wrong = sum(len(found) for found in problems.values())
    say(f"{plural(len(names), 'profile')} checked: {plural(wrong, 'problem') if wrong else 'no problems'}")
    return 1 if wrong else 0


def _from_cluster(args: argparse.Namespace) -> int:
    from dray.sim.twin import profile_document
    from dray.workbench.profiles import node_groups

    if args.file and Path(args.file).exists() and not args.force:
        raise CommandError(f"{args.file} exists", "add --force to overwrite it")
    groups = node_groups(load_source(args), args.name)
    chosen = groups[0]
    if args.node:
        found = [group for group in groups if args.node in group.nodes]
        if not found:
            known = ", ".join(name for group in groups for name in group.nodes[:4])
            raise CommandError(f"no node {args.node!r} with devices", f"nodes with devices: {known}")
        chosen = found[0]
    text = (
        f"# Hardware of {plural(len(chosen.nodes), 'node')}, as their drivers published it; made by "
        "`dray profile from-cluster`.\n" + as_yaml(profile_document(chosen.profile))
    )
    if args.file:
        Path(args.file).write_text(text, "utf-8")
        say(f"wrote {args.file}; try it: dray up --sim {args.file}")
    else:
        print(text, end="")
    for group in groups:
        if group is not chosen:
            names = ", ".join(group.nodes[:3]) + (", …" if len(group.nodes) > 3 else "")
            say(
                f"other hardware on {plural(len(group.nodes), 'node')}: {group.profile.description}; --node {names}"
            )
    return 0
