"""Replay the console blocks of pages on a real system, and compare or renew the output they show.

    python tools/replay.py examples/10-all-devices/README.md          compare; exit code 1 if the page is wrong
    python tools/replay.py --write examples/*/README.md docs/guides/*.md   write what was really printed

A page names its system with a `dray up …` command. Its commands are the lines `$ …` of the blocks
"```console" (in examples/) or "```console cluster" (in docs/, where a plain console block needs no
cluster); lines "> …" below a command with "<<" are its here-document, the others its output. A command that only looks is repeated until it
prints what the page says, because a cluster needs a moment; every other command runs once.

What differs from run to run (ages, generated suffixes, UUIDs, times, temporary paths, column widths,
the order of lines and of names in a list) is not compared. A line "…" stands for any lines.

`tests/e2e/test_pages.py` runs this over all pages.
"""

import argparse
import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
COMMAND_SECONDS = 90.0
SETTLE_SECONDS = 45.0
LOOKING = re.compile(
    r"(kubectl (get|logs|describe|wait|top|events)|dray (get|explain|map|top|check|whatif|cel|status))\b"
)
UP = re.compile(r"\bdray up( [^`#\n]*)")
KINDS = (  # deleted after a page, if they were not there before it; those that the system serves (feature gates)
    "deployments.apps", "jobs.batch", "daemonsets.apps", "pods", "podgroups.scheduling.k8s.io",
    "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "devicetaintrules.resource.k8s.io",
    "resourcepoolstatusrequests.resource.k8s.io", "resourcequotas", "priorityclasses.scheduling.k8s.io",
    "deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "namespaces",
)  # fmt: skip
VARYING = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "-<set>-<id>"),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "-<id>"),
    (re.compile(r"-[0-9a-f]{10}\b"), "-<hash>"),
    (re.compile(r"/(tmp|home)/[\w./-]+"), "<path>"),
    (re.compile(r"\b(127|10)\.\d+\.\d+\.\d+(:\d+)?\b"), "<address>"),
    (re.compile(r"\b\d+(\.\d+)?( ?(ms|s|m|h)(\d+(s|m))?)\b"), "<age>"),
    (re.compile(r"[ \t]+"), " "),
]


class ReplayError(Exception):
    """A page cannot be replayed."""


@dataclass(slots=True)
class Step:
    """One command of a page and the lines of its output, with their place in the page."""

    command: str
    shown: list[str]
    first: int  # line of the page (from 0) where the output begins


def system_of(text: str) -> str:
    """Return the arguments of the page's `dray up`."""
    found = UP.search(text)
    if found is None:
        raise ReplayError("the page names no system: it has no `dray up …`")
    return found[1].strip()


def steps_of(page: Path) -> list[Step]:
    """Return the commands of a page in order."""
    fence = "```console" if page.is_relative_to(ROOT / "examples") else "```console cluster"
    steps: list[Step] = []
    inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines()):
        if line.startswith("```"):
            inside = line.strip() == fence
        elif inside and steps and steps[-1].command.endswith("\\") and not steps[-1].shown:
            steps[-1].command = steps[-1].command[:-1] + line.strip()
            steps[-1].first = number + 1
        elif inside and steps and "<<" in steps[-1].command and line.startswith("> ") and not steps[-1].shown:
            steps[-1].command += f"\n{line[2:]}"  # a here-document
            steps[-1].first = number + 1
        elif inside and line.startswith("$ "):
            steps.append(Step(line[2:], [], number + 1))
        elif inside and steps:
            steps[-1].shown.append(line)
    return steps


def comparable(lines: list[str]) -> list[str]:
    """Return lines without what differs from run to run."""
    found = []
    for line in lines:
        text = line
        for pattern, replacement in VARYING:
            text = pattern.sub(replacement, text)
        text = re.sub(r"[\w-]+(?:,[\w-]+)+", lambda names: ",".join(sorted(names[0].split(","))), text)
        if text.strip():
            found.append(text.strip())
    return found


