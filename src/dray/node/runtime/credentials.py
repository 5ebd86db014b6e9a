"""As whom a container's processes run: user, group, supplementary groups, and whether they may gain rights.

The same credentials hold for the container's command, for `exec`, for exec probes and
for lifecycle hooks. They come from the security contexts of container and pod, as in
Kubernetes; what neither names is the agent's own, except for supplementary groups: an
agent that is root gives a container none of its own.

Theory of operation: `credentials_of` decides and is a function of the spec and of the
agent's own credentials. Where they differ, commands are started through the script
`become.py`, which reads a private record (environment and credentials), gives up
groups, group and user in this order, and becomes the command. The environment is
applied only then, so that a container cannot influence anything that still runs with
the agent's rights (LD_PRELOAD).
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.podspec import RunContainer, RunPod
from dray.api.user_names import UMASK_ANNOTATION
from dray.host.accounts import account_of_uid
from dray.node.runtime.contract import StartError

_SCRIPT = Path(__file__).with_name("become.py")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the kernel knows of a process's rights, as far as pods can ask for it."""

    uid: int
    gid: int
    groups: frozenset[int] = frozenset()  # supplementary ones, without `gid`
    no_new_privileges: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what the record of a container holds."""
        return {
            "uid": self.uid,
            "gid": self.gid,
            "groups": sorted(self.groups),
            "noNewPrivileges": self.no_new_privileges,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Credentials:
        """Read a record; raise KeyError, TypeError or ValueError when it is damaged."""
        groups = frozenset(int(group) for group in record["groups"])
        return cls(int(record["uid"]), int(record["gid"]), groups, bool(record["noNewPrivileges"]))


def own_credentials() -> Credentials:
    """Return the agent's own."""
    gid = os.getegid()
    return Credentials(os.geteuid(), gid, frozenset(os.getgroups()) - {gid})


def primary_group(uid: int) -> int:
    """Return the group of a user of this machine; for a number that is not a user, the same number."""
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def credentials_of(
    pod: RunPod,
    container: RunContainer,
    own: Credentials,
    group_of: Callable[[int], int] = primary_group,
) -> Credentials:
    """Return as whom a container runs; raise StartError when the agent may not do that, or the pod forbids it."""
    mine, pods = container.security_context, pod.spec.security_context

    def asked(name: str) -> Any:
        values = (getattr(context, name) for context in (mine, pods) if context is not None)
        return next((value for value in values if value is not None), None)

    user, group = asked("run_as_user"), asked("run_as_group")
    uid = own.uid if user is None else int(user)
    if asked("run_as_non_root") and uid == 0:
        raise StartError(
            "CreateContainerConfigError",
            f'container has runAsNonRoot and would run as root (pod: "{pod.key}", container: {container.name})',
        )
    gid = own.gid if group is None and uid == own.uid else group_of(uid) if group is None else int(group)
    extra = set(pods.supplemental_groups or ()) if pods is not None else set()
    if pods is not None and pods.fs_group is not None:
        extra.add(pods.fs_group)
    is_locked = mine is not None and mine.allow_privilege_escalation is False
    if own.uid == 0:
        return Credentials(uid, gid, frozenset(extra) - {gid}, is_locked)
    beyond = extra - own.groups - {own.gid}
    if uid != own.uid or gid != own.gid or beyond:
        wanted = f"user {uid}, group {gid}" + (f", groups {sorted(beyond)}" if beyond else "")
        raise StartError(
            "CreateContainerConfigError",
            f"container {container.name} asks for {wanted}, and the node agent runs as user {own.uid}, group {own.gid}: "
            "only an agent that is root can start processes of others; run it as root or remove runAsUser, "
            "runAsGroup, supplementalGroups and fsGroup",
        )
    # A user who is not root cannot give up groups.
    return Credentials(uid, gid, own.groups, is_locked)


def umask_of(pod: RunPod) -> str:
    """Return the file mode mask that a pod asks for; raise StartError when it is not one."""
    text = (pod.metadata.annotations or {}).get(UMASK_ANNOTATION, "022")
    if not re.fullmatch(r"0?[0-7]{3}", text):
        message = f"annotation {UMASK_ANNOTATION}: {text[:40]!r} is not three octal digits such as 077"
        raise StartError("CreateContainerConfigError", message)
    return text


def login_environment(uid: int) -> list[str]:
    """Return the variables that a login of this user sets; empty for a number that is not a user."""
    account = account_of_uid(uid)
    if account is None:
        return []
    values = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}
    return [f"{name}={value}" for name, value in values.items() if value]


def become_record(wanted: Credentials, env: Iterable[str], umask: str = "022", folder: str = "/") -> str:
    """Return what `become.py` reads: credentials and environment, each field ended with NUL."""
    groups = ",".join(map(str, sorted(wanted.groups)))
    how = f"{int(wanted.no_new_privileges)}:{umask}:{folder}"
    fields = (str(wanted.uid), str(wanted.gid), groups, how, *env)
    return "".join(f"{field}\0" for field in fields)


def exec_prefix(wanted: Credentials, own: Credentials, record: Path) -> Sequence[str]:
    """Return the words that stand before a command so that it runs with these credentials."""
    if wanted == own:
        return ()
    # Isolated, without site packages: nothing outside the standard library is loaded with the agent's rights.
    return (sys.executable, "-I", "-S", str(_SCRIPT), str(record))
