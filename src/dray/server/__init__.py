"""The embedded Kubernetes API: authenticate, authorise, admit, persist, watch.

The door: `Cluster` is a whole server without sockets (`cluster.server.handle` answers
a `Request`), `Settings` what can be chosen about it, `Front` puts it behind HTTPS. The
names are imported when they are first used, since a client of the store needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dray.server.assembly import Cluster, Settings
    from dray.server.http.https_front import Front
    from dray.server.requests.messages import Request, Response

__all__ = ["Cluster", "Front", "Request", "Response", "Settings"]

_MODULES = {
    "Cluster": "assembly",
    "Front": "http.https_front",
    "Request": "requests.messages",
    "Response": "requests.messages",
    "Settings": "assembly",
}


def __getattr__(name: str) -> Any:
    """Import a name of the door when it is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
