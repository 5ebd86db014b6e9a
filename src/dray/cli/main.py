"""The command `dray`: a table of subcommands, each loaded only when it is called.

Start-up matters for a tool that is typed all day, so a command's module is imported only when its name is on
the command line. A command module offers `configure(parser)` and `run(args) -> int`. What all commands have in
common (exit codes, flags, errors, progress) is the contract in docs/cli.md; tests/unit/cli/test_cli_contract.py
walks over all commands.

This is also the boundary of errors: what a command raises is printed as `error: …` and `hint: …` by
`failures`, never as a stack trace.
"""

import importlib
import os
import sys
from collections.abc import Collection, Sequence

from dray import __version__
from dray.cli.parser import Parser
from dray.cli.progress import progress

# group -> name -> (module, one line of help); in the order of `dray --help` and docs/cli.md.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Start and stop": {
        "demo": ("dray.cli.demo", "run a guided tour on a simulated cluster"),
        "up": (
            "dray.cli.up",
            "start a complete DRA system on this machine, with simulated nodes if you like",
        ),
        "twin": (
            "dray.cli.twin",
            "start a simulated copy of a cluster: the same nodes, devices, classes and quotas",
        ),
        "profile": ("dray.cli.profile", "list, show, check and make hardware profiles of simulated nodes"),
        "down": ("dray.cli.down", "stop what `dray up` started"),
        "status": ("dray.cli.status", "show the processes of a running `dray up`"),
        "install": ("dray.cli.install", "run dray as a service of this machine that survives reboots"),
        "uninstall": ("dray.cli.uninstall", "remove the service of `dray install`"),
        "backup": ("dray.cli.backup", "write one archive of a system, running or stopped"),
        "restore": ("dray.cli.restore", "create the folder of a system from an archive of `dray backup`"),
        "upgrade": ("dray.cli.upgrade", "find out whether this version can run an existing system"),
        "fault": ("dray.cli.fault", "make a simulated device of a running `dray up` fail, or repair it"),
    },
    "Look": {
        "get": ("dray.cli.get", "list devices, pools, claims and nodes, and which pods use them"),
        "top": ("dray.cli.top", "show which claims hold devices and which jobs wait, updated live"),
        "dashboard": (
            "dray.cli.dashboard",
            "print a link that opens the dashboard in a browser, as yourself",
        ),
        "map": ("dray.cli.mapping", "draw nodes and devices in the terminal, as SVG or as PNG"),
        "doctor": ("dray.cli.doctor", "examine a cluster or this machine: what is wrong, and how to fix it"),
        "explain": ("dray.cli.explain", "explain why a pod or claim has no devices, or why it got these"),
        "snapshot": (
            "dray.cli.snapshot",
            "save the DRA objects of a cluster in one file for the other tools",
        ),
    },
    "Try before applying": {
        "check": ("dray.cli.check", "check manifests before they reach a cluster"),
        "convert": (
            "dray.cli.convert",
            "rewrite manifests of device plugins (nvidia.com/gpu: 2) and of former API versions",
        ),
        "whatif": (
            "dray.cli.whatif",
            "find out whether pods would fit, where, and how many more nodes they need",
        ),
        "capacity": (
            "dray.cli.capacity",
            "plan which nodes to add for waiting pods at the lowest price, and which can go",
        ),
        "defrag": (
            "dray.cli.defrag",
            "plan which pods to move so that a waiting pod fits or whole nodes become free, and move them",
        ),
        "sim": ("dray.cli.sim", "simulate a trace under several policies, with the scheduler's own code"),
        "record": ("dray.cli.record", "record when pods of a cluster come and go, as a trace for `dray sim`"),
        "cel": ("dray.cli.cel", "evaluate a device selector: matches, costs, attributes read, errors"),
        "plan": ("dray.cli.plan", "allocate claims to devices from JSON lines or YAML, without a cluster"),
    },
    "Use": {
        "run": ("dray.cli.run", "run a command with devices: claim, pod, logs and exit code in one line"),
        "hold": (
            "dray.cli.hold",
            "run a container engine of this machine (docker, podman, apptainer) with devices",
        ),
        "shell": ("dray.cli.shell", "open an interactive session with devices, which ends with the terminal"),
        "ps": ("dray.cli.ps", "list jobs: who runs what on which devices, and until when"),
        "logs": ("dray.cli.logs", "print the output of a job"),
        "attach": ("dray.cli.attach", "follow a job from now on, and end with its exit code"),
        "exec": ("dray.cli.exec", "run a command inside a job, with a terminal if you like"),
        "claim": ("dray.cli.claim", "give a running pod a claim, and take it away again"),
        "stop": ("dray.cli.stop", "end jobs, waiting or running"),
        "wait": ("dray.cli.wait", "wait until jobs have ended"),
        "queue": ("dray.cli.queue", "list the jobs that wait, in order, and why they wait"),
        "usage": ("dray.cli.usage", "show device-hours per user and period"),
        "completion": ("dray.cli.completion", "print a completion script for bash, zsh or fish"),
    },
    "Share a machine": {
        "login": ("dray.cli.login", "write a short-lived kubeconfig for kubectl on a shared machine"),
        "user": ("dray.cli.user", "list the users of a shared machine, limit them, make administrators"),
    },
    "Maintain a fleet": {
        "fleet": (
            "dray.cli.fleet",
            "take devices out of use and back, validate them, replace drivers node by node",
        ),
        "autoscale": (
            "dray.cli.autoscale",
            "add simulated nodes for waiting pods, and remove idle ones; or let cluster-autoscaler decide",
        ),
        "conformance": (
            "dray.cli.conformance",
            "check the CNCF AI conformance requirements of a cluster, with evidence",
        ),
    },
    "Components": {
        "server": ("dray.cli.server", "serve the Kubernetes API on one machine: objects, watches, admission"),
        "kubeconfig": ("dray.cli.kubeconfig", "create credentials for a node or a user of `dray server`"),
        "scheduler": ("dray.cli.scheduler", "schedule pods with claims, on `dray server` or on Kubernetes"),
        "controllers": (
            "dray.cli.controllers",
            "run the controllers: claims, eviction, garbage collection, workloads",
        ),
        "exporter": (
            "dray.cli.exporter",
            "serve metrics of devices, claims and the pods that hold them to Prometheus, for any cluster",
        ),
        "guard": (
            "dray.cli.guard",
            "run an admission webhook that prevents a device from being allocated twice",
        ),
        "node": ("dray.cli.node", "make this machine a node: register drivers, prepare claims, run pods"),
        "nodes": ("dray.cli.nodes", "host several nodes in one process, real and simulated"),
        "driver": ("dray.cli.driver", "run a shipped driver, check any driver, or create a new one"),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

# Commands that report on their own what they are doing.
_REPORT_THEMSELVES = frozenset(
    {
        "demo",
        "up",
        "twin",
        "run",
        "hold",
        "shell",
        "logs",
        "attach",
        "exec",
        "wait",
        "stop",
        "top",
        "plan",
        "cel",
        "record",
        "autoscale",
        *GROUPS["Components"],
    }
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    try:
        wanted = next((word for word in arguments if not word.startswith("-")), None)
        args = make_parser([wanted] if wanted else []).parse_args(arguments)
        code = _run(args)
        sys.stdout.flush()  # here a full disk is still an error that can be reported
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _give_up_stdout()
        return 0
    except Exception as error:  # the boundary: no exception becomes a stack trace
        from dray.cli.failures import report

        code = report(error)
        _give_up_stdout()
        return code


def _run(args: object) -> int:
    name: str = args.command  # type: ignore[attr-defined]
    command = importlib.import_module(COMMANDS[name][0])
    if name in _REPORT_THEMSELVES or getattr(args, "watch", False):
        return int(command.run(args))
    with progress("working"):
        return int(command.run(args))


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
    """Discard what cannot be written, so that the interpreter does not try again when it exits."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        try:
            descriptor = sys.stdout.fileno()
        except (OSError, ValueError):
            return
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), descriptor)


def make_parser(configured: Collection[str] = tuple(COMMANDS)) -> Parser:
    """Return the parser of `dray`; only the commands named in `configured` know their flags."""
    summaries = {title: {name: entry[1] for name, entry in group.items()} for title, group in GROUPS.items()}
    parser = Parser(
        prog="dray",
        description="Dynamic Resource Allocation (DRA) on one machine, in a real cluster, or as a workbench.",
        groups=summaries,
    )
    parser.add_argument("--version", action="version", version=f"dray {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in configured:
            importlib.import_module(module).configure(command)
    return parser
