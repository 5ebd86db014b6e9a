"""What went wrong: one finding for each cause, counted, with a request to replay.

Not every 5xx is a defect: kube-apiserver itself answers some requests with 500, and dray answers as it
does. `EXPECTED` lists them, each with the reason; whatever is not listed is a finding.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attack.wire import Answer, Request

KEPT = 3  # examples of each cause


@dataclass(frozen=True)
class Expected:
    """A 5xx that kube-apiserver gives, too."""

    status: int
    message: str  # regular expression, matched from the beginning
    reason: str


EXPECTED = (
    Expected(500, "failed to create typed patch object", "apply: what does not fit the schema is a plain error upstream, so 500"),
    Expected(500, "failed to (create|convert)", "apply: managed fields that cannot be read are a plain error upstream"),
    Expected(500, "resourceVersion should not be set on objects to be created", "create: a plain error in upstream's registry"),
    Expected(500, ".*strconv.ParseUint", "a resourceVersion that is not a number is a plain error in upstream's storage"),
    Expected(500, ".*invalid resource version", "the same, for watches"),
    Expected(500, ".*(target|Unsupported value|Required value)", "pods/binding: validation of a binding is a plain error upstream"),
    Expected(500, "This pod has more than one PodDisruptionBudget", "eviction: upstream's text"),
    Expected(500, "(Internal error occurred: )?(cannot reach the node agent|node .* (does not|has no))", "logs and exec: the node agent of the test node does not exist; upstream's dial error is 500 as well"),
    Expected(500, "(Internal error occurred: )?the spec replicas field", "scale of a custom kind whose object lacks the field: upstream answers 500"),
    Expected(500, "unknown patch type|cannot merge lists without merge key|expected an object with key|map: .* does not contain declared merge key", "strategic merge patch: upstream reports what cannot be merged as a plain error, so 500"),
    Expected(501, ".*needs a streaming connection", "attach, port-forward and proxy are not offered"),
    Expected(504, "Timeout: Too large resource version", "a resourceVersion of the future, as upstream"),
    Expected(504, "Timeout: request did not complete", "60 s are over, as upstream"),
)  # fmt: skip


@dataclass
class Finding:
    """One cause."""

    sort: str  # death, traceback, status, silence, heartbeat, memory, ...
    cause: str
    count: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return {"sort": self.sort, "cause": self.cause, "count": self.count, "examples": self.examples}


class Findings:
    """All findings of a run."""

    def __init__(self) -> None:
        self._by_cause: dict[tuple[str, str], Finding] = {}

    def add(self, sort: str, cause: str, example: dict[str, Any] | None = None, count: int = 1) -> None:
        """Count a finding; the first examples are kept."""
        found = self._by_cause.setdefault((sort, cause), Finding(sort, cause))
        found.count += count
        if example is not None and len(found.examples) < KEPT:
            found.examples.append(example)

    def merge(self, records: Iterable[dict[str, Any]]) -> None:
        """Take over the findings of a worker."""
        for each in records:
            examples = each["examples"] or [None]
            self.add(each["sort"], each["cause"], examples[0], each["count"])
            for example in examples[1:]:
                self.add(each["sort"], each["cause"], example, 0)

    def records(self) -> list[dict[str, Any]]:
        """Return all findings, the most frequent first."""
        return [each.record() for each in sorted(self._by_cause.values(), key=lambda each: -each.count)]

    def __len__(self) -> int:
        return len(self._by_cause)

    def write(self, path: Path) -> None:
        """Write one finding a line."""
        path.write_text("".join(json.dumps(each) + "\n" for each in self.records()))


def expected_failure(status: int, message: str) -> Expected | None:
    """Return the entry of the list that explains a 5xx, if there is one."""
    return next(
        (each for each in EXPECTED if each.status == status and re.match(each.message, message, re.DOTALL)),
        None,
    )


def cause_of(request: Request, answer: Answer) -> str:
    """Return what tells failures apart: status, form of request, message without names and numbers."""
    message = re.sub(r'"[^"]*"|\d+', "_", answer.message())[:160]
    return f"{answer.status} {request.shape}: {message}"


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def tracebacks_of(log: str) -> list[tuple[str, str]]:
    """Return (cause, beginning) of each traceback of a log; the cause is the error and its innermost place."""
    found = []
    pieces = log.split("Traceback (most recent call last):")
    for before, piece in itertools.pairwise(pieces):
        lines = piece.splitlines()
        end = next(
            (place for place, line in enumerate(lines) if place and line and not line.startswith(" ")),
            len(lines) - 1,
        )
        frames = _FRAME.findall("\n".join(lines[:end]))
        own = [frame for frame in frames if "/dray/" in frame[0]] or frames
        place = f"{own[-1][0].rpartition('/src/')[2]}:{own[-1][2]}" if own else "?"
        error = re.sub(r"\d+|'[^']*'|0x\w+", "_", lines[end] if lines else "")[:120]
        found.append((f"{error} at {place}", (before.splitlines() or [""])[-1] + piece[:3000]))
    return found