def agrees(shown: list[str], printed: list[str]) -> bool:
    """Return whether a page shows what was printed; "…" in the page stands for any lines."""
    expected, actual = comparable(shown), Counter(comparable(printed))
    wanted = Counter(line for line in expected if line not in ("…", "..."))
    if wanted.total() < len(expected):
        return wanted <= actual
    return wanted == actual


_STILL_AT_WORK = re.compile(r".* \(\d+ s\) …")


class Shell:
    """One bash for the commands of a page: variables and background processes live as long as it does."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self._count = 0

    def run(self, command: str, seconds: float = COMMAND_SECONDS) -> list[str]:
        """Run one command and return the lines it printed, errors among them."""
        assert self._process.stdin is not None
        self._count += 1
        mark = f"--replay-{self._count}--"
        self._process.stdin.write(f"{command}\necho {mark}\n".encode())
        self._process.stdin.flush()
        text = self._read_until(f"{mark}\n", time.monotonic() + seconds, command)
        # A busy machine makes commands say that they are still at work, which no page shows.
        return [line for line in text.splitlines() if not _STILL_AT_WORK.fullmatch(line)]

    def _read_until(self, mark: str, deadline: float, command: str) -> str:
        assert self._process.stdout is not None
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not text.endswith(mark.encode()):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ReplayError(f"no end of: {command}")
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    raise ReplayError(f"the shell ended at: {command}")
                text += piece
        return text[: -len(mark)].decode("utf-8", "replace")

    def close(self) -> None:
        """End the shell and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Cluster:
    """A running `dray up`, for one page after the other."""

    def __init__(self, arguments: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rp-", dir="/tmp"))  # short: socket paths have little room
        (self.folder / "bin").mkdir()
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{_kubectl_folder()}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),  # the marker of the latest `dray up` is here
            "KUBECONFIG": str(self.folder / "data" / "admin.kubeconfig"),
            "LC_ALL": "C.UTF-8",
        }
        command = f"exec dray up {arguments} --data {self.folder}/data --secure-port 0"
        self._log = (self.folder / "up.log").open("w+")
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            cwd=ROOT,
            start_new_session=True,
        )
        self._wait_until_up()
        served = set(self._kubectl("api-resources", "--output=name").split())
        self._kinds = ",".join(kind for kind in KINDS if kind in served)
        self._before = self._objects()
        self._drivers = set(self._slices().values())

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "Ctrl-C stops" not in (self.folder / "up.log").read_text("utf-8"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "up.log").read_text("utf-8")
                self.close()
                raise ReplayError(f"`dray up` did not start: {text}")
            time.sleep(0.2)

    def _kubectl(self, *words: str) -> str:
        """Return what kubectl prints; a failure is an error, never an empty answer."""
        done = subprocess.run(
            ["kubectl", *words], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise ReplayError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _objects(self) -> set[tuple[str, str, str]]:
        """Return kind, namespace and name of everything that a page may leave behind."""
        text = self._kubectl("get", self._kinds, "--all-namespaces", "--output=json")
        return {
            (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
            for each in json.loads(text)["items"]
            if each["kind"] != "ResourceSlice"
            or not each["metadata"].get("ownerReferences")  # a driver's own
        }

    def _slices(self) -> dict[str, str]:
        items = json.loads(self._kubectl("get", "resourceslices", "--output=json"))["items"]
        return {each["metadata"]["name"]: each["spec"]["driver"] for each in items}

    def forget_drivers(self) -> None:
        """Delete the slices of drivers that a page started; they must have ended."""
        left = [name for name, driver in self._slices().items() if driver not in self._drivers]
        if left:
            self._kubectl("delete", "resourceslices", *left, "--ignore-not-found")

    def reset(self) -> None:
        """Delete what a page left behind."""
        deadline = time.monotonic() + 60
        while new := self._objects() - self._before:
            names: dict[tuple[str, str], list[str]] = {}
            for kind, namespace, name in sorted(new):
                names.setdefault((kind, namespace), []).append(name)
            for (kind, namespace), each in names.items():
                where = ["--namespace", namespace] if namespace else []
                self._kubectl("delete", kind, *each, *where, "--wait=false", "--ignore-not-found")
            if time.monotonic() > deadline:
                raise ReplayError(f"these do not go away: {sorted(new)}")
            time.sleep(0.3)

    def shell(self) -> Shell:
        """Return a shell for one page."""
        return Shell(self.environment)

    def close(self) -> None:
        """Stop the system and remove its folder."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _kubectl_folder() -> str:
    """Return the folder of kubectl: on the path, or as a peer that tools/peers/build made."""
    if found := shutil.which("kubectl"):
        return str(Path(found).parent)
    peers = Path(os.environ.get("DRAY_PEERS") or Path.home() / ".cache/dray/peers")
    return str(next(iter(sorted(peers.glob("**/kubectl"), reverse=True)), Path("/nonexistent")).parent)


def play(page: Path, cluster: Cluster, patience: float = SETTLE_SECONDS) -> Iterator[tuple[Step, list[str]]]:
    """Yield each step of a page with what it really printed."""
    shell = cluster.shell()
    try:
        for step in steps_of(page):
            printed = shell.run(step.command)
            deadline = time.monotonic() + patience
            if LOOKING.match(step.command):
                while not agrees(step.shown, printed) and time.monotonic() < deadline:
                    time.sleep(0.5)
                    printed = shell.run(step.command)
            yield step, printed
    finally:
        try:
            cluster.reset()  # while drivers that the page started still run: pods need them to end
        finally:
            shell.close()
            cluster.forget_drivers()


def differences(page: Path, cluster: Cluster, patience: float = SETTLE_SECONDS) -> list[str]:
    """Return a description of each command of a page that does not print what the page shows."""
    return [
        f"line {step.first}: $ {step.command}\nthe page shows:\n"
        + "\n".join(step.shown)
        + "\nit prints:\n"
        + "\n".join(printed)
        for step, printed in play(page, cluster, patience)
        if not agrees(step.shown, printed)
    ]


def renew(page: Path, cluster: Cluster, patience: float = SETTLE_SECONDS) -> int:
    """Write what was really printed into a page; returns how many outputs changed."""
    lines = page.read_text("utf-8").splitlines()
    changed = [
        (step, printed) for step, printed in play(page, cluster, patience) if not agrees(step.shown, printed)
    ]
    for step, printed in reversed(changed):
        lines[step.first : step.first + len(step.shown)] = [
            line.rstrip().replace(str(cluster.folder), "/home/me") for line in printed
        ]
    page.write_text("\n".join(lines) + "\n", "utf-8")
    return len(changed)


def by_system(pages: list[Path]) -> dict[str, list[Path]]:
    """Group pages that have steps by the system they run on."""
    found: dict[str, list[Path]] = {}
    for page in pages:
        if steps_of(page):
            found.setdefault(system_of(page.read_text("utf-8")), []).append(page)
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools/replay.py", description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="renew the pages instead of comparing")
    parser.add_argument(
        "--patience",
        type=float,
        default=SETTLE_SECONDS,
        metavar="SECONDS",
        help="for a cluster to become as the page says",
    )
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that systems are stopped
    wrong = 0
    for arguments, pages in by_system([page.resolve() for page in args.pages]).items():
        print(f"dray up {arguments}", file=sys.stderr)
        cluster = Cluster(arguments)
        try:
            for page in pages:
                began, name = time.monotonic(), page.relative_to(ROOT)
                if args.write:
                    print(
                        f"{name}: {renew(page, cluster, args.patience)} outputs renewed, {time.monotonic() - began:.0f} s",
                        flush=True,
                    )
                    continue
                found = differences(page, cluster, args.patience)
                wrong += len(found)
                print(
                    f"{name}: {len(found) or 'no'} differences, {time.monotonic() - began:.0f} s",
                    *found,
                    sep="\n",
                    flush=True,
                )
        finally:
            cluster.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
