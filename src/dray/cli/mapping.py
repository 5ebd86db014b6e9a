"""`dray map`: a picture of nodes and devices, coloured by owner: in the terminal, as SVG or PNG."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from dray.cli.arguments import whole_number
from dray.cli.output import CommandError, say, use_colour
from dray.cli.sources import add_source_flags, load_source
from dray.sim.inventory import Inventory
from dray.sim.picture import draw_png, draw_svg, draw_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--svg", metavar="FILE", help="write a scalable picture")
    parser.add_argument("--png", metavar="FILE", help="write a bitmap (needs: pip install 'dray-dra[png]')")
    parser.add_argument(
        "--width",
        type=whole_number(0, 10_000),
        default=0,
        help="columns of the terminal picture (default: the terminal's)",
    )
    parser.add_argument("--watch", action="store_true", help="draw again every two seconds until Ctrl-C")
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Draw."""
    while True:
        inventory = Inventory(load_source(args))
        if args.svg:
            Path(args.svg).write_text(draw_svg(inventory), "utf-8")
            say(f"wrote {args.svg}")
        if args.png:
            _write_png(inventory, Path(args.png))
            say(f"wrote {args.png}")
        if not (args.svg or args.png):
            if args.watch:
                sys.stdout.write("\x1b[H\x1b[2J" if use_colour() else "\n")
            sys.stdout.write(draw_text(inventory, width=args.width, colour=use_colour()))
            sys.stdout.flush()
        if not args.watch:
            return 0
        time.sleep(2)


def _write_png(inventory: Inventory, path: Path) -> None:
    try:
        path.write_bytes(draw_png(inventory))
    except ImportError:
        raise CommandError(
            "PNG needs the package Pillow", "pip install 'dray-dra[png]', or use --svg"
        ) from None
