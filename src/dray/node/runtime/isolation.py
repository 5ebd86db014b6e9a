"""Which containers of the `process` runtime get a /dev of their own, and what is in it.

A container that runs as another user than root, started by an agent that is root, sees the standard devices and
those that CDI gives it (`isolate.py` does it). Containers of root are left alone: root could make any device node
itself; use the `runc` runtime for them.

A device node belongs to the container's user unless the CDI spec says otherwise. So the nodes in the host's /dev may
be closed to everybody but root, and then the devices can be used through dray only.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from dray.api.cdi import CdiError, DeviceNode
from dray.api.podspec import RunPod
from dray.api.user_names import PRIVATE_TMP_ANNOTATION, TELL_EDITS_ANNOTATION
from dray.node.cdi import complete_node
from dray.node.runtime.credentials import Credentials

_SCRIPT = str(Path(__file__).with_name("isolate.py"))
_FOR_ENGINES = ("/dev/fuse", "/dev/net/tun")
_OPEN_TO_ALL = 0o006
_PYTHON = (
    sys.executable,
    "-I",
    "-S",
)  # nothing outside the standard library is loaded with the agent's rights

log = logging.getLogger("dray.node")


def wants_isolation(credentials: Credentials, own: Credentials) -> bool:
    """Return whether a container gets a /dev of its own."""
    return own.uid == 0 and credentials.uid != 0 and _is_possible()


def wants_private_tmp(pod: RunPod) -> bool:
    """Return whether a pod asks for a /tmp of its own."""
    return (pod.metadata.annotations or {}).get(PRIVATE_TMP_ANNOTATION) == "true"


def wants_edits(pod: RunPod) -> bool:
    """Return whether a pod wants to know what CDI says of its devices: it runs a container engine."""
    return (pod.metadata.annotations or {}).get(TELL_EDITS_ANNOTATION) == "true"


def engine_nodes(paths: Iterable[str] = _FOR_ENGINES) -> list[DeviceNode]:
    """Return the device nodes without which a container engine of an ordinary user has no network or no files.

    They are no hardware; a node that the machine has closed to its users stays closed in jobs.
    """
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_mode & _OPEN_TO_ALL == _OPEN_TO_ALL:
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            found.append(DeviceNode(path=path, type="c", major=major, minor=minor, file_mode=0o666))
    return found


def isolation_record(
    folder: Path, nodes: Iterable[DeviceNode], credentials: Credentials, *, has_private_tmp: bool = False
) -> str:
    """Return what `isolate.py` reads; raises CdiError for a node that cannot be in a /dev."""
    fields = [str(folder), "private" if has_private_tmp else ""]
    for node in map(complete_node, nodes):
        path = PurePosixPath(node.path)
        if not path.is_relative_to("/dev") or ".." in path.parts or path == PurePosixPath("/dev"):
            raise CdiError(f"device node {node.path} is not below /dev")
        owner = (node.uid or credentials.uid, node.gid or credentials.gid)
        mode = node.file_mode if node.file_mode is not None else 0o660
        fields += [str(path), node.type, *map(str, (node.major or 0, node.minor or 0, mode & 0o777, *owner))]
    return "".join(f"{field}\0" for field in fields)


def isolated_line(record: Path) -> Sequence[str]:
    """Return the words before a command that starts in a new mount namespace."""
    return (*_PYTHON, _SCRIPT, "new", str(record))


def joining_line(pid: int, groups: Iterable[Path]) -> Sequence[str]:
    """Return the words before a command that starts in the mount namespace of a process, and in these cgroups."""
    return (*_PYTHON, _SCRIPT, "join", str(pid), ":".join(map(str, groups)))


@functools.cache
def _is_possible() -> bool:
    """Return whether this machine lets us make mount namespaces; a container without CAP_SYS_ADMIN does not."""
    probe = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, timeout=30)
    if probe.returncode != 0:
        log.warning(
            "mount namespaces cannot be made here (%s): containers see all devices of this machine",
            probe.stderr.decode(errors="replace").strip() or f"exit code {probe.returncode}",
        )
    return probe.returncode == 0
