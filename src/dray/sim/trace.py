"""A trace: a cluster, kinds of pods, and when pods of which kind came and how long they ran.

All traces become this form, whatever they were read from: openb lists and other CSV files (`trace_csv`), and recordings of
a cluster (`dray record`). The pods and claims in it are Kubernetes objects, so the scheduler decides them as it would in production.

The file of a recording has one JSON object per line:

    {"kind": "DrayTrace", "apiVersion": "dray.dev/v1"}
    {"object": {…}}                                    nodes, slices, classes, as they are on the server
    {"template": 0, "pod": {…}, "claims": {"gpu": {…spec…}}}
    {"pod": "namespace/name", "template": 0, "at": 12.5}
    {"pod": "namespace/name", "started": 13.0}
    {"pod": "namespace/name", "ended": 840.0}

Times are seconds since the recording began; a pod without an end ran for as long as was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from dray.api.codec import to_view
from dray.api.core import Node, Pod
from dray.api.json_types import JsonObject
from dray.api.parsing import ParseError, load_json
from dray.api.resource import DeviceClass, ResourceClaimSpec, ResourceSlice
from dray.client.bounded_files import bounded_lines, open_file
from dray.scheduler import PodShape, shape_of
from dray.sim.snapshot import Snapshot, SnapshotError

FILE_KIND: Final = "DrayTrace"
FILE_VERSION: Final = "dray.dev/v1"
MOST_PODS: Final = 5_000_000
WHOLE: Final = 1000  # thousandths of a device


class TraceError(ValueError):
    """A trace that cannot be read; the message says where."""


@dataclass(slots=True, eq=False)
class PodTemplate:
    """Pods that ask for the same."""

    pod: Pod  # its name and uid are replaced
    claims: tuple[tuple[str, ResourceClaimSpec], ...] = ()  # (name in the pod, what is asked for)
    demand: int | None = None  # thousandths of devices; None: measured when the first one is placed
    shape: PodShape = field(init=False)

    def __post_init__(self) -> None:
        self.shape = shape_of(self.pod)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One pod."""

    at: float  # seconds
    duration: float | None  # seconds; None: it stays
    template: int


@dataclass(slots=True)
class Trace:
    """See the module docstring."""

    nodes: list[Node] = field(default_factory=list)
    slices: list[ResourceSlice] = field(default_factory=list)
    classes: list[DeviceClass] = field(default_factory=list)
    templates: list[PodTemplate] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)  # in the order of the file

    def on(self, snapshot: Snapshot) -> Trace:
        """Return the same pods on another cluster; classes of the trace that the cluster lacks are kept."""
        known = {each.metadata.name for each in snapshot.classes}
        classes = [*snapshot.classes, *(each for each in self.classes if each.metadata.name not in known)]
        return Trace(snapshot.nodes, snapshot.slices, classes, self.templates, self.arrivals)

    @property
    def span(self) -> float:
        """Return the seconds from the first arrival to the last."""
        times = [each.at for each in self.arrivals]
        return max(times) - min(times) if times else 0.0


# --- recordings -----------------------------------------------------------------------


def is_recording(path: Path) -> bool:
    """Return whether a file is a recording made by `dray record`. Raises OSError."""
    with open_file(path) as stream:
        return FILE_KIND.encode() in stream.readline(4096)


@dataclass(slots=True)
class _Seen:
    template: int
    at: float
    started: float | None = None
    ended: float | None = None


def read_recording(path: Path) -> Trace:
    """Read a recording. Raises TraceError and OSError."""
    snapshot = Snapshot()
    templates: list[PodTemplate] = []
    seen: dict[str, _Seen] = {}
    last = 0.0
    with open_file(path) as stream:
        for number, line in enumerate(bounded_lines(stream, str(path)), start=1):
            if not line.strip():
                continue
            try:
                entry = load_json(line)
                if not isinstance(entry, dict):
                    raise TraceError("expected an object")
                last = max(last, _take(entry, snapshot, templates, seen))
            except (
                ParseError,
                TraceError,
                SnapshotError,
                KeyError,
                TypeError,
                msgspec.ValidationError,
            ) as error:
                if isinstance(error, ParseError) and not line.endswith("\n"):
                    break  # the recording ended in the middle of a line
                raise TraceError(f"{path}, line {number}: {error}") from error
    arrivals = [_arrival(each, last) for each in seen.values()]
    arrivals.sort(key=lambda each: each.at)
    return Trace(snapshot.nodes, snapshot.slices, snapshot.classes, templates, arrivals)


