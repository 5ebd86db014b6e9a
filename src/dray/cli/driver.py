"""`dray driver`: run a shipped driver, check any driver, begin a new one."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from dray.cli.arguments import add_flags, port, seconds
from dray.cli.output import add_output_flag, emit, say
from dray.cli.services import log_to_stderr
from dray.drivers.driver_names import NAME_BY_SHORT_NAME

if TYPE_CHECKING:
    from dray.driver import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="write a working driver to start from, with a test")
    new.add_argument(
        "name",
        metavar="NAME",
        type=_driver_name,
        help="the driver's name, in a domain of yours: gpu.example.com",
    )
    new.add_argument(
        "folder", metavar="DIR", type=Path, nargs="?", default=Path(), help="where to write (default: here)"
    )

    serve = actions.add_parser("run", help="run a driver that is shipped with dray")
    serve.add_argument(
        "name", choices=(*NAME_BY_SHORT_NAME, "sim"), help="which driver; sim: simulated hardware"
    )
    _common(serve)
    serve.add_argument(
        "--instance",
        metavar="ID",
        default="",
        help="id of this instance, so that two can run during an update",
    )
    serve.add_argument(
        "--device-metadata", action="store_true", help="describe devices to their containers in files"
    )
    serve.add_argument(
        "--profile", metavar="NAME", default="dgx-h100", help="for sim: hardware profile (default: dgx-h100)"
    )
    serve.add_argument("--faults", type=Path, metavar="FILE", help="for sim: file with faults to inject")
    serve.add_argument(
        "--driver-version",
        metavar="VERSION",
        help="for sim: version that the devices publish (default: that of the profile)",
    )
    serve.add_argument("--metrics-port", type=port, metavar="N", help="port of /metrics (default: none)")
    serve.add_argument(
        "--metrics-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address of /metrics; 0.0.0.0 in a pod that is scraped (default: 127.0.0.1)",
    )
    add_flags(serve, "--log-format", "--verbose")

    check = actions.add_parser("check", help="test any driver as kubelet would use it")
    _common(check)
    check.add_argument(
        "--socket-dir",
        type=Path,
        metavar="DIR",
        help="registry directory (default: plugins_registry in --kubelet-dir)",
    )
    check.add_argument(
        "--driver", metavar="NAME", default="", help="name of the driver (default: the first that registers)"
    )
    check.add_argument(
        "--command",
        dest="command_line",
        metavar="LINE",
        help="start (and kill) the driver with this command line",
    )
    add_flags(
        check, "--namespace", default="default", help="namespace of the claims it makes (default: default)"
    )
    check.add_argument(
        "--timeout",
        type=seconds(),
        default=30.0,
        metavar="SECONDS",
        help="give up when there is no registration or slice by then (default: 30)",
    )
    add_output_flag(check)


def _driver_name(text: str) -> str:
    from dray.driver import DriverError
    from dray.driver.skeleton import checked_name

    try:
        return checked_name(text)
    except DriverError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _common(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "--kubeconfig")
    parser.add_argument(
        "--node-name",
        metavar="NAME",
        default=os.environ.get("NODE_NAME") or os.uname().nodename.lower(),
        help="name of this node (default: $NODE_NAME, the host name)",
    )
    for flag, folder, what in (("--kubelet-dir", "/var/lib/kubelet", "kubelet's directory"),
                               ("--cdi-dir", "/var/run/cdi", "where CDI specs are written")):  # fmt: skip
        help_text = f"{what} (default: {folder})"
        parser.add_argument(flag, type=Path, default=Path(folder), metavar="DIR", help=help_text)


def run(args: argparse.Namespace) -> int:
    """Do what the action says."""
    if args.action == "new":
        return _new(args)
    if args.action == "run":
        return _run(args)
    return asyncio.run(_check(args))


def _new(args: argparse.Namespace) -> int:
    from dray.driver.skeleton import write_skeleton

    driver, test = write_skeleton(args.name, args.folder)
    print(f"wrote {driver} and {test}")
    say(f"try:  cd {args.folder} && pytest {test.name}")
    return 0


def _run(args: argparse.Namespace) -> int:
    from dray.driver import Settings, run
    from dray.drivers.shipped import make_driver

    log_to_stderr(args)

    settings = Settings(
        node_name=args.node_name,
        kubelet_dir=args.kubelet_dir.absolute(),
        cdi_dir=args.cdi_dir.absolute(),
        instance=args.instance,
        device_metadata=args.device_metadata,
        metrics_port=args.metrics_port,
        metrics_address=args.metrics_address,
    )
    if args.name == "sim":
        return _run_simulated(args, settings)
    driver = make_driver(
        args.name, args.node_name, args.kubelet_dir.absolute() / "plugins" / f"dray-{args.name}"
    )
    return run(driver, kubeconfig=args.kubeconfig, settings=settings)


def _run_simulated(args: argparse.Namespace, settings: Settings) -> int:
    """Run all drivers of a hardware profile in one process."""
    from dray.driver import run_all
    from dray.drivers.hardware import load_profile
    from dray.drivers.simulated import with_version
    from dray.drivers.simulated_node import simulated_driver

    pools = load_profile(args.profile).pools(args.node_name)
    if args.driver_version:
        pools = [with_version(pool, args.driver_version) for pool in pools]
    drivers = [
        simulated_driver(pool, args.faults, settings.data_dir(pool.driver) / "files") for pool in pools
    ]
    return run_all(drivers, kubeconfig=args.kubeconfig, settings=settings)


async def _check(args: argparse.Namespace) -> int:
    from dray.client import Client
    from dray.driver.conformance import Kit

    process: asyncio.subprocess.Process | None = None

    async def start() -> None:
        nonlocal process
        process = await asyncio.create_subprocess_exec(
            *shlex.split(args.command_line), start_new_session=True
        )

    async def kill() -> None:
        if process is not None and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    try:
        async with Client.connect(args.kubeconfig, user_agent="dray-driver-check") as client:
            kit = Kit(
                client,
                (args.socket_dir or args.kubelet_dir / "plugins_registry").absolute(),
                [Path("/etc/cdi"), args.cdi_dir.absolute()],
                args.node_name,
                driver=args.driver,
                namespace=args.namespace,
                wait_seconds=args.timeout,
                start=start if args.command_line else None,
                kill=kill if args.command_line else None,
            )
            outcomes = await kit.run()
    finally:
        await kill()
    failed = sum(outcome.verdict == "failed" for outcome in outcomes)
    if args.output == "table":
        for outcome in outcomes:
            print(f"{outcome.verdict:8} {outcome.check}" + (f": {outcome.detail}" if outcome.detail else ""))
        say(f"{len(outcomes)} checks, {failed} failed" + (f": {kit.driver}" if kit.driver else ""))
    else:
        checks = [
            {"check": each.check, "verdict": str(each.verdict), "detail": each.detail} for each in outcomes
        ]
        emit({"driver": kit.driver, "failed": failed, "checks": checks}, args.output)
    return 1 if failed else 0
