"""Pictures of a cluster: one row per node, one box per device, one colour per owner.

All three forms (text, SVG, PNG) are drawn from the same layout (`lay_out`), a list of
boxes with relative widths: a GPU that was cut shows its MIG slices to scale over its
memory slices; a shared device shows a bar for each share.
"""

from __future__ import annotations

import colorsys
import io
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from dray.api.quantity import parse_quantity
from dray.workbench.inventory import DeviceRow, Inventory, PoolRow

FREE, TAINTED, BLOCKED = "#e8ecef", "#f6c1b6", "#d5dadd"
INK, PALE_INK, PAPER, FRAME = "#1c2733", "#5b6b78", "#ffffff", "#9fb0bd"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a device: a MIG slice, a share, or all of it."""

    start: float  # 0 to 1
    size: float
    owner: str  # claim, or another user; empty means: free
    label: str


@dataclass(slots=True)
class Box:
    """One device in a row."""

    name: str
    title: str  # for the tooltip
    state: str
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """One node: groups of boxes, one per driver."""

    node: str
    groups: list[tuple[str, list[Box]]] = field(default_factory=list)


def owner_colours(owners: Iterable[str]) -> dict[str, str]:
    """Give each owner a colour, light enough for dark text; the golden angle keeps neighbours apart."""
    colours = {}
    for index, owner in enumerate(owners):
        red, green, blue = colorsys.hls_to_rgb((0.58 + index * 0.6180339887) % 1, 0.74, 0.55)
        colours[owner] = f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"
    return colours


def lay_out(inventory: Inventory) -> list[Row]:
    """Arrange the cluster: nodes by name, drivers by name, devices in their own order."""
    rows = []
    for node, pools in sorted(inventory.by_node().items()):
        row = Row(node or "(every node)")
        for pool in sorted(pools, key=lambda pool: pool.driver):
            boxes = [_box(device, pool) for device in pool.countable]
            if boxes:
                row.groups.append((pool.driver, boxes))
        if row.groups:
            rows.append(row)
    return rows


def _box(row: DeviceRow, pool: PoolRow) -> Box:
    title = "\n".join(
        filter(
            None,
            [
                "/".join(row.key),
                row.model,
                f"{row.state}",
                *map(str, row.uses),
            ],
        )
    )
    box = Box(row.short_name, title, row.state)
    if row.holders and row.device.allow_multiple_allocations:
        box.parts = _shares(row)
    elif row.holders:
        box.parts = [Part(0.0, 1.0, row.holders[0].owner, row.short_name)]
    else:
        box.parts = _slices(row, pool)
        if box.parts:
            box.state = "used"
    return box


def _shares(row: DeviceRow) -> list[Part]:
    capacity = row.device.capacity or {}
    parts, start = [], 0.0
    for use in row.holders:
        shares = [0.02]
        for name, amount in use.consumed.items():
            total = parse_quantity(capacity[name].value).as_approximate_float() if name in capacity else 0
            shares.append(parse_quantity(amount).as_approximate_float() / total if total else 0.0)
        size = min(max(shares), 1.0 - start)
        parts.append(Part(start, size, use.owner, f"{size:.0%}"))
        start += size
    return parts


def _slices(whole: DeviceRow, pool: PoolRow) -> list[Part]:
    """Return the slices in use of a GPU, placed by the memory slices they draw."""
    sets = {consumption.counter_set for consumption in whole.device.consumes_counters}
    total = sum(
        name.startswith("memory-slice-") for c in whole.device.consumes_counters for name in c.counters
    )
    parts = []
    for row in pool.devices:
        if row is whole or not row.holders:
            continue
        for consumption in row.device.consumes_counters:
            if consumption.counter_set not in sets:
                continue
            numbers = sorted(
                int(name.rpartition("-")[2])
                for name in consumption.counters
                if name.startswith("memory-slice-")
            )
            start, size = (numbers[0] / total, len(numbers) / total) if numbers and total else (0.0, 1.0)
            parts.append(Part(start, size, row.holders[0].owner, row.attribute("profile") or row.device.name))
    return sorted(parts, key=lambda part: part.start)


def legend(rows: Iterable[Row]) -> list[str]:
    """Return the owners in order of appearance."""
    owners = {
        part.owner: None for row in rows for _, boxes in row.groups for box in boxes for part in box.parts
    }
    return [owner for owner in owners if owner]


# --- text -------------------------------------------------------------------------

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def draw_text(inventory: Inventory, *, width: int = 0, colour: bool = False) -> str:
    """Draw with letters: each owner has one, `.` is free, `x` tainted, `-` blocked."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    rows = lay_out(inventory)
    owners = legend(rows)
    letters = {owner: _LETTERS[index % len(_LETTERS)] for index, owner in enumerate(owners)}
    colours = owner_colours(owners) if colour else {}
    lines = []
    for row in rows:
        lines.append(row.node)
        for driver, boxes in row.groups:
            cells = [_cell(box, letters, colours) for box in boxes]
            head = f"  {driver:<24.24} "
            line, used = head, len(head)
            for cell, length in cells:
                if used + length + 1 > width and used > len(head):
                    lines.append(line.rstrip())
                    line, used = " " * len(head), len(head)
                line += cell + " "
                used += length + 1
            lines.append(line.rstrip())
    if owners:
        lines.append("")
        lines += [f"  {painted(letters[owner], colours.get(owner))} {owner}" for owner in owners]
    lines.append("  . free   x tainted   - blocked by a partition" if rows else "no devices are published")
    return "\n".join(lines) + "\n"


