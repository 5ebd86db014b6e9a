"""Run a driver: everything around the vendor's class, put together.

`run` is for a process of its own (a DaemonSet pod, `dray driver run`); `serve` is
the same as a coroutine, for tests and for simulated nodes that host several
drivers.

Order at start: state, then `recover`, then the sockets, then slices. So the first
prepare finds a driver that knows its past, and the scheduler sees devices only
when somebody can prepare them. A driver that the node does not register, or does not
have any more, takes its slices away after `withdraw_seconds`: pods would be sent to
devices that nobody prepares.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import start_http_server

from dray.api.rpc import KUBELET_DIR
from dray.client import Client, ClientError
from dray.driver.api_access import ApiAccess
from dray.driver.contract import (
    AnnouncesChanges,
    AttachesToRunningPods,
    ChecksHost,
    Driver,
    DriverError,
    Pool,
    ReportsHealth,
    RunsBeside,
    UsesApi,
)
from dray.driver.files import ClaimFiles
from dray.driver.metrics import Metrics
from dray.driver.preparing import Preparer, Steps, call_driver, no_steps
from dray.driver.publishing import Publisher
from dray.driver.serving import HealthBoard, Serving, SocketPaths
from dray.driver.slices import attachable
from dray.driver.state import CorruptStateError, StateFile, read_boot_id
from dray.host.log_format import start_logging

log = logging.getLogger("dray.driver")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a driver finds its node. The defaults are kubelet's."""

    node_name: str = ""  # empty means: $NODE_NAME, else this host's name
    kubelet_dir: Path = Path(KUBELET_DIR)  # has plugins/ and plugins_registry/
    cdi_dir: Path = Path("/var/run/cdi")
    instance: str = ""  # set (to the pod's UID) for rolling updates: old and new run side by side
    device_metadata: bool = False  # tell containers about their devices in files (KEP 5304)
    rediscover_seconds: float = 60.0  # how often `discover` is called without being asked
    metrics_port: int | None = None  # serve /metrics on this port
    metrics_address: str = "127.0.0.1"  # of /metrics
    publishes: bool = True  # False: somebody else publishes the slices
    withdraw_seconds: float = 30.0  # unregistered for so long: the slices are deleted until the node has us

    def resolved_node_name(self) -> str:
        """Return the node's name."""
        return self.node_name or os.environ.get("NODE_NAME") or socket.gethostname().lower()

    def data_dir(self, driver: str) -> Path:
        """Return the driver's own directory."""
        return self.kubelet_dir / "plugins" / driver

    @property
    def registry_dir(self) -> Path:
        """Return the directory that the node watches for plugins."""
        return self.kubelet_dir / "plugins_registry"


