"""`dray driver`: run a shipped driver, check any driver, begin a new one."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dray.cli.arguments import port, seconds

if TYPE_CHECKING:
    from dray.driver import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands and flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="write a working driver to start from, with a test")
    new.add_argument("name", type=_driver_name, help="the driver's name, a domain of yours: gpu.example.com")
    new.add_argument("folder", type=Path, nargs="?", default=Path(), help="where to write (default: here)")

    serve = actions.add_parser("run", help="run a driver that is shipped with dray")
    serve.add_argument("name", help="which: nvidia, tpu, network, fpga, cpu; or sim, simulated hardware")
    _common(serve)
    serve.add_argument("--instance", default="", help="id of this instance, for rolling updates side by side")
    serve.add_argument(
        "--device-metadata", action="store_true", help="tell containers about their devices in files"
    )
    serve.add_argument("--profile", default="dgx-h100", help="for sim: which hardware (default: dgx-h100)")
    serve.add_argument("--faults", type=Path, metavar="FILE", help="for sim: file with faults to play")
    serve.add_argument("--metrics-port", type=port, metavar="PORT")

    check = actions.add_parser("check", help="test any driver as kubelet would use it")
    _common(check)
    check.add_argument(
        "--socket-dir",
        type=Path,
        metavar="DIR",
        help="registry directory (default: plugins_registry in --kubelet-dir)",
    )
    check.add_argument("--driver", default="", help="name of the driver (default: the first that registers)")
    check.add_argument(
        "--command",
        dest="command_line",
        metavar="LINE",
        help="start (and kill) the driver with this command line",
    )
    check.add_argument("--namespace", default="default")
    check.add_argument(
        "--wait",
        type=seconds(),
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for registration and slices",
    )


def _driver_name(text: str) -> str:
    from dray.driver import DriverError
    from dray.driver.skeleton import checked_name

    try:
        return checked_name(text)
    except DriverError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kubeconfig", metavar="FILE", help="where the API server is (default: $KUBECONFIG)")
    parser.add_argument("--node-name", default=os.environ.get("NODE_NAME") or socket.gethostname().lower())
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"), metavar="DIR")
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), metavar="DIR")


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
    print(f"try:  cd {args.folder} && pytest {test.name}", file=sys.stderr)
    return 0


def _run(args: argparse.Namespace) -> int:
    from dray.driver import Settings, run
    from dray.drivers.shipped import make_driver

    settings = Settings(
        node_name=args.node_name,
        kubelet_dir=args.kubelet_dir.absolute(),
        cdi_dir=args.cdi_dir.absolute(),
        instance=args.instance,
        device_metadata=args.device_metadata,
        metrics_port=args.metrics_port,
    )
    if args.name == "sim":
        return _run_simulated(args, settings)
    driver = make_driver(
        args.name, args.node_name, args.kubelet_dir.absolute() / "plugins" / f"dray-{args.name}"
    )
    return run(driver, kubeconfig=args.kubeconfig, settings=settings)


def _run_simulated(args: argparse.Namespace, settings: Settings) -> int:
    """Run all drivers of a hardware profile in one process."""
    from dray.driver import DriverError, run_all
    from dray.drivers.hardware import ProfileError, load_profile
    from dray.drivers.simulated import SimulatedDriver

    try:
        profile = load_profile(args.profile)
    except ProfileError as error:
        raise DriverError(str(error)) from error
    drivers = [SimulatedDriver(pool, args.faults) for pool in profile.pools(args.node_name)]
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
                wait_seconds=args.wait,
                start=start if args.command_line else None,
                kill=kill if args.command_line else None,
            )
            outcomes = await kit.run()
    finally:
        await kill()
    for outcome in outcomes:
        print(f"{outcome.verdict:8} {outcome.check}" + (f": {outcome.detail}" if outcome.detail else ""))
    failed = sum(outcome.verdict == "failed" for outcome in outcomes)
    print(
        f"{len(outcomes)} checks, {failed} failed" + (f": {kit.driver}" if kit.driver else ""),
        file=sys.stderr,
    )
    return 1 if failed else 0