def _cell(box: Box, letters: dict[str, str], colours: dict[str, str]) -> tuple[str, int]:
    slots = 8 if box.parts and any(part.size < 1 for part in box.parts) else 2
    empty = {"tainted": "x", "blocked": "-"}.get(box.state, ".")
    owners = [""] * slots
    for part in box.parts:
        first, last = (
            round(part.start * slots),
            max(round(part.start * slots) + 1, round((part.start + part.size) * slots)),
        )
        owners[first:last] = [part.owner] * (min(last, slots) - first)
    text = "".join(painted(letters[owner], colours.get(owner)) if owner else empty for owner in owners)
    return f"[{text}]", slots + 2


def painted(letter: str, colour: str | None) -> str:
    """Return text on a background of this colour, for a terminal; without a colour as it is."""
    if colour is None:
        return letter
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return f"\x1b[48;2;{red};{green};{blue};38;2;20;30;40m{letter}\x1b[0m"


# --- SVG and PNG --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A filled box on the canvas, with a label and a tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    label: str = ""
    title: str = ""


@dataclass(slots=True)
class Canvas:
    """What is drawn, in drawing order."""

    width: float
    height: float
    rectangles: list[Rectangle]
    texts: list[tuple[float, float, str, str, int]]  # x, y, text, colour, size


