"""`dray demo`: a simulated mixed cluster and a guided tour of what DRA can do."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path

from dray.cli.arguments import add_flags
from dray.cli.output import CommandError, add_output_flag, emit, say, use_colour
from dray.cli.services import log_to_stderr, on_stop
from dray.client import Client
from dray.local.demo_player import Player, Result, Tell
from dray.local.demo_scenes import NODES, the_tour
from dray.local.system import Plan, System, SystemFailure
from dray.sim.hardware import parse_hardware
from dray.sim.snapshot import capture
from dray.workbench.inventory import Inventory
from dray.workbench.pictures import draw_svg, draw_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--no-wait", action="store_true", help="stop after the tour instead of leaving the cluster up"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the final picture to this file")
    add_flags(parser, "--secure-port", default=0, help="port of the API server (default: any free port)")
    add_output_flag(parser, "text")
    add_flags(parser, "--verbose")


def run(args: argparse.Namespace) -> int:
    """Play the tour; exit code 0 when every scene ended as it should."""
    log_to_stderr(args, logging.ERROR)
    return asyncio.run(_demo(args))


async def _demo(args: argparse.Namespace) -> int:
    quiet = args.output != "text"

    def tell(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    data = Path(tempfile.mkdtemp(prefix="dray-demo-"))
    plan = Plan(
        data, port=args.secure_port, simulated=parse_hardware(NODES), feature_gates="GenericWorkload=true"
    )
    system = System(plan)
    stop = asyncio.Event()
    on_stop(stop.set)
    began, keeps_logs = time.monotonic(), False
    tell(
        "dray demo: six simulated nodes (H100, A100 with MIG, shared L40S, TPU v5e, FPGA, SR-IOV), one real DRA system"
    )
    try:
        playing = asyncio.create_task(_play(system, tell, began))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            return 130
        results, inventory = playing.result()
        seconds = time.monotonic() - began
        _report(args, results, inventory, seconds, tell)
        if not args.no_wait and not quiet:
            tell(f"\nThe cluster stays up. In another terminal:\n  export KUBECONFIG={plan.kubeconfig}")
            tell(
                "  kubectl -n demo get pods,resourceclaims -o wide\n  dray map; dray explain pod impossible -n demo\nCtrl-C stops it."
            )
            await stop.wait()
        return 0 if all(result.ok for result in results) else 1
    except SystemFailure as error:
        keeps_logs = True
        raise CommandError(str(error), f"logs are in {data / 'logs'}", code=1) from error
    finally:
        await system.stop()
        if not keeps_logs:
            shutil.rmtree(data, ignore_errors=True)


async def _play(system: System, tell: Tell, began: float) -> tuple[list[Result], Inventory]:
    await system.start()
    tell(f"up after {time.monotonic() - began:.1f} s")
    async with Client.connect(system.plan.kubeconfig) as client:
        results = await Player(client, system.plan.data, tell).play(the_tour())
        return results, Inventory(await capture(client))


def _report(
    args: argparse.Namespace, results: list[Result], inventory: Inventory, seconds: float, tell: Tell
) -> None:
    good = sum(result.ok for result in results)
    if args.svg:
        Path(args.svg).write_text(draw_svg(inventory), "utf-8")
        say(f"wrote {args.svg}")
    if args.output != "text":
        scenes = [
            {"title": r.title, "ok": r.ok, "seconds": round(r.seconds, 3), "lines": r.lines} for r in results
        ]
        emit({"ok": good == len(results), "seconds": round(seconds, 3), "scenes": scenes}, args.output)
        return
    tell("\nDevices and who holds them:\n")
    sys.stdout.write(draw_text(inventory, colour=use_colour()))
    tell(f"\n{good} of {len(results)} scenes as expected, {seconds:.0f} s in all")
