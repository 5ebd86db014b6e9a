"""The pods of this node: feeds each pod's machine with events and carries out its instructions.

Nothing here decides. An instruction becomes a task; what comes of it is the next
event. Per pod, events are handled one at a time in the order in which they arrive.

Status writes are joined: while one is under way, later changes wait and are written
together, each pod for itself. So a burst of changes costs two writes, and the
last state always arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import logging
import shutil
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dray.api.cdi import NEEDS_POD_NETWORK, CdiError, ContainerEdits
from dray.api.media_types import MERGE_PATCH
from dray.api.podspec import LifecycleHandler, RunContainer, RunPod
from dray.api.times import format_time, parse_time
from dray.api.well_known import OWN_NETWORK_ANNOTATION, TERMINAL_PHASES
from dray.client import Client, ClientError, Conflict, Invalid, NotFound
from dray.client.resources import EVENTS, PODS
from dray.devices import DeviceId
from dray.node import machine as m
from dray.node import pod_events as s
from dray.node.environment import PodEnvironment
from dray.node.health import ReportedHealth
from dray.node.preparing import ClaimKeeper, ClaimsUnusable, container_references
from dray.node.probes import Prober
from dray.node.runtime import ContainerId, FoundContainer, Launch, Runtime, StartError
from dray.node.status import pod_status

log = logging.getLogger("dray.node")

WARN_BEFORE_DEADLINE = (600, 60)  # seconds

_JOIN_SECONDS = 0.01


class Edits(Protocol):
    """What CDI says of devices."""

    def resolve(self, names: Sequence[str]) -> ContainerEdits:
        """Return the edits of the named devices together; raise CdiError for one that is not there."""
        ...


class Health(Protocol):
    """What drivers report of their devices."""

    def of(self, key: DeviceId) -> ReportedHealth | None:
        """Return a device's health now; None when its driver does not report health."""
        ...


@dataclass(slots=True)
class _Pod:
    machine: m.PodMachine
    timers: dict[s.TimerFired, asyncio.TimerHandle] = field(default_factory=dict)
    probes: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    starting: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    reporter: asyncio.Task[None] | None = None
    is_dirty: bool = False
    last_sent: bytes = b""  # a digest: a thousand statuses would be megabytes
    is_gone: bool = False  # from the API server
    notes: dict[str, float] = field(default_factory=dict)  # text -> when, to say the same thing once
    overs: dict[str, asyncio.Event] = field(default_factory=dict)  # container -> set when its run has ended


