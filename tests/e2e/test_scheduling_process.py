"""The command `dray scheduler` as a process: ready line, probes, standing by, errors."""

import asyncio
import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from clusters import PATIENCE, Cluster

from dray.api.features import KNOWN_GATES


def start(peer, name, *flags):
    """Start the command; returns the process, which says `ready` on its standard output."""
    command = [
        sys.executable,
        "-m",
        "dray",
        "scheduler",
        "--kubeconfig",
        str(peer.kubeconfig),
        "--name",
        name,
        *flags,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


async def line(process, pattern):
    """Wait for a line of output that matches."""
    while True:
        text = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE)
        assert text, f"the process ended with {process.wait()}"
        found = re.search(pattern, text)
        if found:
            return found


async def test_the_command_schedules_and_tells_its_numbers(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a")
        process = start(peer, cluster.scheduler_name, "--probe-port", "0")
        try:
            port = (await line(process, r"probes on port (\d+)"))[1]
            await line(process, "ready: scheduling pods")
            await cluster.pod("p", nodeSelector={"case": cluster.namespace})
            assert await cluster.bound("p") == "a"

            def read(path):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                    return answer.read().decode()

            assert await asyncio.to_thread(read, "/readyz") == "ok"

            async def counted():
                return "dray_scheduler_bound_total 1" in await asyncio.to_thread(read, "/metrics")

            await cluster.until(counted, "the binding is counted")
        finally:
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
            process.stdout.close()


async def test_a_standby_takes_over_when_the_leader_ends(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a")
        flags = ["--leader-namespace", cluster.namespace]
        first = start(peer, cluster.scheduler_name, *flags)
        await line(first, "ready")
        second = start(peer, cluster.scheduler_name, *flags)
        try:
            await line(second, "standing by")
            first.terminate()
            assert await asyncio.to_thread(first.wait, PATIENCE) == 0
            await line(second, "ready")
            await cluster.pod("p", nodeSelector={"case": cluster.namespace})
            assert await cluster.bound("p") == "a"
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
                process.stdout.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_standby_takes_over_within_fifteen_seconds_when_the_leader_is_lost(peer, how, capsys):
    async with Cluster(peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0")
        await cluster.claim("c", {"name": "r", "deviceClassName": await cluster.device_class()})
        flags = ["--leader-namespace", cluster.namespace]
        first = start(peer, cluster.scheduler_name, *flags)
        await line(first, "ready")
        second = start(peer, cluster.scheduler_name, *flags)
        try:
            await line(second, "standing by")
            began = time.monotonic()
            first.send_signal(how)
            await cluster.pod("p", claims=["c"])
            assert await cluster.bound("p") == "a"
            took = time.monotonic() - began
            with capsys.disabled():
                print(f"\nfailover after {how.name}: {took:.1f} s")
            assert 5 < took < 15, "the lease must have run out, and not for long"
            if how is signal.SIGSTOP:
                # It wakes up as a leader whose lease has run out: it writes nothing more, and ends.
                first.send_signal(signal.SIGCONT)
                await line(first, "error: the lease dray-scheduler-.* was lost")
                assert await asyncio.to_thread(first.wait, PATIENCE) == 1
        finally:
            for process in (first, second):
                process.kill()
                process.wait()
                process.stdout.close()


async def test_a_process_with_the_same_identity_goes_on_at_once(peer):
    async with Cluster(peer) as cluster:
        await cluster.node("a")
        flags = ["--leader-namespace", cluster.namespace, "--leader-identity", "only-one"]
        for name in ("p", "q"):
            process = start(peer, cluster.scheduler_name, *flags)
            try:
                await line(process, "ready")
                await cluster.pod(name, nodeSelector={"case": cluster.namespace})
                began = time.monotonic()
                assert await cluster.bound(name) == "a"
                assert time.monotonic() - began < 8, "it did not wait for the lease of its predecessor"
            finally:
                process.kill()
                process.wait()
                process.stdout.close()


def test_mistakes_are_answered_with_an_error_and_a_hint(tmp_path):
    command = [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        done.stderr.startswith("error: cannot read kubeconfig") and done.stderr.count("\n") == 2
    )  # and a hint
    done = subprocess.run(
        [*command, "--feature-gates", "Nope=true"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "there is no gate 'Nope'" in done.stderr
    assert all(gate in done.stderr for gate in KNOWN_GATES)
