"""`dray install`: run dray as a service of this machine, kept over reboots."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, say

SERVICE_DATA = Path("/var/lib/dray")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_flags(parser, "--sim")
    parser.add_argument("--no-host", action="store_true", help="do not make this machine a node")
    add_flags(parser, "--secure-port", default=6443)
    add_flags(parser, "--runtime")
    add_flags(parser, "--data", default=SERVICE_DATA, help="folder of the state (default: /var/lib/dray)")
    parser.add_argument("--print", action="store_true", help="print the unit file and change nothing")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Install; needs root."""
    from dray.local.system_service import InstallError, Service, has_systemd, install, run_command
    from dray.sim.hardware import parse_hardware

    parse_hardware(args.sim)  # refuse now what would fail at every boot
    if not args.data.is_absolute():
        raise CommandError(
            f"--data {args.data} is not an absolute path", "a service has no current directory"
        )
    service = Service(_command(args), args.data)
    if args.print:
        print(service.unit_text(), end="")
        return 0
    require_root(args.root)
    try:
        for step in install(service, args.root, run_command):
            print(step)
    except InstallError as error:
        raise CommandError(str(error), "`dray install --print` shows the unit file", code=1) from error
    _warn_of_closed_program()
    if not has_systemd(args.root):
        say(f"warning: systemd does not run here: start it yourself with `dray up --data {args.data}`")
    print(f"`dray status --data {args.data}` shows the components; `dray uninstall` removes the service")
    return 0


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    program = shutil.which("dray") or str(Path(sys.executable).with_name("dray"))
    flags = ["--shared", f"--secure-port={args.secure_port}", f"--runtime={args.runtime}"]
    flags += [f"--sim={each}" for each in args.sim] + (["--no-host"] if args.no_host else [])
    return (os.path.realpath(program), *flags)


def _warn_of_closed_program() -> None:
    """Say so when only root can run this `dray`: a shared machine needs one that everybody can."""
    import dray
    from dray.local.system_service import closed_to_others

    program = Path(shutil.which("dray") or sys.argv[0])
    closed = closed_to_others([program, Path(sys.executable), Path(dray.__file__).parent])
    if closed is not None:
        say(
            f"warning: other users cannot run this dray: {closed} is closed to them; install it for everybody, for "
            "example with `sudo pipx install --global dray-dra`, and run `dray install` of that one"
        )


def require_root(root: Path) -> None:
    """Refuse to change the machine as an ordinary user."""
    if os.geteuid() != 0 and root == Path("/"):
        raise CommandError(
            "only root can install a service", "sudo dray install; or `dray up` for yourself only"
        )
