"""Make the pictures of docs/shared-machine.md from a real session of three users, as root.

    docs/images/shared-session.cast, .svg    what ann, bob and eve typed and saw (asciicast v2, and as a picture)
    docs/images/dashboard-users.png          the dashboard as bob sees it
    docs/images/dashboard-history.png

The users are made for it and removed afterwards, so none of these names may exist. They run this program's Python, which must
lie where everybody may read it: `/usr/bin/python3 tools/shared_pictures.py` with PYTHONPATH of the environment, for example.
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "src")]

from browser import browser_page  # noqa: E402
from pictures import COLUMNS, IMAGES, cast, terminal_svg  # noqa: E402

from dray.local.system_service import closed_to_others  # noqa: E402

TRAIN = "for step in 1 2 3 4 5 6 7 8 9; do echo step $step; sleep 1; done; sleep 600"
SESSION = [  # user, command, seconds until the next
    ("ann", "dray run --device gpu.nvidia.com --count 6 --time 2h --detach --name train -- sh train.sh", 2),
    ("bob", "dray run --device gpu.nvidia.com --priority low --detach --name sweep -- sleep 600", 2),
    ("bob", "dray get devices --class gpu.nvidia.com", 2),
    ("eve", "dray run --device gpu.nvidia.com --count 2 --time 30m --detach --name eval -- sleep 600", 12),
    ("eve", "dray ps", 1),
    ("eve", "dray run --device gpu.nvidia.com --detach --name more -- true", 6),
    ("eve", "dray queue", 1),
    ("ann", "dray logs train", 1),
    ("bob", "dray logs train -n user-ann", 1),
    ("ann", "dray stop train", 4),
    ("eve", "dray ps -a", 1),
]


class Shared:
    """A shared system, and what its users type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = Path("/run/dray-pictures/api.sock")
        self.socket.parent.mkdir(mode=0o755, exist_ok=True)
        self.environment = {
            "PATH": f"{folder}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",  # output and messages in their order
            "DRAY_SOCKET": str(self.socket),
        }
        python = shlex.quote(sys.executable)
        program = folder / "dray"
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH={shlex.quote(":".join(sys.path))} exec {python} -P -m dray "$@"\n'
        )
        program.chmod(0o755)
        self.log = folder / "up.log"
        self.process = subprocess.Popen(
            [program, "up", "--shared", "--sim", "dgx-h100", "--no-host", "--secure-port", "0", "--data", folder / "data"],
            env={**self.environment, "HOME": str(folder)}, stdout=self.log.open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        while "dray is up" not in self.log.read_text():
            if self.process.poll() is not None:
                raise SystemExit(self.log.read_text())
            time.sleep(0.2)

    def type(self, user: str, command: str) -> str:
        """Run a command as a user, in the home; return what appeared on the terminal."""
        words = ["runuser", "-u", user, "--", "env", "-i", f"HOME=/home/{user}", f"USER={user}"]
        words += [f"{name}={value}" for name, value in self.environment.items()]
        done = subprocess.run(
            [*words, "sh", "-c", f"cd; exec 2>&1; {command}"], capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)
        for left in self.socket.parent.iterdir():
            left.unlink()
        self.socket.parent.rmdir()


def record(shared: Shared) -> list[tuple[float, str]]:
    """Play the session; returns what appears, with seconds since the beginning."""
    shown, clock = [], 0.5
    for user, command, pause in SESSION:
        shown.append((clock, f"{user}$ "))
        for character in command:
            clock += 0.03
            shown.append((clock, character))
        began = time.monotonic()
        printed = shared.type(user, command).splitlines()
        clock += 0.3 + min(2.0, time.monotonic() - began)
        shown.append((clock, "\n" + "".join(f"{line[:COLUMNS]}\n" for line in printed)))
        clock += min(pause, 4)
        time.sleep(pause)
    return shown


async def dashboard(link: str) -> None:
    """Write pictures of the views of users and of history."""
    async with browser_page() as page:
        await page.call(
            "Emulation.setDeviceMetricsOverride", width=1280, height=560, deviceScaleFactor=1, mobile=False
        )
        await page.open(link)
        await page.until("document.querySelectorAll('.device').length >= 8")
        await page.run("location.hash = '#/users'")
        await page.until(
            "document.querySelectorAll('tbody tr').length === 3 && document.querySelectorAll('.days rect').length"
        )
        await page.picture(IMAGES / "dashboard-users.png")
        await page.run("location.hash = '#/history?range=hour'")
        await page.until("document.querySelectorAll('.history li').length === 8")
        await asyncio.sleep(1)
        await page.picture(IMAGES / "dashboard-history.png")


def main() -> int:
    if os.geteuid() != 0:
        raise SystemExit("error: this makes Unix users, so it needs root")
    if closed := closed_to_others([Path(sys.executable), ROOT / "src"]):
        raise SystemExit(f"error: other users may not read {closed}")
    users = sorted({user for user, *_ in SESSION})
    made = []
    with tempfile.TemporaryDirectory(prefix="dray-pictures-") as folder:
        os.chmod(folder, 0o755)
        try:
            for user in users:
                subprocess.run(["useradd", "--create-home", user], check=True)
                made.append(user)
                Path(f"/home/{user}/train.sh").write_text(TRAIN)
            shared = Shared(Path(folder))
            try:
                shown = record(shared)
                time.sleep(62)  # usage is written once a minute
                found = re.search(r"https://\S+", shared.type("bob", "dray dashboard"))
                assert found, "dray dashboard printed no link"
                asyncio.run(dashboard(found[0]))
            finally:
                shared.close()
        finally:
            for user in made:
                subprocess.run(["userdel", "--remove", user], check=False, capture_output=True)
    IMAGES.joinpath("shared-session.cast").write_text(cast(shown), "utf-8")
    IMAGES.joinpath("shared-session.svg").write_text(
        terminal_svg("".join(text for _, text in shown)), "utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
