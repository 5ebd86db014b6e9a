"""The hook script and the driver that answers it; what a driver's pod must have."""

import asyncio
import json
import os
import time

import pytest
from node_builders import eventually
from sysfs_trees import write

from dray.driver import DriverError
from dray.drivers import container_hook
from dray.drivers.container_hook import HookServer, PodView, check_pod


class Recorder:
    """Acts on hooks by writing them down; `fails` is raised instead."""

    def __init__(self):
        self.calls = []
        self.fails = None

    def __call__(self, key, state):
        self.calls.append((key, state.pid, state.id))
        if self.fails is not None:
            raise self.fails


async def run_script(hook, state=b'{"pid": 7, "id": "box", "bundle": "/b"}'):
    """Run a hook as a container runtime does; returns the exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *hook.args, executable=hook.path, env=dict(entry.split("=", 1) for entry in hook.env),
        stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate(state)
    return process.returncode, errors.decode()


@pytest.fixture
async def served(tmp_path):
    recorder = Recorder()
    server = HookServer(tmp_path / "hooks", recorder)
    task = asyncio.create_task(server.run())
    await eventually((tmp_path / "hooks/wake").exists)
    yield recorder, server
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def files(server):
    return sorted(path.name for path in server._folder.iterdir())


async def test_the_driver_acts_while_the_hook_waits(served):
    recorder, server = served
    answers = await asyncio.gather(*(run_script(server.hook(f"claim-{number}")) for number in range(8)))
    assert answers == [(0, "")] * 8
    assert sorted(recorder.calls) == [(f"claim-{number}", 7, "box") for number in range(8)]
    assert files(server) == ["hook.sh", "wake"]


async def test_what_went_wrong_is_told_to_the_runtime(served):
    recorder, server = served
    recorder.fails = DriverError("the interface is gone")
    assert await run_script(server.hook("a")) == (1, "the interface is gone\n")
    recorder.fails = ZeroDivisionError("oops")
    assert await run_script(server.hook("a")) == (1, "ZeroDivisionError: oops\n")


@pytest.mark.parametrize(
    "state", [b"", b"{", b"[]", b'{"pid": "x"}', b" " * (container_hook.MAX_STATE_BYTES + 10)]
)
async def test_a_damaged_state_is_refused(served, state):
    recorder, server = served
    code, message = await run_script(server.hook("a"), state)
    assert (code, recorder.calls) == (1, [])
    assert "the container's state cannot be read" in message


async def test_without_a_driver_the_hook_gives_up_and_says_so(tmp_path):
    server = HookServer(tmp_path / "hooks", Recorder())
    server.install()
    script = tmp_path / "hooks/hook.sh"
    script.write_text(script.read_text().replace("-gt 1000", "-gt 3"))
    code, message = await run_script(server.hook("a"))
    assert code == 1
    assert "does its pod run on this node?" in message
    assert files(server) == ["hook.sh", "wake"]


def test_a_hook_that_came_before_the_driver_is_answered_and_old_files_go(tmp_path):
    recorder = Recorder()
    server = HookServer(tmp_path, recorder)
    server.install()
    write(tmp_path / "late.9.state", json.dumps({"pid": 1}))
    write(tmp_path / "dead.8.answer", "")
    old = time.time() - 1000
    os.utime(tmp_path / "dead.8.answer", (old, old))
    server.answer_all()
    assert recorder.calls == [("late", 1, "")]
    assert files(server) == ["hook.sh", "late.9.answer", "wake"]


# --- what a pod must have -------------------------------------------------------------------------


@pytest.fixture
def pod(tmp_path):
    """A /proc as a driver with every right sees it."""
    write(tmp_path / "self/status", "Name:\tx\nCapEff:\t0000000000281000\n")
    for process, kind in (("1", "mnt"), ("self", "mnt"), ("1", "net")):
        write(tmp_path / process / "ns" / kind, "")
    (tmp_path / "self/ns/net").hardlink_to(tmp_path / "1/ns/net")
    write(tmp_path / "1/root/bin/sh", "")
    return PodView(tmp_path, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


NEEDED = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE")


def check(view):
    check_pod("network", NEEDED, view, host_network=True)


def test_a_pod_with_everything_may_start_and_a_process_on_the_host_may_always(pod, tmp_path):
    check(pod)
    check(PodView(tmp_path / "nothing", {}))


def test_missing_capabilities_are_named(pod):
    write(pod.proc / "self/status", "CapEff:\t0000000000001000\n")
    with pytest.raises(DriverError, match="lacks CAP_SYS_ADMIN, CAP_SYS_PTRACE; add them"):
        check(pod)


def test_a_pod_without_the_hosts_processes_is_refused(pod):
    (pod.proc / "self/ns/mnt").unlink()
    (pod.proc / "self/ns/mnt").hardlink_to(pod.proc / "1/ns/mnt")
    with pytest.raises(DriverError, match="set hostPID: true"):
        check(pod)


def test_a_pod_without_the_hosts_network_is_refused(pod):
    (pod.proc / "self/ns/net").unlink()
    write(pod.proc / "self/ns/net", "")
    with pytest.raises(DriverError, match="set hostNetwork: true"):
        check(pod)


def test_a_node_without_a_shell_is_refused(pod):
    (pod.proc / "1/root/bin/sh").unlink()
    with pytest.raises(DriverError, match="this node has no /bin/sh"):
        check(pod)


def test_a_node_whose_first_process_is_hidden_is_not_refused(pod, monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(container_hook, "_same", refuse)
    check(pod)
    assert "process 1 cannot be looked at" in caplog.text
