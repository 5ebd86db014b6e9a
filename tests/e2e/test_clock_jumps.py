"""Wall clocks of running processes that jump by an hour: no node is judged by it, no pod evicted, nobody locked out.

A small library that is loaded before all others (`LD_PRELOAD`) adds to the time of day what a file says, so
the clock of one process jumps while it runs, and the others keep theirs. The clock that only goes forward is
not touched, as when an administrator or NTP sets the time.
"""

import asyncio
import contextlib
import shutil
import struct
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from server_process import serving
from test_pauses import NAMES, SPACE, controllers, furnish, pods_stay

from dray.client import Client, ClientError
from dray.client import resources as kinds

HOUR = 3_600
# A clock that jumps by an hour would be noticed at once; a busy machine takes some seconds for a heartbeat.
GRACE = ("--node-monitor-grace-period", "30")
STAY = 3.0  # seconds for which nothing may happen after each jump
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *offset;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("TEST_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *place = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    if (place != MAP_FAILED) offset = place;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *place, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    place->tv_sec = now.tv_sec;
    place->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


class Clock:
    """The wall clock of the processes that are started in its environment."""

    def __init__(self, path, library):
        self._path, self._library = path, library
        self._path.write_bytes(struct.pack("l", 0))

    def jump(self, seconds):
        with self._path.open("r+b") as file:
            file.write(struct.pack("l", seconds))

    @contextlib.contextmanager
    def environment(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(self._library))
            patch.setenv("TEST_CLOCK_OFFSET", str(self._path))
            yield


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "clock.c").write_text(SOURCE)
    command = [compiler, "-shared", "-fPIC", "-o", folder / "clock.so", folder / "clock.c", "-ldl"]
    subprocess.run(command, check=True)
    return folder / "clock.so"


async def beat(client, offset):
    """Renew leases as node agents do whose clock is off by so many seconds."""
    while True:
        moment = datetime.now(UTC) + timedelta(seconds=offset())
        for name in NAMES:
            spec = {"renewTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "holderIdentity": name}
            with contextlib.suppress(ClientError):
                await client.patch(kinds.LEASES, name, {"spec": spec}, SPACE)
        await asyncio.sleep(0.3)


async def test_a_clock_that_jumps_costs_no_node_and_no_pod(library, tmp_path):
    clocks = {part: Clock(tmp_path / part, library) for part in ("server", "controllers")}
    of_nodes = 0
    with contextlib.ExitStack() as stack:
        with clocks["server"].environment():
            server = stack.enter_context(serving(tmp_path, "--data", str(tmp_path / "data")))
        with clocks["controllers"].environment():
            process = stack.enter_context(controllers(server, tmp_path, *GRACE))
        async with Client.connect(server.kubeconfig) as client, Client.connect(server.kubeconfig) as nodes:
            beating = asyncio.create_task(beat(nodes, lambda: of_nodes))
            try:
                await furnish(client)
                for part in (*clocks, "nodes", "all"):
                    for seconds in (HOUR, -HOUR, 0):
                        for name, clock in clocks.items():
                            clock.jump(seconds if part in (name, "all") else 0)
                        of_nodes = seconds if part in ("nodes", "all") else 0
                        await pods_stay(client, STAY)
                        await _answers_new_clients(server)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
        assert process.poll() is None
    assert "Traceback" not in (tmp_path / "controllers.log").read_text()


async def _answers_new_clients(server):
    """Connect anew: certificates are valid by the clock of either side."""
    async with Client.connect(server.kubeconfig) as client:
        await client.list(kinds.NODES)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_part_that_starts_with_a_wrong_clock_is_let_in(library, tmp_path, seconds):
    clock = Clock(tmp_path / "clock", library)
    clock.jump(seconds)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, "--data", str(tmp_path / "data")))
        with clock.environment():
            stack.enter_context(controllers(server, tmp_path, *GRACE))
        async with Client.connect(server.kubeconfig) as client:
            beating = asyncio.create_task(beat(client, lambda: 0))
            try:
                await furnish(client)
                await pods_stay(client, STAY)
            finally:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