def compose(inventory: Inventory) -> Canvas:
    """Place everything on a canvas."""
    rows = lay_out(inventory)
    owners = legend(rows)
    colours = owner_colours(owners)
    box_width, box_height, gap, left, top = 74.0, 34.0, 6.0, 170.0, 46.0
    per_line = 12
    rectangles: list[Rectangle] = []
    texts: list[tuple[float, float, str, str, int]] = []
    y = top
    for row in rows:
        texts.append((16, y + 12, row.node, INK, 14))
        y += 22
        for driver, boxes in row.groups:
            texts.append((left - 8, y + 21, f"{driver}", PALE_INK, -10))  # negative size: right-aligned
            for index, box in enumerate(boxes):
                x = left + (index % per_line) * (box_width + gap)
                line_y = y + (index // per_line) * (box_height + gap)
                rectangles += _box_rectangles(box, x, line_y, box_width, box_height, colours)
            y += ((len(boxes) - 1) // per_line + 1) * (box_height + gap)
        y += 14
    y += 6
    for index, owner in enumerate(owners):
        x = 16 + (index % 4) * 260
        line_y = y + (index // 4) * 20
        rectangles.append(Rectangle(x, line_y, 12, 12, colours[owner]))
        texts.append((x + 18, line_y + 10, owner if len(owner) < 38 else owner[:37] + "…", INK, 11))
    height = y + (len(owners) + 3) // 4 * 20 + 24
    used = sum(part.size for row in rows for _, boxes in row.groups for box in boxes for part in box.parts)
    total = sum(len(boxes) for row in rows for _, boxes in row.groups)
    texts.append((16, 26, f"{len(rows)} nodes, {total} devices, {used:.1f} in use", INK, 16))
    return Canvas(left + per_line * (box_width + gap) + 10, height, rectangles, texts)


def _box_rectangles(
    box: Box, x: float, y: float, width: float, height: float, colours: dict[str, str]
) -> list[Rectangle]:
    base = {"tainted": TAINTED, "blocked": BLOCKED}.get(box.state, FREE)
    found = [Rectangle(x, y, width, height, base, "" if box.parts else box.name, box.title)]
    for part in box.parts:
        label = part.label if part.size * width > 26 else ""
        title = f"{box.name}: {part.label}\n{part.owner}"
        found.append(
            Rectangle(
                x + part.start * width,
                y,
                max(2.0, part.size * width),
                height,
                colours[part.owner],
                label,
                title,
            )
        )
    return found


def draw_svg(inventory: Inventory) -> str:
    """Draw as SVG; every name is escaped."""
    canvas = compose(inventory)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{canvas.width:.0f}" height="{canvas.height:.0f}" '
        f'viewBox="0 0 {canvas.width:.0f} {canvas.height:.0f}" font-family="system-ui, sans-serif" role="img">',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for box in canvas.rectangles:
        parts.append(
            f'<g><rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="3" '
            f'fill="{box.fill}" stroke="{FRAME}" stroke-width="0.6"/>'
        )
        if box.title:
            parts.append(f"<title>{escape(box.title)}</title>")
        if box.label:
            label = (
                box.label
                if len(box.label) <= box.width / 6.2
                else box.label[: int(box.width / 6.2) - 1] + "…"
            )
            parts.append(
                f'<text x="{box.x + box.width / 2:.1f}" y="{box.y + box.height / 2 + 3.5:.1f}" font-size="10" '
                f'text-anchor="middle" fill="{INK}">{escape(label)}</text>'
            )
        parts.append("</g>")
    for x, y, text, colour, size in canvas.texts:
        anchor = ' text-anchor="end"' if size < 0 else ""
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{abs(size)}" fill="{colour}"{anchor}>{escape(text)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_png(inventory: Inventory, scale: int = 2) -> bytes:
    """Draw as PNG; raises ImportError where Pillow is not installed."""
    from PIL import Image, ImageDraw, ImageFont

    canvas = compose(inventory)
    image = Image.new("RGB", (int(canvas.width * scale), int(canvas.height * scale)), PAPER)
    pen = ImageDraw.Draw(image)

    def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return ImageFont.load_default(size * scale)

    for box in canvas.rectangles:
        corner = (box.x * scale, box.y * scale, (box.x + box.width) * scale, (box.y + box.height) * scale)
        pen.rounded_rectangle(corner, 3 * scale, box.fill, FRAME)
        if box.label:
            label = (
                box.label
                if len(box.label) <= box.width / 6.2
                else box.label[: int(box.width / 6.2) - 1] + "…"
            )
            middle = ((box.x + box.width / 2) * scale, (box.y + box.height / 2) * scale)
            pen.text(middle, label, INK, font(10), anchor="mm")
    for x, y, text, colour, size in canvas.texts:
        pen.text((x * scale, y * scale), text, colour, font(abs(size)), anchor="rs" if size < 0 else "ls")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
