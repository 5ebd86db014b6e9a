"""The system that people of one machine share: how commands find its Unix socket.

`dray up --shared` (and so `dray install`) listens at /run/dray/api.sock. A command uses it without a token or a
kubeconfig, in the namespace of the caller. DRAY_SOCKET names another path; empty means: none.

A socket is believed only if root or the caller made it, in a folder where nobody else can replace it: a false
server could answer anything.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dray.api.user_names import SOCKET, user_namespace
from dray.client import Endpoint, local_endpoint
from dray.host.accounts import account_of_uid
from dray.host.sockets import is_answering

VARIABLE = "DRAY_SOCKET"


def shared_socket() -> Path | None:
    """Return where the socket of the machine is, or would be; None when it is switched off."""
    name = os.environ.get(VARIABLE, SOCKET)
    return Path(name) if name else None


def find_shared_system() -> Endpoint | None:
    """Return the running system of this machine; None when there is none that can be trusted."""
    path = shared_socket()
    if path is None or not _is_trusted(path) or not is_answering(path):
        return None
    uid = os.geteuid()
    account = account_of_uid(uid)
    is_admin = uid in (0, path.stat().st_uid)
    namespace = "default" if is_admin or account is None else user_namespace(account.name)
    return local_endpoint(str(path), namespace)


def _is_trusted(path: Path) -> bool:
    try:
        found, folder = path.lstat(), path.parent.stat()
    except OSError:
        return False
    ours = (0, os.geteuid())
    is_fixed = not folder.st_mode & 0o022 or bool(folder.st_mode & stat.S_ISVTX)
    return stat.S_ISSOCK(found.st_mode) and found.st_uid in ours and folder.st_uid in ours and is_fixed
