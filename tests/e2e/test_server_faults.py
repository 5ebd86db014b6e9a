"""What a machine can do to a server: a full disk, a disk that fails, no file descriptors, very many watchers and revisions.

Nothing that was acknowledged may be lost, the server must say that it is not ready while it cannot
write, and it must come back by itself.
"""

import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from attack.servers import Server, resident_bytes
from attack.wire import ADMIN, HOST, Request, ask, client_tls, json_request

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
TOKEN = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "s")
    made.start()
    yield made
    made.stop()
    assert "Traceback" not in made.log.read_text(errors="replace")


async def write(server, name, size=1_000):
    body = {"metadata": {"name": name}, "data": {"a": "x" * size}}
    return await ask(server.port, json_request("POST", CONFIG_MAPS, body), client_tls(), 30)


async def names(server):
    answer = await ask(server.port, Request("GET", CONFIG_MAPS), client_tls(), 60)
    assert answer.status == 200, answer.message()
    return {item["metadata"]["name"] for item in json.loads(answer.body)["items"]}


async def status_of(server, path):
    return (await ask(server.port, Request("GET", path), client_tls(), 30)).status


async def until(check, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < deadline, "it did not come back by itself"
        await asyncio.sleep(0.2)


async def fill_and_recover(server, free):
    """Write until writing fails, check what is said meanwhile, make room, and check that all is well again."""
    acknowledged, refused = set(), 0
    for number in range(400):
        answer = await write(server, f"w{number}", 50_000)
        if answer.status == 201:
            acknowledged.add(f"w{number}")
        else:
            assert answer.status >= 500, answer.message()
            assert "could not be handled" not in answer.message(), "the reason is known, so it is told"
            refused += 1
            if refused >= 3:
                break
    assert refused >= 3, "the disk was not full"
    assert not server.death()
    assert await status_of(server, "/readyz") != 200, "a server that cannot write is not ready"
    assert acknowledged - await names(server) - {"kube-root-ca.crt"} == set()
    free()

    async def writes_again():
        return (await write(server, f"again{time.monotonic_ns()}")).status == 201

    await until(writes_again)
    await until(lambda: _is_ready(server))
    server.kill()
    server.start()
    assert acknowledged - await names(server) == set(), "acknowledged writes are gone"


async def test_a_disk_that_fails_costs_no_acknowledged_write(server):
    # A limit on the size of files makes writes fail as a broken disk does (for SQLite: an I/O error, not a full disk).
    for number in range(20):
        assert (await write(server, f"before{number}")).status == 201
    size = max(path.stat().st_size for path in server.data.iterdir() if path.is_file())
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 200_000, resource.RLIM_INFINITY))

    def free():
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    await fill_and_recover(server, free)


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs root, to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", place], check=False)


@pytest.mark.root
async def test_a_full_disk_costs_no_acknowledged_write(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 30_000_000)
    server = Server(small_disk / "s")
    server.start()
    try:
        await fill_and_recover(server, ballast.unlink)
        assert "Traceback" not in server.log.read_text(errors="replace")
    finally:
        server.stop()


async def test_a_server_without_file_descriptors_serves_again_when_there_are_some(server):
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (128, hard))
    before = Path(f"/proc/{server.pid}/stat").read_text().split()[13:15]
    opened = []
    for _ in range(300):
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                opened.append((await asyncio.open_connection(HOST, server.port))[1])
    await asyncio.sleep(3)
    after = Path(f"/proc/{server.pid}/stat").read_text().split()[13:15]
    spent = (sum(map(int, after)) - sum(map(int, before))) / os.sysconf("SC_CLK_TCK")
    for writer in opened:
        writer.transport.abort()
    assert not server.death()
    await until(lambda: _is_ready(server))
    assert spent < 3.0, "connections that cannot be accepted were tried again without a pause"
    assert server.log.stat().st_size < 200_000, "every connection that could not be accepted was logged"
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))


async def _is_ready(server):
    return await status_of(server, "/readyz") == 200


# --- numbers -------------------------------------------------------------------------------------


async def watch(session, url, seen, number):
    async with session.get(
        f"{url}{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Dnews", headers=TOKEN
    ) as answer:
        async for _ in answer.content:
            seen.add(number)
            return


