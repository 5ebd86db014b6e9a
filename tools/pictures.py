"""Make the pictures of the documentation from a real session: `make pictures`.

    docs/images/session.cast     a terminal session, asciicast v2 (asciinema play docs/images/session.cast)
    docs/images/session.svg      the same session as a picture
    docs/images/dashboard-*.png  the dashboard, by headless chromium
    docs/images/map.svg          nodes and devices, by `dray map`

Everything shown was printed by the commands shown, on a system of simulated nodes.
"""

import asyncio
import json
import re
import sys
import time
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

import replay  # noqa: E402
from browser import browser_page  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 142, 44
SYSTEM = "--no-host --sim dgx-h100 --sim dgx-a100-mig --sim l40s-shared"
SESSION = [  # command, seconds that a reader needs for its output
    ("kubectl apply -f examples/07-match-attribute/manifest.yaml", 2.0),
    ("kubectl wait --for=condition=Ready pod/rdma-a pod/rdma-b", 1.5),
    ("dray get claims", 4.0),
    ("kubectl apply -f examples/31-impossible/manifest.yaml", 2.0),
    ("dray explain pod h200", 6.0),
    ("dray whatif examples/23-inference-service/manifest.yaml --need dgx-h100", 5.0),
]
MORE = [
    "examples/13-mig-partitions/manifest.yaml",
    "examples/14-shares/manifest.yaml",
    "examples/14-shares/third.yaml",
]
LARGEST = 300_000  # bytes of a picture


def record(shell: replay.Shell) -> list[tuple[float, str]]:
    """Play the session; returns what appears on the terminal, with seconds since the beginning."""
    shown, clock = [], 0.5
    for command, pause in SESSION:
        shown.append((clock, "$ "))
        for character in command:
            clock += 0.03
            shown.append((clock, character))
        began = time.monotonic()
        printed = shell.run(command)
        clock += 0.3 + min(2.0, time.monotonic() - began)
        shown.append((clock, "\n" + "".join(f"{line[:COLUMNS]}\n" for line in printed)))
        clock += pause
    return shown


def cast(shown: list[tuple[float, str]]) -> str:
    """Return the session as asciicast v2."""
    head = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "title": "dray",
        "env": {"TERM": "xterm-256color"},
    }
    events = [[round(at, 2), "o", text.replace("\n", "\r\n")] for at, text in shown]
    return "\n".join(json.dumps(each, ensure_ascii=False) for each in [head, *events]) + "\n"


def terminal_svg(text: str) -> str:
    """Return lines of a terminal as a picture."""
    lines = text.rstrip("\n").split("\n")
    width, height = 12 + 7.25 * min(COLUMNS, max(len(line) for line in lines)), 44 + 17 * len(lines)
    rows = []
    for number, line in enumerate(lines):
        colour = "#9ece6a" if re.match(r"(\w+)?\$ ", line) else "#c0caf5"
        rows.append(
            f'<text x="12" y="{52 + 17 * number}" fill="{colour}" xml:space="preserve">{escape(line)}</text>'
        )
    dots = "".join(
        f'<circle cx="{18 + 18 * index}" cy="17" r="5.5" fill="{colour}"/>'
        for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        f'font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1a1b26"/>{dots}\n' + "\n".join(rows) + "\n</svg>\n"
    )


async def dashboard(url: str) -> None:
    """Write pictures of the dashboard."""
    async with browser_page() as page:
        await page.call(
            "Emulation.setDeviceMetricsOverride", width=1280, height=760, deviceScaleFactor=1, mobile=False
        )
        await page.open(url)
        await page.until("document.querySelectorAll('.device.held').length >= 5")
        await page.picture(IMAGES / "dashboard-map.png")
        await page.run("location.hash = '#/claims'")
        await page.until("document.querySelectorAll('tbody tr').length >= 5")
        await page.picture(IMAGES / "dashboard-claims.png")


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    cluster = replay.Cluster(SYSTEM)
    try:
        shell = cluster.shell()
        shown = record(shell)
        (IMAGES / "session.cast").write_text(cast(shown), "utf-8")
        (IMAGES / "session.svg").write_text(terminal_svg("".join(text for _, text in shown)), "utf-8")
        for path in MORE:
            shell.run(f"kubectl apply -f {path}")
        shell.run("kubectl wait --for=condition=Ready pod/another pod/twelve --timeout=60s")
        shell.run(f"dray map --svg {IMAGES / 'map.svg'}")
        found = re.search(r"https://\S+#\S+", (cluster.folder / "up.log").read_text("utf-8"))
        assert found, "dray up printed no address of the dashboard"
        asyncio.run(dashboard(found[0]))
        shell.close()
    finally:
        cluster.close()
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.stat().st_size:8} {path.relative_to(ROOT)}")
        assert path.stat().st_size <= LARGEST, f"{path} is too large"
    return 0


if __name__ == "__main__":
    sys.exit(main())