def _arrival(seen: _Seen, last: float) -> Arrival:
    started = seen.started if seen.started is not None else seen.at
    ended = seen.ended if seen.ended is not None else max(last, started)
    return Arrival(seen.at, max(0.0, ended - started), seen.template)


def _take(
    entry: dict[str, Any], snapshot: Snapshot, templates: list[PodTemplate], seen: dict[str, _Seen]
) -> float:
    """Take in one line; return its time."""
    if "object" in entry:
        snapshot.add(entry["object"])
        return 0.0
    if "claims" in entry or ("template" in entry and "at" not in entry):
        if entry["template"] != len(templates):
            raise TraceError(f"template {entry['template']} is out of order")
        claims = [
            (str(name), to_view(ResourceClaimSpec, spec))
            for name, spec in (entry.get("claims") or {}).items()
        ]
        templates.append(PodTemplate(to_view(Pod, entry["pod"]), tuple(claims)))
        return 0.0
    if "pod" not in entry:
        return 0.0  # the head
    key = str(entry["pod"])
    if "at" in entry:
        if not 0 <= entry["template"] < len(templates):
            raise TraceError(f"there is no template {entry['template']}")
        if len(seen) >= MOST_PODS:
            raise TraceError(f"more than {MOST_PODS} pods")
        # The same name again is another pod: the earlier one keeps its times under a name of its own.
        if key in seen:
            seen[f"{key}#{len(seen)}"] = seen.pop(key)
        seen[key] = _Seen(entry["template"], float(entry["at"]))
        return float(entry["at"])
    known = seen.get(key)
    time = float(entry.get("started", entry.get("ended", 0.0)))
    if known is not None and "started" in entry and known.started is None:
        known.started = time
    elif known is not None and "ended" in entry and known.ended is None:
        known.ended = time
    return time


# --- writing ----------------------------------------------------------------------------


class TraceWriter:
    """Turns what is seen of a cluster into the lines of a recording."""

    def __init__(self) -> None:
        self._templates: dict[bytes, int] = {}
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def head(self, objects: Iterable[JsonObject]) -> list[bytes]:
        """Return the first lines: what the cluster has."""
        return [
            self._encode({"kind": FILE_KIND, "apiVersion": FILE_VERSION}),
            *(self._encode({"object": _without_status_noise(each)}) for each in objects),
        ]

    def arrival(self, pod: JsonObject, claims: Sequence[tuple[str, JsonObject]], at: float) -> list[bytes]:
        """Return the lines of a pod that came, with the specs of its claims."""
        meta = pod.get("metadata") or {}
        spec = {key: value for key, value in (pod.get("spec") or {}).items() if key in _KEPT}
        form = {"metadata": {"labels": meta.get("labels") or {}}, "spec": spec}
        body = {"pod": form, "claims": dict(claims)}
        key = self._encode(body)
        number = self._templates.get(key)
        lines = []
        if number is None:
            number = self._templates[key] = len(self._templates)
            lines.append(self._encode({"template": number, **body}))
        name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        return [*lines, self._encode({"pod": name, "template": number, "at": round(at, 3)})]

    def moment(self, key: str, what: str, at: float) -> bytes:
        """Return the line of a pod that `started` or `ended`."""
        return self._encode({"pod": key, what: round(at, 3)})


# What decides where a pod fits; commands, variables and volumes of configuration do not.
_KEPT: Final = frozenset(
    {
        "nodeSelector",
        "affinity",
        "tolerations",
        "priority",
        "topologySpreadConstraints",
        "resourceClaims",
        "containers",
    }
)


def _without_status_noise(obj: JsonObject) -> JsonObject:
    meta = {key: value for key, value in (obj.get("metadata") or {}).items() if key in ("name", "labels")}
    kept = {key: value for key, value in obj.items() if key in ("apiVersion", "kind", "spec")}
    found: JsonObject = {**kept, "metadata": meta}
    status = obj.get("status") or {}
    if obj.get("kind") == "Node":
        found["status"] = {key: status[key] for key in ("capacity", "allocatable") if key in status}
    return found
