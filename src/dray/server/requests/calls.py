"""One request on its way through the server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from dray.api.times import format_time
from dray.host.clock import utc_now
from dray.host.random_names import SUFFIX_LENGTH, random_suffix
from dray.server.requests.messages import Request
from dray.server.requests.routing import Route
from dray.server.requests.users import User

# The characters of generated names: no vowels and no look-alikes, so no words appear.
_LONGEST_BASE = 63 - SUFFIX_LENGTH

MAX_WARNING_CHARACTERS = 4 * 1024  # in all warnings of an answer
MAX_WARNINGS = 80  # kube-apiserver sends 100, and Python's http.client reads at most 100 header lines
MAX_LONG_WARNING = 256  # characters of one warning, if not all fit


@dataclass(frozen=True, slots=True)
class Environment:
    """The clock and the sources of uids and names, as arguments: tests replace them."""

    now: Callable[[], datetime] = utc_now
    new_uid: Callable[[], str] = lambda: str(uuid.uuid4())
    new_suffix: Callable[[], str] = random_suffix

    def timestamp(self) -> str:
        """Return the present as metadata writes it."""
        return format_time(self.now())

    def generated_name(self, prefix: str) -> str:
        """Return a fresh name that starts with a prefix and fits into 63 characters."""
        return prefix[:_LONGEST_BASE] + self.new_suffix()


@dataclass(slots=True)
class Call:
    """A request with everything that was found out about it."""

    request: Request
    route: Route
    user: User
    warnings: dict[str, None] = field(default_factory=dict)  # in order, each once; become Warning headers
    keeps_empties: bool = False  # empty lists stay in the object until validation is done
    has_managed_fields: bool = False  # an apply writes managedFields itself
    extra_bytes: int = 0  # what the request works on beside its body

    @property
    def size(self) -> int:
        """Return about how many bytes the request works on; see `worker_threads`."""
        size = len(self.request.body) + self.extra_bytes
        return size if "yaml" not in self.request.header("content-type") else 4 * size

    def warn(self, text: str) -> None:
        """Tell the client something that does not stop the request; each text once."""
        if text:
            self.warnings[text] = None

    def warning_headers(self) -> list[tuple[str, str]]:
        """Return the warnings as HTTP headers, shortened as kube-apiserver shortens them."""
        texts = _shortened(self.warnings)[:MAX_WARNINGS]
        return [("Warning", f'299 - "{_quoted(text)}"') for text in texts]


def _shortened(warnings: Iterable[str]) -> list[str]:
    """Return as many warnings as headers may hold; if not all of them fit, none is long.

    Clients limit the size of an answer's head. kube-apiserver writes warnings whole up to 4,096
    characters; beyond that each has at most 256, and the one that passes the total is the last.
    """
    texts = list(warnings)
    if sum(map(len, texts)) <= MAX_WARNING_CHARACTERS:
        return texts
    written = 0
    kept: list[str] = []
    for text in texts:
        if written >= MAX_WARNING_CHARACTERS:
            break
        kept.append(text[:MAX_LONG_WARNING])
        written += len(kept[-1])
    return kept


def _quoted(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.replace("\\", "\\\\").replace('"', '\\"')
