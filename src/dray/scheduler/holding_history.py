"""Who held which devices, from when to when: the record behind the dashboard's history.

The scheduler says at each look which user holds which devices; a span begins when a pair of both is first seen and ends
when it is not seen any more. A user who gets a device again within a minute continues the span, so that a hundred short
jobs are one. The record keeps 30 days and at most `MOST_SPANS` spans that have ended; the oldest go first.

It is kept in the ConfigMap `kube-system/dray-history`. A scheduler that starts takes spans that had not ended for ended when
the record was last written; what is held still continues them if that was within a minute, else it begins anew.

Pure: times come in as seconds since 1970. Users are namespaces; jobs are not named.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from dray.api.parsing import ParseError, load_json

NAMESPACE: Final = "kube-system"
NAME: Final = "dray-history"
DAYS: Final = 30
MOST_SPANS: Final = 5000  # about 30 bytes each
MOST_OPEN: Final = 5000
CONTINUES_SECONDS: Final = 60.0
_KEEP_SECONDS: Final = DAYS * 86400.0


class Span(NamedTuple):
    """A user held a device."""

    user: str
    device: str  # driver/pool/device
    begins: float
    ends: float


class HoldingHistory:
    """The record."""

    def __init__(self) -> None:
        self._ended: deque[Span] = deque(maxlen=MOST_SPANS)
        self._begun: dict[tuple[str, str], float] = {}  # (user, device) -> since when

    def observe(self, held: Iterable[tuple[str, str]], now: float) -> bool:
        """Take note of all pairs (user, device) that are held now; return whether any began or ended."""
        current = set(held)
        gone = [pair for pair in self._begun if pair not in current]
        for user, device in sorted(gone):
            self._ended.append(Span(user, device, self._begun.pop((user, device)), now))
        new = sorted(current - self._begun.keys())[: MOST_OPEN - len(self._begun)]
        for pair in new:
            self._begun[pair] = self._continued(pair, now)
        while self._ended and self._ended[0].ends < now - _KEEP_SECONDS:
            self._ended.popleft()
        return bool(gone or new)

    def _continued(self, pair: tuple[str, str], now: float) -> float:
        for number in range(len(self._ended) - 1, -1, -1):
            span = self._ended[number]
            if span.ends < now - CONTINUES_SECONDS:
                break
            if (span.user, span.device) == pair:
                del self._ended[number]
                return span.begins
        return now

    def spans(self, now: float) -> list[Span]:
        """Return all spans, those that last as if they ended now."""
        lasting = [Span(user, device, begins, now) for (user, device), begins in self._begun.items()]
        return [*self._ended, *lasting]

    def to_data(self, now: float) -> dict[str, str]:
        """Return the data of the ConfigMap."""
        users: dict[str, int] = {}
        devices: dict[str, int] = {}
        rows = [
            [
                users.setdefault(span.user, len(users)),
                devices.setdefault(span.device, len(devices)),
                int(span.begins),
                int(span.ends),
            ]
            for span in self.spans(now)
        ]
        return {
            "users": json.dumps(list(users)),
            "devices": json.dumps(list(devices)),
            "spans": json.dumps(rows, separators=(",", ":")),
        }


def parse_history(data: Mapping[str, Any]) -> HoldingHistory:
    """Read the data of the ConfigMap; what cannot be read is left out.

    >>> history = HoldingHistory()
    >>> history.observe([("user-ann", "gpu/box/gpu-0")], 10.0)
    True
    >>> parse_history(history.to_data(20.0)).spans(30.0)
    [Span(user='user-ann', device='gpu/box/gpu-0', begins=10.0, ends=20.0)]
    """
    history = HoldingHistory()
    users, devices, rows = (_list(data, key) for key in ("users", "devices", "spans"))
    spans = [span for row in rows[-MOST_SPANS:] if (span := _span(row, users, devices)) is not None]
    history._ended.extend(sorted(spans, key=lambda span: span.ends))
    return history


def _span(row: Any, users: list[Any], devices: list[Any]) -> Span | None:
    try:
        user, device, begins, ends = row
        if min(user, device) < 0 or not isfinite(begins) or not begins <= ends < 1e12:
            return None
        return Span(str(users[user]), str(devices[device]), float(begins), float(ends))
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    text = data.get(key)
    try:
        found = load_json(text) if isinstance(text, str) else []
    except (ParseError, ValueError):
        return []
    return found if isinstance(found, list) else []
