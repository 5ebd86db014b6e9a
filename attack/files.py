"""Files that were damaged while nobody ran: a server or node that starts on them says so in one line, or works and has lost nothing.

Three outcomes are right: the process refuses to start (an error in words, no traceback, within a
time), it starts and shows every object as it was, or what is damaged can be made again. Wrong are
tracebacks, hangs, deaths by signal, and a start that silently lost or changed objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack.findings import Findings, tracebacks_of
from attack.servers import Server
from attack.wire import Request, ask, client_tls, json_request

OBJECTS = 40
PATIENCE = 60.0  # seconds to start or to refuse
ALIVE = 2.0  # seconds that a node must stay up
TOKENS = "tokens.csv"
LISTED = "/api/v1/namespaces/default/configmaps"
Damage = Callable[[Path, random.Random], None]


def _truncate(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(chance.randrange(max(1, path.stat().st_size)))


def _flip(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    if size:
        with path.open("r+b") as file:
            place = chance.randrange(size)
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def _overwrite(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(chance.randrange(max(1, path.stat().st_size)))
        file.write(bytes(chance.randrange(256) for _ in range(512)))


def _put(content: bytes) -> Damage:
    def damage(path: Path, _: random.Random) -> None:
        path.write_bytes(content)

    return damage


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to(path)


RANDOM: dict[str, Damage] = {"flip": _flip, "truncate": _truncate, "overwrite": _overwrite}
FIXED: dict[str, Damage] = {
    "empty": _put(b""), "garbage": _put(bytes(range(256)) * 8), "text": _put(b"x"), "removed": _remove, "folder": _folder, "loop": _loop,
    "not utf-8": _put(b"\xff\xfe\xfa")
}  # fmt: skip
CHECKPOINTS: dict[str, bytes] = {
    "empty": b"", "text": b"x", "null": b"null", "list": b"[]", "number": b"1" * 5_000, "nested": b"[" * 100_000, "deep": b'{"a":' * 5_000, "not utf-8": b"\xff",
    "wrong types": b'{"Data": 1, "Checksum": "x"}', "inner": b'{"Data": "{\\"a\\": [1]}", "Checksum": 0}', "v": b'{"version": {}, "claims": 7, "entries": "x"}',
    "huge": b'{"a": "' + b"x" * 20_000_000 + b'"}',
}  # fmt: skip


async def _shown(port: int) -> dict[str, Any] | None:
    answer = await ask(port, Request("GET", LISTED), client_tls(), 20.0)
    if answer.status != 200:
        return None
    return {
        each["metadata"]["name"]: [each["metadata"]["uid"], each.get("data")]
        for each in json.loads(answer.body)["items"]
    }


async def _fill(port: int) -> None:
    for number in range(OBJECTS):
        body = {"metadata": {"name": f"kept{number}"}, "data": {"a": "x" * 200, "n": str(number)}}
        await ask(port, json_request("POST", LISTED, body), client_tls(), 20.0)


class _Files:
    def __init__(self, folder: Path, findings: Findings) -> None:
        self.folder = folder / "files"
        self.findings = findings
        shutil.rmtree(self.folder, ignore_errors=True)
        self.original = self.folder / "original"
        server = Server(self.original)
        server.start()
        asyncio.run(_fill(server.port))
        self.objects = asyncio.run(_shown(server.port))
        server.kill()  # not stopped in peace: the log of the store is there as well
        self.outcomes = {"refused": 0, "started": 0, "wrong": 0}

    def try_server(self, name: str, relative: str, damage: Damage, chance: random.Random) -> None:
        """Start a server on a damaged copy and judge what happens."""
        place = self.folder / "copy"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.original, place)
        server = Server(place)
        damage(place / relative, chance)  # after what `Server` writes itself
        server.log.write_bytes(b"")
        problem = ""
        try:
            server.start(PATIENCE)
            shown = asyncio.run(_shown(server.port))
            if shown is None and relative != TOKENS:  # whose tokens are not known any more
                problem = "starts, but cannot list"
            elif (
                shown is not None
                and shown != self.objects
                and not (relative.endswith("-wal") and self._is_beginning(shown))
            ):
                lost = len(self.objects or {}) - len(shown)
                problem = f"starts, and objects are silently {'lost' if lost else 'changed'}"
            self.outcomes["started"] += 1
        except RuntimeError:
            self.outcomes["refused"] += 1
            if server.death().startswith("SIG"):
                problem = f"ends by {server.death()}"
        except TimeoutError:
            problem = "neither starts nor refuses"
        finally:
            server.kill()
        log = server.log.read_text(errors="replace")
        for cause, text in tracebacks_of(log):
            self.findings.add(
                "traceback",
                f"server on a damaged file: {cause}",
                {"file": relative, "damage": name, "log": text},
            )
        if problem:
            print(f"  {relative} {name}: {problem}", file=sys.stderr, flush=True)
            self.outcomes["wrong"] += 1
            self.findings.add(
                "files",
                f"server: {relative} {name.split(' #')[0]}: {problem}",
                {"damage": name, "log": log[-1_000:]},
            )

    def _is_beginning(self, shown: dict[str, Any]) -> bool:
        """Return whether only the newest writes are gone: the end of a write-ahead log cannot be told from one never written."""
        order = sorted(
            self.objects or {},
            key=lambda name: int(name.removeprefix("kept") or 0) if name.startswith("kept") else -1,
        )
        return all(shown.get(name) == (self.objects or {})[name] for name in order[: len(shown)])

    def try_node(self, name: str, relative: str, content: bytes, kubeconfig: Path) -> None:
        """Start a node whose state file holds the content."""
        root = self.folder / "node"
        shutil.rmtree(root, ignore_errors=True)
        path = root / relative
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        log = self.folder / "node.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "dray", "node", "--kubeconfig", str(kubeconfig), "--name", "damaged", "--root", str(root), "--runtime", "none",
                 "--address", "127.0.0.1", "--cdi-dir", str(root / "cdi")],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        said = ""
        while time.monotonic() < deadline and process.poll() is None and "is up" not in said:
            time.sleep(0.05)
            said = log.read_text(errors="replace")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ALIVE / 4)
        code = process.poll()
        process.kill()
        process.wait(20)
        said = log.read_text(errors="replace")
        for cause, text in tracebacks_of(said):
            self.findings.add(
                "traceback",
                f"node on a damaged file: {cause}",
                {"file": relative, "damage": name, "log": text},
            )
        if code is None and "is up" not in said:
            self.findings.add(
                "files", f"node: {relative} {name}: neither starts nor refuses", {"log": said[-1_000:]}
            )
        elif code is not None and code < 0:
            self.findings.add(
                "files", f"node: {relative} {name}: ends by signal {-code}", {"log": said[-1_000:]}
            )
        self.outcomes["refused" if code else "started"] += 1


def attack_files(folder: Path, findings: Findings, seed: str, damages: int) -> dict[str, int]:
    """Try `damages` random damages of the store, all fixed ones of every file, and of a node's checkpoint; returns counts."""
    tried = _Files(folder, findings)
    chance = random.Random(f"{seed}/files")
    stores = [
        path
        for path in sorted((tried.original / "data").glob("store.db*"))
        if path.is_file() and not path.name.endswith("-shm")
    ]
    for number in range(damages):
        path = stores[number % len(stores)]
        name, damage = list(RANDOM.items())[number // len(stores) % len(RANDOM)]
        tried.try_server(f"{name} #{number}", str(path.relative_to(tried.original)), damage, chance)
    others = [
        path
        for path in sorted((tried.original / "data").rglob("*"))
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    ]
    fixed = [(path, name) for path in [*others, tried.original / TOKENS] for name in FIXED]
    for path, name in fixed if damages >= 20 else chance.sample(fixed, min(len(fixed), damages)):
        tried.try_server(name, str(path.relative_to(tried.original)), FIXED[name], chance)
    server = Server(tried.folder / "for-node")
    server.start()
    try:
        for name, content in list(CHECKPOINTS.items())[: None if damages >= 20 else 4]:
            for relative in (
                ("dra_manager_state", "dray_state.json") if damages >= 20 else ("dra_manager_state",)
            ):
                tried.try_node(name, relative, content, server.data / "admin.kubeconfig")
    finally:
        server.stop()
    shutil.rmtree(tried.folder, ignore_errors=True)
    return tried.outcomes
