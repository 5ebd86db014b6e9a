"""One request on its way through the server."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dray.api.times import format_time
from dray.server.requests import Request
from dray.server.routing import Route
from dray.server.tokens import User

# The letters of generated names: no vowels and no look-alikes, so no words appear.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_LONGEST_BASE = 63 - _SUFFIX

MAX_WARNING_CHARACTERS = 4 * 1024  # in all warnings of an answer
MAX_WARNINGS = 80  # kube-apiserver sends 100, and Python's http.client reads at most 100 header lines
MAX_LONG_WARNING = 256  # characters of one warning, if not all fit


class _Chance:
    """Random bytes, fetched from the system a page at a time: a call for each uid costs more than the uid."""

    def __init__(self) -> None:
        self._page = b""
        self._used = 0

    def take(self, count: int) -> bytes:
        """Return fresh random bytes."""
        if self._used + count > len(self._page):
            self._page, self._used = os.urandom(4096), 0
        start, self._used = self._used, self._used + count
        return self._page[start : self._used]


_chance = _Chance()


def _new_uid() -> str:
    digits = _chance.take(16).hex()
    # Version 4 and the variant of RFC 9562 stand in six of the bits; the rest is chance.
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


@dataclass(frozen=True, slots=True)
class World:
    """Time, identity and chance, as arguments: tests replace them."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    new_uid: Callable[[], str] = _new_uid
    new_suffix: Callable[[], str] = lambda: "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX))

    def timestamp(self) -> str:
        """Return the present as metadata writes it."""
        return format_time(self.now())

    def generated_name(self, prefix: str) -> str:
        """Return a fresh name that starts with a prefix and fits into 63 letters."""
        return prefix[:_LONGEST_BASE] + self.new_suffix()


@dataclass(slots=True)
class Call:
    """A request with everything that was found out about it."""

    request: Request
    route: Route
    user: User
    warnings: dict[str, None] = field(default_factory=dict)  # in order, each once; become Warning headers
    keeps_empties: bool = False  # empty lists stay in the object until validation is done
    has_booked: bool = False  # an apply keeps the book of field owners itself
    extra_bytes: int = 0  # what the request works on beside its body

    @property
    def size(self) -> int:
        """Return about how many bytes the request works on; see `large_requests`."""
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
