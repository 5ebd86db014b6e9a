"""The heap gives memory back that a large block in a thread took."""

import subprocess
import sys

PROGRAM = """
import ctypes, threading
from dray.host.heap import keep_heap_compact
assert {keep} is False or keep_heap_compact()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def work():
    # Large blocks between small ones that stay: without the settings they become a part of the heap.
    for _ in range(40):
        block = libc.malloc(1 << 20)
        ctypes.memset(block, 1, 1 << 20)
        libc.malloc(64)
        libc.free(block)
        pair = [libc.malloc(900 << 10) for _ in range(8)]
        for each in pair:
            ctypes.memset(each, 1, 900 << 10)
        libc.malloc(64)
        for each in pair:
            libc.free(each)

before = resident()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print((resident() - before) >> 20)
"""


def kept(keep):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_freed_large_blocks_of_threads_go_back_to_the_system():
    assert kept(True) <= 2 < kept(False)
