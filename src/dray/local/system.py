"""A whole DRA system on one machine: processes started in order, watched, restarted, stopped.

    server ──ready──► scheduler, controllers, nodes (agents and drivers)

Each part is a process of its own, started with the same commands that an operator
would type, so that a crash of one is a crash of one: it is restarted with backoff
while the others go on, with the same command and, for the server, on the same port. What is
running is written to `<data>/system.json`, by which `dray status` and `dray down` find it
(`running_system`). Logs of the parts are kept small (`log_files`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.kinds import RESOURCE
from dray.api.parsing import load_yaml
from dray.client import AlreadyExists, ApiError, Client
from dray.client.resources import CLUSTER_ROLES, Resource
from dray.drivers.binding_conditions import has_conditions
from dray.drivers.driver_names import NAME_BY_SHORT_NAME
from dray.drivers.hardware import Profile
from dray.host.log_format import json_line
from dray.host.private_files import make_private, temporary_folder, write_private_text
from dray.local.driver_access import bind_role, grant_drivers, grant_light_nodes, install_drivers
from dray.local.log_files import LOOK_EVERY, rotate
from dray.local.node_plans import AUTO, LIGHT_KUBECONFIG, NodePlan, planned_nodes
from dray.local.running_system import STATE_FILE, process_entry, write_state
from dray.sim.twin import Twin

log = logging.getLogger("dray.local")

READY_SECONDS = 90.0  # a loaded machine is slow, not broken; a part that ends is noticed at once
READY_SECONDS_PER_NODE = 0.1
STOP_SECONDS = 10.0
LONGEST_PAUSE = 30.0
_DASHBOARD_USER = "dray:dashboard-link"  # whoever opens the link that `dray up` prints
LONGEST_FOLDER = 28  # of the nodes' folder, so that sockets below it fit into 107 bytes


class SystemFailure(Exception):
    """A part that does not come up; the message names its log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    data: Path
    port: int = 6443
    simulated: Sequence[tuple[Profile, int]] = ()
    host: str | None = None  # name of this machine's node; None: this machine is not a node
    runtime: str = "process"
    policy: str = ""
    feature_gates: str = ""
    log_format: str = "text"
    twin: Twin | None = None  # a copied cluster, whose nodes are hosted, too
    snapshot: Path | None = None  # where the copied cluster is described
    sim_nodes: str = AUTO  # whether simulated nodes are light or full
    socket: Path | None = None  # the Unix socket for the people of this machine; None: there is none
    catalogue: Path | None = (
        None  # of the nodes that `dray autoscale` adds and removes; None: it does not run
    )

    keep_jobs: bool = False  # stopping ends no containers: the next start takes them over

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig."""
        return self.data / "admin.kubeconfig"

    @property
    def drivers(self) -> list[str]:
        """Return the names of the drivers that will run."""
        names = {pool.driver for profile, _ in self.simulated for pool in profile.pools("x")}
        names |= self.twin.drivers if self.twin is not None else frozenset()
        if self.host is not None:
            names |= set(NAME_BY_SHORT_NAME.values())
        return sorted(names)

    def nodes(self) -> list[NodePlan]:
        """Return the nodes that will be hosted."""
        return planned_nodes(self.simulated, self.host, self.runtime, self.runtime, self.twin, self.sim_nodes)

    @property
    def drivers_with_binding_conditions(self) -> set[str]:
        """Return the names of the drivers whose devices make pods wait."""
        profiles = [profile for profile, _ in self.simulated]
        profiles += [profile for _, profile in self.twin.nodes] if self.twin is not None else []
        pools = (pool for profile in profiles for pool in profile.pools("x"))
        return {pool.driver for pool in pools if has_conditions(pool)}


@dataclass(slots=True)
class Part:
    """One process of the system."""

    name: str
    command: list[str]
    log_path: Path
    ready_word: str  # the line on stdout that says it is up
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    was_ready: bool = False  # it has worked before, so it is started again when it ends
    restarts: int = 0


class System:
    """Starts, watches and stops the parts."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parts: list[Part] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._rotator: asyncio.Task[None] | None = None
        self._stopping = False
        self._dashboard_token = secrets.token_urlsafe(16)
        self.dashboard_url = ""  # with a token behind the #, known once started

    # --- starting -----------------------------------------------------------------

    async def start(self) -> None:
        """Start everything; returns when all parts said that they are ready."""
        plan = self.plan
        plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        (plan.data / "logs").mkdir(mode=0o700, exist_ok=True)
        self._rotator = asyncio.create_task(self._rotate_logs())
        command = [
            "server",
            "--data",
            str(plan.data),
            "--secure-port",
            str(plan.port),
            "--kubeconfig",
            str(plan.kubeconfig),
            "--token-auth-file",
            str(self._write_dashboard_token()),
        ]
        if plan.socket is not None:
            command += ["--unix-socket", str(plan.socket)]
        if plan.feature_gates:
            command += ["--feature-gates", plan.feature_gates]
        server = self._part("server", command, "ready")
        await self._launch(server)
        await self._wait_ready(server)
        await self._prepare_access()
        gates = ["--feature-gates", plan.feature_gates] if plan.feature_gates else []
        policy = ["--policy", plan.policy] if plan.policy else []
        scheduler = [
            "scheduler",
            "--kubeconfig",
            str(plan.data / "scheduler.kubeconfig"),
            "--name",
            "default-scheduler",
            "--leader-identity",
            "dray-up",
            "--scheduled-events",
        ]
        if plan.socket is not None:  # several people use it
            scheduler.append("--fair-share")
        parts = [
            self._part("scheduler", [*scheduler, *gates, *policy], "ready"),
            self._part(
                "controllers",
                ["controllers", "--kubeconfig", str(plan.data / "controllers.kubeconfig")],
                "running",
            ),
        ]
        if plan.simulated or plan.host or plan.twin:
            parts.append(self._part("nodes", self._nodes_command(), "ready"))
        if plan.catalogue is not None:
            command = ["autoscale", "--data", str(plan.data), "--catalogue", str(plan.catalogue)]
            parts.append(self._part("autoscaler", [*command, "--runtime", plan.runtime], "ready"))
        await asyncio.gather(*(self._launch(part) for part in parts))
        await asyncio.gather(*(self._wait_ready(part) for part in parts))
        if plan.twin is not None and plan.twin.workloads:
            async with Client.connect(plan.kubeconfig) as client:
                await create_objects(client, plan.twin.workloads)
        self._write_state()

    def _nodes_command(self) -> list[str]:
        plan = self.plan
        command = [
            "nodes",
            "--root",
            str(short_path(plan.data / "nodes")),
            "--credentials",
            str(plan.data / "credentials"),
        ]
        command += ["--client-ca", str(plan.data / "pki/ca.crt"), "--runtime", plan.runtime]
        command += ["--sim-nodes", plan.sim_nodes]
        for profile, count in plan.simulated:
            command += ["--sim", f"{profile.source or profile.name}:{count}"]
        if plan.snapshot is not None:
            command += ["--from", str(plan.snapshot)]
        if plan.host:
            command += ["--host", "--host-name", plan.host]
        return command

    def _part(self, name: str, arguments: list[str], ready_word: str) -> Part:
        command = [sys.executable, "-m", "dray", *arguments]
        if self.plan.log_format != "text":
            command += ["--log-format", self.plan.log_format]
        part = Part(name, command, self.plan.data / "logs" / f"{name}.log", ready_word)
        self.parts.append(part)
        return part

    async def _launch(self, part: Part) -> None:
        part.ready.clear()
        with part.log_path.open("ab") as log_file:
            part.process = await asyncio.create_subprocess_exec(
                *part.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log_file,
                start_new_session=True,  # Ctrl-C reaches us first; we stop the parts in order
            )
        self._watchers.append(asyncio.create_task(self._watch(part)))

    async def _watch(self, part: Part) -> None:
        """Follow a part's output; restart it when it ends by itself."""
        process = part.process
        assert process is not None
        assert process.stdout is not None
        started = time.monotonic()
        with part.log_path.open("ab") as log_file:
            async for line in process.stdout:
                with contextlib.suppress(OSError):  # a full disk must not end the watching
                    log_file.write(self._logged(part, line))
                    log_file.flush()
                if part.ready_word in line.decode("utf-8", "replace"):
                    keep_port(part.command, line.decode("utf-8", "replace"))
                    part.ready.set()
                    part.was_ready = True
        code = await process.wait()
        if self._stopping or not part.was_ready:
            return
        pause = min(LONGEST_PAUSE, 0.2 * 2.0**part.restarts)
        part.restarts = 0 if time.monotonic() - started > 60 else part.restarts + 1
        log.warning(
            "%s ended with %s; starting it again in %.1f s (log: %s)", part.name, code, pause, part.log_path
        )
        await asyncio.sleep(pause)
        if not self._stopping:
            await self._launch(part)
            self._write_state()

    def _logged(self, part: Part, line: bytes) -> bytes:
        """Return a line of a part's stdout as its log has it."""
        if self.plan.log_format != "json":
            return line
        return json_line(f"dray.{part.name}", line.decode("utf-8", "replace").rstrip()).encode() + b"\n"

    async def _rotate_logs(self) -> None:
        """Keep the logs of the parts bounded, for as long as the system runs."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for part in self.parts:
                await asyncio.to_thread(rotate, part.log_path)

    @property
    def _patience(self) -> float:
        """Return how long, in seconds, a part may take to be ready."""
        n_nodes = sum(count for _, count in self.plan.simulated)
        return READY_SECONDS + n_nodes * READY_SECONDS_PER_NODE

    async def _wait_ready(self, part: Part) -> None:
        assert part.process is not None
        ended = asyncio.create_task(part.process.wait())
        ready = asyncio.create_task(part.ready.wait())
        try:
            done, _ = await asyncio.wait(
                {ended, ready}, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if ended in done and ready not in done:
            raise SystemFailure(f"{part.name} did not start: {last_words(part.log_path)}")
        if not done:
            raise SystemFailure(
                f"{part.name} is not ready after {self._patience:.0f} s; its log: {part.log_path}"
            )
        ended.cancel()

    # --- access for nodes and drivers --------------------------------------------------

    async def _prepare_access(self) -> None:
        """Make credentials for every node and driver, the drivers' roles, and the device classes."""
        from dray.local.credentials import (
            write_driver_kubeconfig,
            write_light_kubeconfig,
            write_node_kubeconfig,
        )

        plan = self.plan
        folder = plan.data / "credentials"
        folder.mkdir(mode=0o700, exist_ok=True)
        nodes = plan.nodes()
        for node in nodes:
            if not node.is_light:
                write_node_kubeconfig(plan.data, node.name, folder / f"node-{node.name}.kubeconfig")
        has_light = any(node.is_light for node in nodes)
        if has_light:
            write_light_kubeconfig(plan.data, folder / LIGHT_KUBECONFIG)
        for driver in plan.drivers:
            write_driver_kubeconfig(plan.data, driver, folder / f"driver-{driver}.kubeconfig")
        async with Client.connect(plan.kubeconfig) as client:
            await grant_drivers(client, plan.drivers, plan.drivers_with_binding_conditions)
            if has_light:
                await grant_light_nodes(client)
            self.dashboard_url = await self._dashboard_link(client)
            if plan.twin is not None:  # its classes come before those of the models
                await create_objects(client, plan.twin.objects)
            await install_drivers(client, plan.drivers)

    async def _dashboard_link(self, client: Client) -> str:
        """Let the dashboard's user look at everything and change nothing; return a link with its token."""
        rules: list[dict[str, Any]] = [
            {
                "apiGroups": [""],
                "resources": ["nodes", "pods", "events", "namespaces"],
                "verbs": ["get", "list", "watch"],
            },
            {"apiGroups": [RESOURCE], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": ["dray-usage", "dray-queue", "dray-history"],
                "verbs": ["get", "list"],
            },
        ]
        subject = {"kind": "User", "apiGroup": CLUSTER_ROLES.group, "name": _DASHBOARD_USER}
        await bind_role(client, _DASHBOARD_USER, rules, subject)
        server = load_yaml(self.plan.kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"]
        return f"{server}/dashboard/#token={self._dashboard_token}"

    def _write_dashboard_token(self) -> Path:
        """Write the token of the dashboard's link for the server: new with every start, and short enough for a terminal."""
        path = self.plan.data / "dashboard-token.csv"
        write_private_text(path, f'{self._dashboard_token},{_DASHBOARD_USER},dashboard,""\n')
        return path

    # --- stopping ------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until somebody stops us."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop the parts, nodes first and the server last, then what runs in containers."""
        self._stopping = True
        for part in reversed(self.parts):
            process = part.process
            if process is None or process.returncode is not None:
                continue
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                log.warning("%s does not stop; killing it", part.name)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._rotator is not None:
            self._watchers.append(self._rotator)
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if not self.plan.keep_jobs:
            await self._end_containers()
        (self.plan.data / STATE_FILE).unlink(missing_ok=True)

    async def _end_containers(self) -> None:
        from dray.local.containers import end_containers

        try:
            await end_containers(self.plan.data / "nodes", self.plan.runtime)
        except (OSError, ValueError) as error:
            log.warning("containers may be left below %s: %s", self.plan.data / "nodes", error)
        nodes = self.plan.data / "nodes"
        link = short_path(nodes)
        if link != nodes:
            link.unlink(missing_ok=True)

    def _write_state(self) -> None:
        parts = {
            part.name: {**process_entry(part.process.pid if part.process else 0), "log": str(part.log_path)}
            for part in self.parts
        }
        state = {
            **process_entry(os.getpid()),
            "data": str(self.plan.data),
            "kubeconfig": str(self.plan.kubeconfig),
            "dashboard": self.dashboard_url,
            "runtime": self.plan.runtime,
            "parts": parts,
        }
        write_state(self.plan.data, state)


async def create_objects(client: Client, objects: Sequence[tuple[Resource, JsonObject]]) -> None:
    """Create the objects of a copied cluster; what exists stays, what the server refuses is named and left out."""
    for resource, body in objects:
        namespace = (body["metadata"].get("namespace") or None) if resource.namespaced else None
        try:
            await client.create(resource, body, namespace)
        except AlreadyExists:
            continue
        except ApiError as error:
            log.warning("not copied: %s %s: %s", resource.kind, body["metadata"].get("name"), error)


def keep_port(command: list[str], ready_line: str) -> None:
    """Write the port that a server chose into the command by which it is started again.

    Everybody has its address by then: on another port nobody would find it.

    >>> command = ["dray", "server", "--secure-port", "0"]
    >>> keep_port(command, "dray server ready at https://127.0.0.1:40123 (kubeconfig x)")
    >>> command[-1]
    '40123'
    """
    found = re.search(r"ready at https://\S*:(\d+)", ready_line)
    if found is not None and "--secure-port" in command:
        command[command.index("--secure-port") + 1] = found[1]


def short_path(folder: Path) -> Path:
    """Return a short name for a folder whose own name leaves no room for the sockets inside.

    The path of a Unix socket may have 107 bytes, and drivers have long names. A link is as
    good as the folder itself, in a folder where nobody else can put another in its place.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if len(str(folder)) <= LONGEST_FOLDER:
        return folder
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    link = _folder_of_links() / digest
    if link.is_symlink() and link.readlink() != folder:
        link.unlink()
    if not link.is_symlink():
        link.symlink_to(folder)
    return link


@cache  # both ends of a link must be found again
def _folder_of_links() -> Path:
    try:
        return make_private(temporary_folder())
    except OSError:  # somebody else took the name
        return Path(tempfile.mkdtemp(prefix="d-"))


def last_words(path: Path) -> str:
    """Return the last line of a log."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return f"no log at {path}"
    return lines[-1] if lines else f"its log {path} is empty"
