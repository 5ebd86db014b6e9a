"""Network namespaces: enter one, make one, keep one alive with a bind mount.

A thread of its own enters a namespace and ends with the work, so that the process never changes
its namespace; a fork would do, too, but a process with threads (gRPC has some) may hang in one.

A namespace lives as long as a process, an open file or a mount refers to it. `pin` mounts it on a
file. Inside a container that mount is seen by the host, and outlives the container, only when the
folder is mounted with bidirectional propagation (`is_shared_mount`).

Tests (root): tests/unit/drivers/test_network_driver.py, tests/e2e/test_node_runc_drivers.py.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

OWN_NETWORK = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MNT_DETACH = 4096, 2
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def in_network_namespace(namespace: Path, work: Callable[[], T]) -> T:
    """Do some work in another network namespace; raises OSError when it cannot be entered."""

    def enter() -> T:
        with namespace.open() as handle:
            _call("setns", handle.fileno(), _CLONE_NEWNET, what=f"enter the network namespace {namespace}")
        return work()

    return _in_thread(enter)


def make_network_namespace(pin_file: Path) -> None:
    """Make a network namespace with a loopback interface that is up, pinned at a file; there already: kept."""
    if is_namespace(pin_file):
        return

    def make() -> None:
        _call("unshare", _CLONE_NEWNET, what="make a network namespace")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
        pin(OWN_NETWORK, pin_file)

    _in_thread(make)


def pin(namespace: Path, pin_file: Path) -> None:
    """Mount a namespace on a file, which is made if needed."""
    pin_file.parent.mkdir(parents=True, exist_ok=True)
    pin_file.touch()
    source, target = str(namespace).encode(), str(pin_file).encode()
    _call("mount", source, target, b"none", _MS_BIND, None, what=f"pin a network namespace at {pin_file}")


def unpin(pin_file: Path) -> None:
    """Unmount what is pinned at a file and remove the file; missing is fine."""
    if is_namespace(pin_file):
        _call("umount2", str(pin_file).encode(), _MNT_DETACH, what=f"unmount {pin_file}")
    pin_file.unlink(missing_ok=True)


def is_namespace(path: Path) -> bool:
    """Return whether a path leads to a namespace."""
    try:
        return path.stat().st_dev == OWN_NETWORK.stat().st_dev
    except OSError:
        return False


def is_same_namespace(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one namespace; raises OSError when one cannot be read."""
    return os.path.samestat(first.stat(), second.stat())


def is_shared_mount(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether mounts made in a folder are seen outside this mount namespace (bidirectional propagation)."""
    best, is_shared = "", False
    for line in mountinfo.read_text().splitlines():
        fields = line.split()
        place = fields[4].replace("\\040", " ")
        if folder.is_relative_to(place) and len(place) >= len(best):
            best, is_shared = place, any(field.startswith("shared:") for field in fields[6:])
    return is_shared


def _in_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(work).result()


def _call(name: str, *arguments: Any, what: str) -> None:
    # Not os.setns and os.unshare, which Python has since 3.12 only.
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")
