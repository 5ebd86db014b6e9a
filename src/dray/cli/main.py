"""The command `dray`: a table of subcommands, each loaded only when it is called.

Start-up matters for a tool that is typed all day, so this module imports nothing
but argparse; a command's module is imported when its name is on the command line.
A command module offers `configure(parser)` and `run(args) -> int`.

This is also the boundary of errors: what a command raises is printed as `error: …` and `hint: …` by
`failures`, never as a trace.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Collection, Sequence

from dray import __version__

# name -> (module, one line of help); in the order in which `dray --help` lists them.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("dray.cli.demo", "a guided tour on a simulated cluster"),
    "up": ("dray.cli.up", "start a complete DRA system on this machine, with simulated nodes if wanted"),
    "down": ("dray.cli.down", "stop what `dray up` started"),
    "status": ("dray.cli.status", "show the components of a running `dray up` and their state"),
    "fault": ("dray.cli.fault", "make a simulated device of a running `dray up` fail, and recover"),
    "server": ("dray.cli.server", "serve the Kubernetes API: objects, watches, admission, on one machine"),
    "kubeconfig": ("dray.cli.kubeconfig", "create credentials for a node or a user of `dray server`"),
    "run": ("dray.cli.run", "run a command with devices: claim, pod, logs and exit code in one line"),
    "get": ("dray.cli.get", "list devices, pools, claims and nodes, and which pods use them"),
    "top": ("dray.cli.top", "show devices and claims, updated live"),
    "map": ("dray.cli.mapping", "draw nodes and devices: terminal, SVG or PNG"),
    "explain": ("dray.cli.explain", "explain why a pod or claim has no devices, or why it got these"),
    "check": ("dray.cli.check", "lint and dry-run manifests before they reach a cluster"),
    "convert": ("dray.cli.convert", "rewrite device-plugin manifests (nvidia.com/gpu: 2) for DRA"),
    "whatif": (
        "dray.cli.whatif",
        "find out whether pods would fit, where, and how many more nodes they need",
    ),
    "snapshot": ("dray.cli.snapshot", "capture a cluster's DRA objects to one file for the other tools"),
    "plan": ("dray.cli.plan", "allocate claims to devices from JSON lines or YAML, without a cluster"),
    "nodes": ("dray.cli.nodes", "host several nodes in one process, real and simulated"),
    "controllers": (
        "dray.cli.controllers",
        "run the controllers: claims, eviction, garbage collection, workloads",
    ),
    "scheduler": ("dray.cli.scheduler", "schedule pods with claims, on dray's server or on Kubernetes"),
    "guard": ("dray.cli.guard", "admission webhook that refuses to allocate a device twice"),
    "node": ("dray.cli.node", "make this machine a node: register drivers, prepare claims, run pods"),
    "driver": ("dray.cli.driver", "run a shipped driver, check any driver, create a new one"),
    "cel": ("dray.cli.cel", "evaluate a device selector: verdict, costs, reads, errors"),
    "completion": ("dray.cli.completion", "print a completion script for bash, zsh or fish"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    try:
        wanted = next((word for word in arguments if not word.startswith("-")), None)
        args = make_parser([wanted] if wanted else []).parse_args(arguments)
        code = int(importlib.import_module(COMMANDS[args.command][0]).run(args))
        sys.stdout.flush()  # here a full disk is still an error that can be told
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _give_up_stdout()
        return 0
    except Exception as error:  # the boundary: no exception becomes a trace
        from dray.cli.failures import report

        code = report(error)
        _give_up_stdout()
        return code


def _prepare_streams() -> None:
    """Make the standard streams usable whatever the caller did to them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: `>&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # lives as long as the process
        elif mode == "w" and hasattr(stream, "reconfigure"):
            # Names from arguments and files need not fit the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")


def _give_up_stdout() -> None:
    """Throw away what cannot be written, so that the interpreter does not try again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        try:
            descriptor = sys.stdout.fileno()
        except (OSError, ValueError):
            return
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), descriptor)


def make_parser(configured: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Return the parser of `dray`; only the commands named in `configured` know their flags."""
    parser = argparse.ArgumentParser(
        prog="dray",
        description="Dynamic Resource Allocation on one machine, in a real cluster, or as a workbench.",
    )
    parser.add_argument("--version", action="version", version=f"dray {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name in configured:
            importlib.import_module(module).configure(command)
    return parser
