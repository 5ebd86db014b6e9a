"""Names of a shared machine that server, node agent and commands agree on: groups, labels, namespaces of users.

A person of the machine is a user of the API with the name of their account and the group `dray:users`; each of
their Unix groups is a group `unix:NAME`. Their objects are in one namespace, whose name follows from the user's.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

USERS_GROUP: Final = "dray:users"  # everybody with an account of the machine, except administrators
UNIX_GROUP_PREFIX: Final = "unix:"
USER_ROLE: Final = "dray:user"  # in the user's own namespace
USER_READER_ROLE: Final = "dray:user-reader"  # in the whole cluster
USER_LABEL: Final = "dray.dev/user"  # of namespaces: "true" when it belongs to a user
USER_ANNOTATION: Final = "dray.dev/user-name"  # of namespaces: whose it is; names need not be label values
ADMIN_BINDING_PREFIX: Final = "dray:admin:"  # the user's name follows
UMASK_ANNOTATION: Final = "dray.dev/umask"  # of pods: three octal digits, for the processes of the pod
PRIVATE_TMP_ANNOTATION: Final = "dray.dev/private-tmp"  # of pods: "true" for a /tmp of their own
LOGIN_PATH: Final = "/dray/v1/login"
DASHBOARD_PATH: Final = "/dray/v1/dashboard"  # makes a link to the dashboard that works once
DASHBOARD_SESSION_PATH: Final = "/dray/v1/dashboard/session"  # exchanges the code of a link for a token
EDITS_VARIABLE: Final = (
    "DRAY_DEVICE_EDITS"  # what CDI says of the devices of a job, as JSON, if its pod asks for it
)
TELL_EDITS_ANNOTATION: Final = "dray.dev/tell-edits"  # of pods: "true" for that variable
SOCKET: Final = "/run/dray/api.sock"  # where the system of a shared machine listens

_NAMESPACE_PREFIX = "user-"
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")


def user_namespace(name: str) -> str:
    """Return the namespace of a user; different users have different ones.

    >>> user_namespace("ann"), user_namespace("Ann.B")
    ('user-ann', 'user-ann-b-0b0665e5')
    """
    # A plain name that looks like one with a digest gets a digest itself, so that nobody can aim at another's.
    if _PLAIN.fullmatch(name) and not re.search(r"-[0-9a-f]{8}$", name):
        return _NAMESPACE_PREFIX + name
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"{_NAMESPACE_PREFIX}{words}-{digest}" if words else _NAMESPACE_PREFIX + digest