async def many_watchers(server, count):
    """Open watches, write once, and wait until all have seen it."""
    seen = set()
    connector = aiohttp.TCPConnector(ssl=False, limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        url = f"https://{HOST}:{server.port}"
        watchers = []
        for start in range(0, count, 100):
            watchers += [
                asyncio.create_task(watch(session, url, seen, number))
                for number in range(start, min(count, start + 100))
            ]
            await asyncio.sleep(0.2)
        deadline = time.monotonic() + 120
        while len(connector._acquired) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        await asyncio.sleep(2)
        began = time.monotonic()
        assert (await write(server, "news")).status == 201
        async with asyncio.timeout(120):
            await asyncio.gather(*watchers)
    assert len(seen) == count
    return time.monotonic() - began


async def test_two_hundred_watchers_all_see_a_write(server):
    await many_watchers(server, 200)


@pytest.mark.heavy
async def test_three_thousand_watchers_all_see_a_write_and_leave_no_memory_behind(server):
    resource.setrlimit(resource.RLIMIT_NOFILE, (8_192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    resource.prlimit(
        server.pid, resource.RLIMIT_NOFILE, (8_192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    await many_watchers(server, 200)
    await asyncio.sleep(2)
    before = resident_bytes(server.pid)
    took = await many_watchers_of_other_name(server, 3_000)
    await asyncio.sleep(3)
    print(
        f"3,000 watchers saw a write after {took:.1f} s; {(resident_bytes(server.pid) - before) / 1e6:.0f} MB stayed"
    )
    assert await status_of(server, "/readyz") == 200


async def many_watchers_of_other_name(server, count):
    await ask(server.port, Request("DELETE", f"{CONFIG_MAPS}/news"), client_tls(), 30)
    return await many_watchers(server, count)


async def send_many(server, requests, connections=8):
    """Send prepared requests over a few connections; all must succeed."""
    from attack.wire import Connection

    waiting, failed = iter(requests), []

    def on_answer(request, answer):
        if not 200 <= answer.status < 300:
            failed.append((request.target, answer.status, answer.message()))

    await asyncio.gather(
        *(
            Connection(lambda: next(waiting, None), on_answer, 4).run(server.port, client_tls())
            for _ in range(connections)
        )
    )
    assert failed[:3] == []


async def restart_with(server, n_claims):
    claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}
    made = (
        json_request("POST", claims, {"metadata": {"name": f"c{number}"}, "spec": spec})
        for number in range(n_claims)
    )
    began = time.monotonic()
    await send_many(server, made)
    written = time.monotonic() - began
    server.kill()
    began = time.monotonic()
    server.start()
    restarted = time.monotonic() - began
    answer = await ask(server.port, Request("GET", claims), client_tls(), 60)
    assert len(json.loads(answer.body)["items"]) == n_claims
    print(f"{n_claims} claims: written in {written:.1f} s, restarted in {restarted:.1f} s")
    return restarted


async def test_two_thousand_claims_are_there_after_a_kill(server):
    await restart_with(server, 2_000)


@pytest.mark.heavy
async def test_twenty_thousand_claims_are_there_after_a_kill(server):
    assert await restart_with(server, 20_000) < 30


@pytest.mark.heavy
async def test_half_a_million_revisions_do_not_slow_a_restart(server):
    for number in range(50):
        assert (await write(server, f"r{number}", 100)).status == 201
    merge = "application/merge-patch+json"
    changes = (
        json_request("PATCH", f"{CONFIG_MAPS}/r{number % 50}", {"data": {"n": str(number)}}, content=merge)
        for number in range(500_000)
    )
    await send_many(server, changes, connections=16)
    server.kill()
    began = time.monotonic()
    server.start()
    took = time.monotonic() - began
    stored = sum(path.stat().st_size for path in server.data.iterdir() if path.is_file())
    print(f"after 500,000 revisions: restarted in {took:.1f} s, {stored / 1e6:.0f} MB on disk")
    assert len(await names(server)) >= 50
    assert took < 30
    assert shutil.disk_usage(server.data).free > 0
