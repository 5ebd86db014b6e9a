"""The fixture that spares unit tests their waiting, and the rule that they use it."""

from __future__ import annotations

import ast
import asyncio
import time
from pathlib import Path

import pytest

UNIT_TESTS = Path(__file__).parent


async def test_an_hour_passes_at_once_and_in_order(virtual_time: None) -> None:
    began, order = time.monotonic(), []

    async def note(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    start = asyncio.get_running_loop().time()
    await asyncio.gather(note(3600), note(0.5), note(60))
    assert order == [0.5, 60, 3600]
    assert asyncio.get_running_loop().time() - start >= 3600
    assert time.monotonic() - began < 60


async def test_a_thread_is_waited_for_in_real_time(virtual_time: None) -> None:
    async with asyncio.timeout(30):
        assert await asyncio.to_thread(sum, range(1_000_000)) == 499999500000


async def test_a_time_limit_ends_what_lasts_longer(virtual_time: None) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.Event().wait()


# --- the rule ---------------------------------------------------------------------------------

# Modules that wait in real time -> how often, and why: their peers are sockets, processes and threads, or the loop's own
# pace is what they measure. Elsewhere `virtual_time`, an event or `conditions.until` does it. The numbers only go down.
REAL_SLEEPS: dict[str, int] = {
    "client/test_client_hostile.py": 3,
    "client/test_client_wire.py": 1,
    "control/test_control_scheduling_expressions.py": 7,
    "control/test_guard_process.py": 1,
    "driver/test_driver_serving.py": 4,
    "driver/test_driver_sockets.py": 3,
    "drivers/test_network_driver.py": 1,
    "drivers/test_tpu_and_fpga_drivers.py": 1,
    "local/test_running_system.py": 2,
    "node/test_node_agent.py": 3,
    "node/test_node_claim_rules.py": 1,
    "node/test_node_isolation.py": 2,
    "node/test_node_plugins.py": 4,
    "node/test_node_records.py": 2,
    "node/test_node_server.py": 1,
    "server/test_connections.py": 1,
    "server/test_fast_http.py": 9,
    "server/test_local_users.py": 1,
    "server/test_node_agents.py": 2,
    "server/test_server_heartbeat.py": 6,
    "server/test_server_long_expressions.py": 3,
    "server/test_server_watch.py": 1,
    "server/test_server_webhooks.py": 2,
}


def sleeps(text: str) -> int:
    """Count the calls of sleep, other than sleep(0), in tests without the fixture."""
    tree = ast.parse(text)
    if any(isinstance(node, ast.Assign) and "virtual_time" in ast.unparse(node) for node in tree.body):
        return 0
    nodes = [node for node in tree.body if "virtual_time" not in ast.unparse(node)]
    return sum(
        isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("asyncio.sleep", "time.sleep", "sleep")
        and ast.unparse(call.args[0]) != "0"
        for node in nodes
        for call in ast.walk(node)
    )


def test_a_sleep_is_found_unless_its_time_is_virtual() -> None:
    sleeping = "async def test_a():\n    await asyncio.sleep(0)\n    await asyncio.sleep(1)\n"
    assert sleeps(sleeping) == 1
    assert sleeps('@pytest.mark.usefixtures("virtual_time")\n' + sleeping) == 0
    assert sleeps('pytestmark = pytest.mark.usefixtures("virtual_time")\n' + sleeping) == 0


def test_unit_tests_do_not_sleep() -> None:
    found = {
        path.relative_to(UNIT_TESTS).as_posix(): count
        for path in sorted(UNIT_TESTS.rglob("test_*.py"))
        if path.name != Path(__file__).name and (count := sleeps(path.read_text(encoding="utf-8")))
    }
    assert {name: count for name, count in found.items() if count > REAL_SLEEPS.get(name, 0)} == {}
    assert {name: count for name, count in REAL_SLEEPS.items() if count > found.get(name, 0)} == {}