class RunningDriver:
    """A driver that serves; made by `serving_driver`."""

    def __init__(self, driver: Driver, client: Client, settings: Settings, steps: Steps = no_steps) -> None:
        self.driver = driver
        self.settings = settings
        self.metrics = Metrics(driver.name)
        self.node_name = settings.resolved_node_name()
        api = ApiAccess(client)
        if isinstance(driver, UsesApi):
            driver.connect(client)
        data_dir = settings.data_dir(driver.name)
        data_dir.mkdir(parents=True, exist_ok=True)
        self._state = StateFile(data_dir / "dray-state.json", read_boot_id())
        files = ClaimFiles(driver.name, settings.cdi_dir, data_dir, settings.device_metadata)
        self.preparer = Preparer(
            driver,
            self._state,
            files,
            api,
            metrics=self.metrics,
            lock_path=data_dir / "serialize.lock" if settings.instance else None,
            steps=steps,
        )
        self.publisher = Publisher(api, driver.name, self.node_name, metrics=self.metrics)
        self._board = HealthBoard() if isinstance(driver, ReportsHealth) else None
        paths = SocketPaths(driver.name, data_dir, settings.registry_dir, settings.instance)
        self.serving = Serving(driver.name, paths, self.preparer, self._board)
        self._rediscover = asyncio.Event()

    async def start(self) -> None:
        """Read the state, clean up, open the sockets.

        Raises DriverError when another instance of the same name runs; its state is not touched then.
        """
        self.serving.reserve()
        try:
            await self._start()
        except BaseException:
            await self.serving.stop()
            raise

    async def _start(self) -> None:
        try:
            self._state.load()
        except CorruptStateError as error:
            log.error(
                "%s: %s. Claims that were prepared will be prepared again when the node asks.",
                self.driver.name,
                error,
            )
        await self.preparer.recover()
        await self.serving.start()
        if self.settings.metrics_port is not None:
            address, port = self.settings.metrics_address, self.settings.metrics_port
            start_http_server(port, address, self.metrics.registry)
            log.info("metrics on http://%s:%d/metrics", address, port)

    async def run(self) -> None:
        """Publish, watch the inventory and the health until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover())
            tasks.create_task(self.serving.keep_sockets())
            tasks.create_task(self._follow_registration())
            if self.settings.publishes:
                tasks.create_task(self.publisher.run())
            if self._board is not None:
                tasks.create_task(self._watch_health(self._board))
            if isinstance(self.driver, AnnouncesChanges):
                tasks.create_task(self._follow_changes(self.driver))
            if isinstance(self.driver, RunsBeside):
                tasks.create_task(self._run_beside(self.driver))

    async def _follow_registration(self) -> None:
        """Offer devices while the node can have them prepared."""
        was_away = False
        while True:
            since = self.serving.unregistered_since
            is_away = since is not None and time.monotonic() - since > self.settings.withdraw_seconds
            if is_away and not was_away:
                log.error(
                    "%s: not registered with the node for %.0f s; its devices are withdrawn until it is",
                    self.driver.name,
                    self.settings.withdraw_seconds,
                )
            (self.publisher.suspend if is_away else self.publisher.resume)()
            was_away = is_away
            await asyncio.sleep(min(1.0, self.settings.withdraw_seconds / 4))

    def rediscover(self) -> None:
        """Have `discover` called soon."""
        self._rediscover.set()

    async def _discover(self) -> None:
        while True:
            self._rediscover.clear()
            try:
                pools: Sequence[Pool] = list(await call_driver(self.driver.discover))
                if isinstance(self.driver, AttachesToRunningPods):
                    pools = attachable(pools)
                self.publisher.publish(pools)
            except Exception:
                # What was published last stays: devices do not vanish because a look at them failed.
                self.metrics.failed("discover")
                log.exception("%s: discover failed; the published devices stay as they are", self.driver.name)
            # Not asyncio.wait_for: in Python 3.11 it forgets a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.rediscover_seconds):
                    await self._rediscover.wait()

    async def _follow_changes(self, driver: AnnouncesChanges) -> None:
        while True:
            try:
                async for _ in driver.changes():
                    self.rediscover()
            except Exception:
                log.exception("%s: watching for changes failed; again in 5 s", self.driver.name)
            await asyncio.sleep(5.0)

    async def _run_beside(self, driver: RunsBeside) -> None:
        while True:
            try:
                await driver.run_beside()
            except Exception:
                self.metrics.failed("run_beside")
                log.exception("%s: its own work failed; again in 1 s", self.driver.name)
            await asyncio.sleep(1.0)

    async def _watch_health(self, board: HealthBoard) -> None:
        assert isinstance(self.driver, ReportsHealth)
        while True:
            try:
                async for devices in self.driver.health():
                    await board.post(devices, self.node_name)
            except Exception:
                # The node calls devices unknown when news stop, so silence is honest.
                self.metrics.failed("health")
                log.exception("%s: health watch failed; again in 5 s", self.driver.name)
            await asyncio.sleep(5.0)


@contextlib.asynccontextmanager
async def serving_driver(
    driver: Driver, client: Client, settings: Settings, *, steps: Steps = no_steps
) -> AsyncIterator[RunningDriver]:
    """Serve a driver for the length of a `with` block."""
    running = RunningDriver(driver, client, settings, steps)
    await running.start()
    loop = asyncio.create_task(running.run())
    try:
        yield running
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await running.serving.stop()


async def serve(driver: Driver, client: Client, settings: Settings, *, steps: Steps = no_steps) -> None:
    """Serve a driver until cancelled."""
    running = RunningDriver(driver, client, settings, steps)
    await running.start()
    try:
        await running.run()
    finally:
        await running.serving.stop()


def run(
    driver: Driver,
    *,
    kubeconfig: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    steps: Steps = no_steps,
) -> int:
    """Run a driver as this process until SIGTERM or SIGINT; return the exit code.

    Without a kubeconfig, $KUBECONFIG or the pod's service account is used.
    """
    return run_all([driver], kubeconfig=kubeconfig, settings=settings, steps=steps)


def run_all(
    drivers: Sequence[Driver],
    *,
    kubeconfig: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    steps: Steps = no_steps,
) -> int:
    """Run several drivers as one process; all end together."""
    start_logging(logging.INFO)  # unless whoever calls has begun to log
    chosen = settings or Settings()
    names = ", ".join(driver.name for driver in drivers)

    async def serve_all(client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            for driver in drivers:
                tasks.create_task(serve(driver, client, chosen, steps=steps))

    async def main() -> None:
        async with Client.connect(kubeconfig, user_agent=f"{drivers[0].name}/dray") as client:
            task = asyncio.create_task(serve_all(client))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await task

    code = 0
    try:
        for driver in drivers:
            if isinstance(driver, ChecksHost):
                driver.check_host()
        asyncio.run(main())
    except* (DriverError, ClientError, OSError) as errors:
        for error in errors.exceptions:
            log.error("%s: %s", names, error)
        code = 1
    return code