class PodRunner:
    """Runs the pods that are bound to this node."""

    def __init__(
        self,
        client: Client,
        node_name: str,
        node_ip: str,
        root: Path,
        *,
        keeper: ClaimKeeper,
        cdi: Edits,
        health: Health,
        environment: PodEnvironment,
        backoff: m.Backoff | None = None,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._node_ip = node_ip
        self._log_root = root / "logs"
        self._keeper = keeper
        self._cdi = cdi
        self._health = health
        self._environment = environment
        self._backoff = backoff
        self._prober = Prober("127.0.0.1")
        self._pods: dict[str, _Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._found: dict[str, list[s.Found]] = {}
        self.runtime: Runtime  # set by `adopt`

    # --- seeing pods ------------------------------------------------------------

    async def adopt(self, runtime: Runtime) -> None:
        """Take the runtime and what it still runs; before the first pod is seen."""
        self.runtime = runtime
        for container in await runtime.found():
            self._found.setdefault(container.id.pod_uid, []).append(_found(container))

    def see(self, old: RunPod | None, new: RunPod | None) -> None:
        """Take a change of a pod, as an informer tells it."""
        if new is not None:
            known = self._pods.get(new.metadata.uid)
            if known is None:
                self._begin(new)
            else:
                before, known.machine.pod = known.machine.pod, new
                if before.spec.resource_claims != new.spec.resource_claims:
                    self.feed(new.metadata.uid, s.ClaimsChanged())
                if new.metadata.deletion_timestamp is not None and (
                    old is None
                    or old.metadata.deletion_timestamp is None
                    or old.metadata.deletion_grace_period_seconds
                    != new.metadata.deletion_grace_period_seconds
                ):
                    self.feed(new.metadata.uid, s.StopRequested(float(new.grace_seconds)))
        elif old is not None:
            self._vanished(old)

    def _begin(self, pod: RunPod) -> None:
        uid = pod.metadata.uid
        machine = m.PodMachine.of(pod, self._backoff)
        machine.is_deleted = pod.metadata.deletion_timestamp is not None
        self._pods[uid] = _Pod(machine)
        found = self._found.pop(uid, [])
        if pod.status.phase in TERMINAL_PHASES:
            machine.stage = m.Stage.FINISHED
            if machine.is_deleted:
                self.feed(uid, s.StopRequested(0.0))
            return
        self._begin_deadline(pod)
        self.feed(uid, s.Restored(found))

    def _begin_deadline(self, pod: RunPod) -> None:
        """Set the end of the pod's time, and warnings before it; the time counts since the pod's first start."""
        deadline, started = pod.spec.active_deadline_seconds, pod.status.start_time
        if deadline is None:
            return
        spent = max(0.0, time.time() - parse_time(started).timestamp()) if started else 0.0
        uid, left = pod.metadata.uid, max(0.0, float(deadline) - spent)
        self._set_timer(uid, s.TimerFired(s.Timer.DEADLINE), left)
        loop, timers = asyncio.get_running_loop(), self._pods[uid].timers
        for seconds in WARN_BEFORE_DEADLINE:
            if left > seconds:
                timer = loop.call_later(left - seconds, self._warn_of_deadline, uid, seconds)
                timers[s.TimerFired(s.Timer.DEADLINE, f"{seconds} s before")] = timer

    def _warn_of_deadline(self, uid: str, seconds: int) -> None:
        """Tell that the pod's time is nearly over: by an event, and in the logs of its containers."""
        known = self._pods.get(uid)
        if known is None or known.machine.stage == m.Stage.FINISHED:
            return
        grace = known.machine.grace_seconds
        message = (
            f"the time limit ends this job in {seconds // 60} min: SIGTERM then, SIGKILL {grace:g} s later"
        )
        self._note(known, "DeadlineApproaching", message, True)
        self.runtime.write_log(uid, f"dray: {message}")

    def _vanished(self, pod: RunPod) -> None:
        known = self._pods.get(pod.metadata.uid)
        if known is None:
            return
        known.is_gone = True
        if known.machine.stage == m.Stage.FINISHED:
            self._spawn(self._forget(pod.metadata.uid))
        else:
            # Deleted by force: the containers still get their grace, there is just nobody to tell.
            self.feed(pod.metadata.uid, s.StopRequested(float(pod.grace_seconds)))

    async def stop_orphans(self) -> None:
        """Stop containers of pods that went away while no agent was here; after the first list of pods."""
        for uid, containers in list(self._found.items()):
            for container in containers:
                if container.exit_code is None:
                    await self.runtime.stop(ContainerId(uid, container.name, container.attempt), 5.0)
            await self._clean_up(uid)
            log.info("ended containers of pod %s, which is gone", uid)
        self._found.clear()

    def active_uids(self) -> set[str]:
        """Return the pods that may hold claims."""
        return {uid for uid, known in self._pods.items() if known.machine.stage != m.Stage.FINISHED}

    def machines(self) -> list[m.PodMachine]:
        """Return all pods here."""
        return [known.machine for known in self._pods.values()]

    def find(self, namespace: str, name: str) -> m.PodMachine | None:
        """Return a pod by name; of two incarnations the one that is not over."""
        found = [
            known.machine
            for known in self._pods.values()
            if (known.machine.pod.metadata.namespace, known.machine.pod.metadata.name) == (namespace, name)
        ]
        return min(found, key=lambda machine: machine.stage == m.Stage.FINISHED, default=None)

    @property
    def is_idle(self) -> bool:
        """Return whether there is no pod, and nothing left to do for one."""
        return not self._pods and not self._tasks

    # --- events and instructions ------------------------------------------------

    def feed(self, uid: str, event: s.Event) -> None:
        """Give a pod's machine an event and carry out what it says."""
        known = self._pods.get(uid)
        if known is None:
            return
        for instruction in known.machine.handle(event, time.time()):
            self._carry_out(uid, known, instruction)

    def _carry_out(self, uid: str, known: _Pod, instruction: s.Instruction) -> None:
        match instruction:
            case s.Report():
                self._report(uid, known)
            case s.StartContainer(container, attempt):
                self._spawn(self._start(uid, known, container, attempt))
            case s.StopContainer(container, attempt, grace, is_hastened):
                self._cancel_probe(known, container.name)
                self._spawn(self._stop(uid, container, attempt, grace, is_hastened))
            case s.Probe(container, attempt):
                self._probe(uid, known, container, attempt)
            case s.PrepareClaims(is_running):
                self._spawn(self._prepare(uid, known, is_running=is_running))
            case s.ReleaseClaims():
                self._spawn(self._release(uid))
            case s.SetTimer(timer, seconds, container_name):
                self._set_timer(uid, s.TimerFired(timer, container_name), seconds)
            case s.RecordEvent(reason, message, is_warning):
                self._note(known, reason, message, is_warning)
            case s.Remove():
                self._spawn(self._remove(uid, known))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the agent failed", exc_info=task.exception())

    def _set_timer(self, uid: str, fired: s.TimerFired, seconds: float) -> None:
        timers = self._pods[uid].timers
        if fired in timers:
            timers[fired].cancel()
        timers[fired] = asyncio.get_running_loop().call_later(seconds, self.feed, uid, fired)

    # --- claims -----------------------------------------------------------------

    async def _prepare(self, uid: str, known: _Pod, *, is_running: bool) -> None:
        pod, generation = known.machine.pod, 0
        try:
            # Also when the agent has just started: the pod may have lost a claim while nobody was here.
            await self._keeper.release_unlisted(pod)
            generation = pod.metadata.generation
            await self._keeper.prepare(pod, is_running=is_running)
        except ClaimsUnusable as error:
            log.log(logging.INFO if error.is_waiting else logging.WARNING, "pod %s: %s", pod.key, error)
            self.feed(uid, s.PrepareFailed(str(error), is_waiting=error.is_waiting, generation=generation))
        else:
            self.feed(uid, s.ClaimsPrepared(generation))

    async def _release(self, uid: str) -> None:
        try:
            await self._keeper.release(uid)
        except ClaimsUnusable as error:
            log.warning("pod %s: claims not released yet: %s", uid, error)
            self.feed(uid, s.ReleaseFailed(str(error)))
        else:
            self.feed(uid, s.ClaimsReleased())

    def retry_prepare(self) -> None:
        """Try waiting pods again at once: a driver has registered, and some may have waited for it."""
        for uid, known in list(self._pods.items()):
            if known.machine.prepare_failures:
                self.feed(uid, s.TimerFired(s.Timer.PREPARE))

    # --- containers ---------------------------------------------------------------

    def kept_attempt(self, machine: m.PodMachine, container: str) -> int | None:
        """Return the last run that has a log, of a pod that ended before this agent started; None for other pods."""
        state = machine.find(container)
        if machine.stage != m.Stage.FINISHED or state is None or state.started_at or state.ended is not None:
            return None
        folder = self.log_path(machine.pod, container, 0).parent
        return max((int(path.stem) for path in folder.glob("*.log") if path.stem.isdecimal()), default=None)

    def log_path(self, pod: RunPod, container: str, attempt: int) -> Path:
        """Return where the log of one run is."""
        meta = pod.metadata
        return self._log_root / f"{meta.namespace}_{meta.name}_{meta.uid}" / container / f"{attempt}.log"

    def over_event(self, uid: str, container: str) -> asyncio.Event | None:
        """Return what is set when the container's current run has ended."""
        known = self._pods.get(uid)
        return known.overs.get(container) if known else None

    async def _start(self, uid: str, known: _Pod, container: RunContainer, attempt: int) -> None:
        pod = known.machine.pod
        known.overs[container.name] = asyncio.Event()
        try:
            launch = await self._launch(pod, container, attempt)
            await self.runtime.start(launch)
        except StartError as error:
            self.feed(uid, s.StartFailed(container.name, attempt, error.reason, str(error)))
        except CdiError as error:
            self.feed(uid, s.StartFailed(container.name, attempt, "CreateContainerError", str(error)))
        except (ClientError, OSError) as error:
            self.feed(uid, s.StartFailed(container.name, attempt, "CreateContainerConfigError", str(error)))
        else:
            self.feed(uid, s.Started(container.name, attempt))
            if container.lifecycle is not None and container.lifecycle.post_start is not None:
                await self._hook(uid, container, attempt, container.lifecycle.post_start, 30.0)

    async def _launch(self, pod: RunPod, container: RunContainer, attempt: int) -> Launch:
        values = await self._environment.environment(pod, container)
        return Launch(
            id=ContainerId(pod.metadata.uid, container.name, attempt),
            pod=pod,
            container=container,
            command=self._environment.command_line(container, values),
            env=[f"{name}={value}" for name, value in values.items()],
            mounts=await self._environment.mounts(pod, container),
            edits=self._cdi.resolve(self._keeper.cdi_ids(pod, container.name)),
            log_path=self.log_path(pod, container.name, attempt),
            needs_pod_network=(pod.metadata.annotations or {}).get(OWN_NETWORK_ANNOTATION) == "true"
            or any(
                NEEDS_POD_NETWORK in hook.env
                for hook in self._cdi.resolve(self._keeper.all_cdi_ids(pod)).hooks
            ),
        )

    async def _stop(
        self, uid: str, container: RunContainer, attempt: int, grace: float, is_hastened: bool
    ) -> None:
        if is_hastened:
            # Its hook has run, or runs now: who asks again wants the end, not the hook once more.
            await self.runtime.stop(ContainerId(uid, container.name, attempt), grace)
            return
        began = time.monotonic()
        if container.lifecycle is not None and container.lifecycle.pre_stop is not None and grace > 0:
            await self._hook(uid, container, attempt, container.lifecycle.pre_stop, grace)
        # The hook's time counts, but SIGTERM always gets two seconds to work.
        left = max(grace - (time.monotonic() - began), 2.0) if grace > 0 else 0.0
        await self.runtime.stop(ContainerId(uid, container.name, attempt), left)

    async def _hook(
        self, uid: str, container: RunContainer, attempt: int, handler: LifecycleHandler, seconds: float
    ) -> None:
        with contextlib.suppress(TimeoutError, StartError, OSError):
            if handler.exec is not None:
                await self.runtime.run_in(
                    ContainerId(uid, container.name, attempt), handler.exec.command, seconds
                )
            elif handler.sleep is not None:
                await asyncio.sleep(min(float(handler.sleep.get("seconds", 0)), seconds))
            elif handler.http_get is not None:
                await asyncio.wait_for(self._prober.get(container, handler.http_get), seconds)

    def on_exit(self, id: ContainerId, exit_code: int, reason: str) -> None:
        """Take the end of a container; called by the runtime."""
        known = self._pods.get(id.pod_uid)
        if known is None and id.pod_uid in self._found:
            # It ended between our finding it and our seeing its pod.
            self._found[id.pod_uid] = [
                dataclasses.replace(found, exit_code=exit_code, finished_at=time.time())
                if (found.name, found.attempt) == (id.name, id.attempt)
                else found
                for found in self._found[id.pod_uid]
            ]
        if known is not None:
            self._cancel_probe(known, id.name)
            over = known.overs.get(id.name)
            if over is not None:
                over.set()
        self.feed(id.pod_uid, s.Exited(id.name, id.attempt, exit_code, reason))

    def _probe(self, uid: str, known: _Pod, container: RunContainer, attempt: int) -> None:
        if not (container.startup_probe or container.liveness_probe or container.readiness_probe):
            return

        async def run_in(command: Sequence[str], seconds: float) -> tuple[int, bytes]:
            try:
                result = await self.runtime.run_in(
                    ContainerId(uid, container.name, attempt), command, seconds
                )
            except StartError as error:
                return 126, str(error).encode()
            return result.exit_code, result.output

        def emit(kind: str, is_well: bool, message: str) -> None:
            self.feed(uid, s.Probed(container.name, attempt, kind, is_well, message))

        self._cancel_probe(known, container.name)
        known.probes[container.name] = self._spawn(self._prober.watch(container, run_in, emit))

    @staticmethod
    def _cancel_probe(known: _Pod, container: str) -> None:
        task = known.probes.pop(container, None)
        if task is not None:
            task.cancel()

    # --- telling the API server -------------------------------------------------

    def report_devices(self, changed: set[DeviceId]) -> None:
        """Write the status of the pods that hold a device whose health changed."""
        for info in self._keeper.records.infos.values():
            devices = {
                DeviceId(driver, device.pool, device.device)
                for driver, held in info.devices_by_driver.items()
                for device in held
            }
            if devices & changed:
                for uid in info.pod_uids:
                    if uid in self._pods:
                        self._report(uid, self._pods[uid])

    def _report(self, uid: str, known: _Pod) -> None:
        known.is_dirty = True
        if known.reporter is None or known.reporter.done():
            known.reporter = self._spawn(self._write_status(uid, known))

    async def _write_status(self, uid: str, known: _Pod) -> None:
        pause = 0.1
        while known.is_dirty and not known.is_gone:
            # Most changes come in bursts (started, then ready): wait for the second before writing the first.
            await asyncio.sleep(_JOIN_SECONDS)
            known.is_dirty = False
            pod = known.machine.pod
            status = pod_status(
                known.machine,
                time.time(),
                self._node_ip,
                runtime=self.runtime.name,
                known_conditions=pod.status.conditions,
                health_of=functools.partial(self._health_of, pod),
            )
            body = msgspec.json.encode({"metadata": {"uid": uid}, "status": status})
            digest = hashlib.blake2b(body, digest_size=8).digest()
            if digest == known.last_sent:
                continue
            try:
                await self._client.call(
                    "PATCH",
                    PODS.path(pod.metadata.namespace, pod.metadata.name, "status"),
                    body,
                    view=None,
                    content_type=MERGE_PATCH,
                )
                known.last_sent = digest
                pause = 0.1
            except NotFound:
                return
            except (Conflict, Invalid) as error:
                # Another pod of that name, or a status that the server will never take.
                log.warning("pod %s: status refused: %s", pod.key, error)
            except ClientError as error:
                log.warning("pod %s: status not written: %s; again in %.1f s", pod.key, error, pause)
                known.is_dirty = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)

    def _health_of(self, pod: RunPod, container: str) -> list[dict[str, Any]]:
        """Return `allocatedResourcesStatus`: one entry per claim reference, with its devices' health."""
        spec = next((c for c in pod.spec.containers if c.name == container), None)
        if spec is None or not spec.resources.claims:
            return []
        entries = []
        references = container_references(pod, container)
        for used, (key, request) in zip(spec.resources.claims, references, strict=False):
            resources = []
            for driver, device in self._keeper.records.devices_for(key, request):
                health = self._health.of(DeviceId(driver, device.pool, device.device))
                if health is None:
                    continue
                name = (
                    device.cdi_device_ids[0]
                    if device.cdi_device_ids
                    else f"{driver}/{device.pool}/{device.device}"
                )
                entry = {"resourceID": name, "health": health.health}
                if health.message:
                    entry["message"] = health.message
                resources.append(entry)
            if resources:
                full = f"claim:{used.name}/{used.request}" if used.request else f"claim:{used.name}"
                entries.append({"name": full, "resources": resources})
        return entries

    def _note(self, known: _Pod, reason: str, message: str, is_warning: bool) -> None:
        now = time.time()
        if now - known.notes.get(message, 0.0) < 30.0:
            return
        known.notes[message] = now
        self._spawn(self._post_event(known.machine.pod, reason, message, is_warning, now))

    async def _post_event(self, pod: RunPod, reason: str, message: str, is_warning: bool, now: float) -> None:
        meta = pod.metadata
        event = {
            "metadata": {"generateName": f"{meta.name[:50]}.", "namespace": meta.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": meta.namespace,
                "name": meta.name,
                "uid": meta.uid,
            },
            "reason": reason,
            "message": message[:1024],
            "type": "Warning" if is_warning else "Normal",
            "source": {"component": "dray-node", "host": self._node_name},
            "firstTimestamp": format_time(now),
            "lastTimestamp": format_time(now),
            "count": 1,
        }
        with contextlib.suppress(ClientError):  # nothing depends on an event
            await self._client.create(EVENTS, event, meta.namespace)

    async def _remove(self, uid: str, known: _Pod) -> None:
        """Take a deleted pod from the API server, after its last status."""
        if known.reporter is not None:
            await asyncio.gather(known.reporter, return_exceptions=True)
        pod = known.machine.pod
        pause = 0.1
        while not known.is_gone:
            try:
                await self._client.delete(
                    PODS, pod.metadata.name, pod.metadata.namespace, uid=uid, grace_seconds=0
                )
                break
            except (NotFound, Conflict):
                break
            except ClientError as error:
                log.warning("pod %s: not removed: %s; again in %.1f s", pod.key, error, pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
        if known.is_gone or uid not in self._pods:
            await self._forget(uid)

    async def _forget(self, uid: str) -> None:
        known = self._pods.pop(uid, None)
        if known is None:
            return
        for timer in known.timers.values():
            timer.cancel()
        for task in known.probes.values():
            task.cancel()
        await self._clean_up(uid)
        meta = known.machine.pod.metadata
        shutil.rmtree(self._log_root / f"{meta.namespace}_{meta.name}_{meta.uid}", ignore_errors=True)

    async def _clean_up(self, uid: str) -> None:
        await self.runtime.forget(uid)
        self._environment.forget(uid)

    async def close(self) -> None:
        """Stop all tasks; containers go on."""
        for known in self._pods.values():
            for timer in known.timers.values():
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._prober.close()
        await self.runtime.close()


def _found(container: FoundContainer) -> s.Found:
    return s.Found(
        container.id.name,
        container.id.attempt,
        container.started_at,
        container.exit_code,
        container.finished_at,
    )
