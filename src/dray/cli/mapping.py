"""`dray map`: a picture of nodes and devices, coloured by owner: in the terminal, as SVG or PNG."""

from __future__ import annotations

import argparse
from pathlib import Path

from dray.cli.arguments import whole_number
from dray.cli.live import add_watch_flags, show
from dray.cli.output import CommandError, say, use_colour
from dray.cli.sources import add_source_flags, need
from dray.sim.snapshot import Snapshot
from dray.workbench.inventory import Inventory
from dray.workbench.pictures import draw_png, draw_svg, draw_text


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--svg", metavar="FILE", help="write an SVG file instead")
    parser.add_argument(
        "--png", metavar="FILE", help="write a PNG file instead (needs: pip install 'dray-dra[png]')"
    )
    parser.add_argument(
        "--width",
        type=whole_number(0, 10_000),
        default=0,
        metavar="COLUMNS",
        help="width of the picture in the terminal (default: the terminal's)",
    )
    add_watch_flags(parser)
    add_source_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Draw."""

    def draw(snapshot: Snapshot) -> str:
        need(snapshot, "resourceslices")
        inventory = Inventory(snapshot)
        if args.svg:
            Path(args.svg).write_text(draw_svg(inventory), "utf-8")
        if args.png:
            _write_png(inventory, Path(args.png))
        for file in filter(None, (args.svg, args.png)):
            say(f"wrote {file}")
        if args.svg or args.png:
            return ""
        return draw_text(inventory, width=args.width, colour=use_colour())

    args.namespace = None
    return show(args, draw, only_views=True)


def _write_png(inventory: Inventory, path: Path) -> None:
    try:
        path.write_bytes(draw_png(inventory))
    except ImportError:
        raise CommandError(
            "PNG needs the package Pillow", "pip install 'dray-dra[png]', or use --svg"
        ) from None
