"""Give a process a /dev of its own: a script, run as root as `python -I -S isolate.py …`.

    new RECORD COMMAND [ARGUMENT ...]       in a new mount namespace, with the /dev that the record describes
    join PID GROUPS COMMAND [ARGUMENT ...]  in the mount namespace of a process and in its cgroups, separated by colons

The new /dev holds the standard devices, the terminals, a shared memory folder of its own, and the device nodes of the
record; nothing else of the host's /dev can be reached. Who is not root cannot make device nodes, so a
program can open those that it was given and no others. Mounts of the host that come later are seen (the namespace is
a slave), those made inside are not seen outside. /proc shows a process of a user the processes of that user only, where
the kernel can do that for one mount (5.8).

RECORD is a file of fields that end with NUL: the container's folder, `private` if it gets a /tmp of its own (else empty), then for each device its path, type (c, b
or p), major, minor, mode, uid and gid. A failure is written to the container's log and exit code (126), since nobody
reads the output of this script. Only the standard library is used, and little of it: this runs for every container.
"""

from __future__ import annotations

import os
import stat
import sys

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_MOVE = 2, 4, 8, 4096, 8192
_MS_REC, _MS_SLAVE = 16384, 1 << 19
_FIELDS = 7  # of a device
_PROC_PER_MOUNT = (5, 8)  # before that version of Linux the option would change the host's /proc
_STANDARD = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_KINDS = {"c": stat.S_IFCHR, "u": stat.S_IFCHR, "b": stat.S_IFBLK, "p": stat.S_IFIFO}


def isolate(folder: str, has_private_tmp: bool, devices: list[list[str]]) -> None:
    """Enter a new mount namespace and put a new /dev, perhaps a new /tmp, in place; raises OSError."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_REC | _MS_SLAVE, None)
    stage = f"{folder}/dev"
    os.makedirs(stage, 0o755, exist_ok=True)
    _call(
        "mount",
        b"tmpfs",
        stage.encode(),
        b"tmpfs",
        _MS_NOSUID | _MS_NOEXEC,
        b"mode=755,size=64k,nr_inodes=4096",
    )
    os.umask(0)
    for name, number, second in _STANDARD:
        os.mknod(f"{stage}/{name}", 0o666 | stat.S_IFCHR, os.makedev(number, second))
    for name, target in _LINKS.items():
        os.symlink(target, f"{stage}/{name}")
    os.mkdir(f"{stage}/pts", 0o755)
    os.mkdir(f"{stage}/shm", 0o755)
    if os.path.isdir("/dev/pts"):
        # The host's, so that terminals which the agent opens for a container have a name inside.
        _call("mount", b"/dev/pts", f"{stage}/pts".encode(), None, _MS_BIND, None)
    _call("mount", b"shm", f"{stage}/shm".encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, b"mode=1777")
    for path, kind, major, minor, mode, uid, gid in devices:
        place = stage + path.removeprefix("/dev")
        os.makedirs(os.path.dirname(place), 0o755, exist_ok=True)
        os.mknod(place, int(mode) | _KINDS[kind], os.makedev(int(major), int(minor)))
        os.chown(place, int(uid), int(gid))
    _call("mount", stage.encode(), b"/dev", None, _MS_MOVE, None)
    _hide_processes_of_others()
    if has_private_tmp:
        # A folder of the container, not memory: it goes with the container, and counts as disk.
        private = f"{folder}/tmp"
        os.makedirs(private, exist_ok=True)
        os.chmod(private, 0o1777)  # noqa: S103  # as /tmp is
        if folder.startswith("/tmp/"):
            # The shim and the log pipes are here: the folder stays where it is, as closed to others as before.
            os.makedirs(private + folder.removeprefix("/tmp"), 0o711)
            _call(
                "mount",
                folder.encode(),
                (private + folder.removeprefix("/tmp")).encode(),
                None,
                _MS_BIND,
                None,
            )
        _call("mount", private.encode(), b"/tmp", None, _MS_BIND | _MS_REC, None)


def _hide_processes_of_others() -> None:
    try:
        major, minor = (int(number) for number in os.uname().release.split(".")[:2])
        if (major, minor) >= _PROC_PER_MOUNT:
            flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
            _call("mount", b"proc", b"/proc", b"proc", flags, b"hidepid=2")
    except (OSError, ValueError):
        return  # a container whose own /proc is covered may not make one: the job sees that one


def join(pid: int, groups: list[str]) -> None:
    """Enter cgroups and the mount namespace of a process; raises OSError."""
    for group in groups:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    handle = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _call("setns", handle, _CLONE_NEWNS)
    os.close(handle)


def _call(name: str, *arguments: object) -> None:
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def main(words: list[str]) -> int:
    """Do it and become the command, or say why not."""
    if words[0] == "join":
        try:
            join(int(words[1]), [group for group in words[2].split(":") if group])
            os.execvp(words[3], words[3:])  # noqa: S606  # that is what this is for
        except OSError as error:
            print(f"cannot enter the container: {error.strerror}", file=sys.stderr)
            return 126
    with open(words[1], encoding="utf-8", errors="surrogateescape", newline="") as file:
        folder, tmp, *fields = file.read().split("\0")[:-1]
    try:
        isolate(
            folder, tmp == "private", [fields[at : at + _FIELDS] for at in range(0, len(fields), _FIELDS)]
        )
        os.umask(0o077)
        os.execv(words[2], words[2:])  # noqa: S606  # that is what this is for
    except (OSError, ValueError, KeyError) as error:
        with open(f"{folder}/stderr", "w") as log:
            log.write(f"cannot make the container's /dev: {error}\n")
        with open(f"{folder}/exit", "w") as file:
            file.write("126")
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
