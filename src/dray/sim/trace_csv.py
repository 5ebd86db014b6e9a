"""Traces from CSV files: the openb lists, and any other by a mapping file.

A mapping says which column means what (Philly- and Helios-style tables have other names for the same things):

    kind: TraceMapping
    columns: {submit: submit_time, end: end_time, gpus: gpu_num, cpus: cpu_num, nodes: node_num}
    time: "%Y-%m-%d %H:%M:%S"          # or: seconds (the default), milliseconds
    units: {cpu: cores, memory: Gi}    # cpu: cores or milli; memory: a suffix such as Mi, Gi; empty for bytes
    keep: {state: [COMPLETED, CANCELLED]}
    defaults: {cpus: 4, memory: 16}
    deviceClass: gpu.nvidia.com        # what jobs ask for: whole devices of this class
    modelExpression: device.attributes["gpu.nvidia.com"].productName   # compared with the names in `model`

Without `deviceClass`, jobs ask for shares of the GPUs of an openb node list.

Meanings: submit; end or duration; gpus; share (thousandths of each GPU); cpus; memory; model (names separated by |); nodes (the
job has so many pods, which divide its GPUs and cpus); priority.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from dray.api.core import Node, Pod
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.resource import DeviceClass, ResourceClaimSpec, ResourceSlice
from dray.sim.trace import MOST_PODS, WHOLE, Arrival, PodTemplate, Trace, TraceError

DRIVER: Final = "gpu.example.com"
MEANINGS: Final = (
    "submit",
    "end",
    "duration",
    "gpus",
    "share",
    "cpus",
    "memory",
    "model",
    "nodes",
    "priority",
)
MODEL_EXPRESSION: Final = f'device.attributes["{DRIVER}"].model'
_MOST_PODS_OF_A_JOB: Final = 1024
_MUCH_MEMORY: Final = 1 << 30  # MiB: of nodes in a list that does not say


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Which column means what."""

    columns: dict[str, str]
    time: str = "seconds"  # or milliseconds, or a format of strptime
    cpu_unit: str = "cores"  # or milli
    memory_unit: str = ""
    keep: dict[str, tuple[str, ...]] = field(default_factory=dict)  # column -> values
    defaults: dict[str, float] = field(default_factory=dict)
    device_class: str = ""  # empty: the GPUs of a node list
    model_expression: str = MODEL_EXPRESSION


OPENB: Final = ColumnMapping(
    {
        "submit": "creation_time",
        "end": "deletion_time",
        "gpus": "num_gpu",
        "share": "gpu_milli",
        "cpus": "cpu_milli",
        "memory": "memory_mib",
        "model": "gpu_spec",
    },
    cpu_unit="milli",
    memory_unit="Mi",
)


def parse_mapping(document: Any, source: str) -> ColumnMapping:
    """Read a mapping. Raises TraceError."""
    if not isinstance(document, dict) or not isinstance(document.get("columns"), dict):
        raise TraceError(f"{source}: expected a mapping with `columns`")
    columns = {str(key): str(value) for key, value in document["columns"].items()}
    unknown = sorted(set(columns) - set(MEANINGS))
    if unknown:
        raise TraceError(f"{source}: columns.{unknown[0]} is not known; known: {', '.join(MEANINGS)}")
    units = document.get("units") or {}
    keep = document.get("keep") or {}
    defaults = document.get("defaults") or {}
    if not all(isinstance(each, dict) for each in (units, keep, defaults)):
        raise TraceError(f"{source}: units, keep and defaults must be mappings")
    if units.get("cpu", "cores") not in ("cores", "milli"):
        raise TraceError(f"{source}: units.cpu must be cores or milli")
    try:
        parse_quantity(f"1{units.get('memory', '')}")
        return ColumnMapping(
            columns,
            str(document.get("time", "seconds")),
            str(units.get("cpu", "cores")),
            str(units.get("memory", "")),
            {str(key): tuple(map(str, values)) for key, values in keep.items()},
            {str(key): float(value) for key, value in defaults.items()},
            str(document.get("deviceClass", "")),
            str(document.get("modelExpression", MODEL_EXPRESSION)),
        )
    except (QuantityError, TypeError, ValueError) as error:
        raise TraceError(f"{source}: {error}") from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one pod asks for."""

    cpu: int  # thousandths
    memory: int  # bytes
    gpus: int
    share: int  # of each GPU, in thousandths
    models: tuple[str, ...] = ()  # GPU models it accepts; empty means: any
    priority: int = 0


def read_rows(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    """Read a CSV file that must have these columns. Raises TraceError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = []
            for row in csv.DictReader(file):
                rows.append(row)
                if len(rows) > MOST_PODS:
                    raise TraceError(f"{path}: more than {MOST_PODS} rows")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a CSV file: {error}") from error
    for column in columns:
        if rows and column not in rows[0]:
            known = ", ".join(str(name) for name in rows[0])
            raise TraceError(f"{path}: no column {column!r}; columns: {known[:300]}")
    return rows


def read_pods(path: Path, mapping: ColumnMapping = OPENB) -> Trace:
    """Read a list of pods or jobs; the cluster is empty. Raises TraceError."""
    optional = set(mapping.columns) - {"gpus"} if mapping is OPENB else set()
    rows = read_rows(path, [name for meaning, name in mapping.columns.items() if meaning not in optional])
    trace = Trace(classes=[] if mapping.device_class else [gpu_class()])
    numbers: dict[Wanted, int] = {}
    for line, row in enumerate(rows, start=2):
        if any(row.get(column) not in values for column, values in mapping.keep.items()):
            continue
        try:
            at, duration, wanted, count = _read_row(row, mapping)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(f"{path}, line {line}: {error}") from error
        number = numbers.get(wanted)
        if number is None:
            number = numbers[wanted] = len(numbers)
            trace.templates.append(template_of(wanted, mapping))
        trace.arrivals += [Arrival(at, duration, number)] * count
    first = min((each.at for each in trace.arrivals), default=0.0)
    trace.arrivals = [Arrival(each.at - first, each.duration, each.template) for each in trace.arrivals]
    return trace


def _read_row(row: Mapping[str, str], mapping: ColumnMapping) -> tuple[float, float | None, Wanted, int]:
    """Return (submitted, duration, what each pod wants, how many pods)."""

    def value(meaning: str, otherwise: float = 0.0) -> float:
        text = row.get(mapping.columns.get(meaning, ""), "") or ""
        found = float(text) if text.strip() else mapping.defaults.get(meaning, otherwise)
        if not 0 <= found < 1e15:
            raise ValueError(f"{meaning} is {text[:40]!r}")
        return found

    def moment(meaning: str) -> float | None:
        text = (row.get(mapping.columns.get(meaning, ""), "") or "").strip()
        if not text:
            return None
        if mapping.time in ("seconds", "milliseconds"):
            found = float(text) / (1000 if mapping.time == "milliseconds" else 1)
            if not -1e15 < found < 1e15:
                raise ValueError(f"{meaning} is {text[:40]!r}")
            return found
        return datetime.strptime(text, mapping.time).replace(tzinfo=UTC).timestamp()

    at = moment("submit") or 0.0
    duration = value("duration") if "duration" in mapping.columns else None
    if duration is None:
        end = moment("end")
        duration = max(0.0, end - at) if end is not None else None
    count = int(value("nodes", 1)) or 1
    if count > _MOST_PODS_OF_A_JOB:
        raise ValueError(f"a job of {count} pods")
    amount = value("gpus")
    gpus = math.ceil(amount)
    part = round(amount * WHOLE) if 0 < amount < 1 else WHOLE  # "0.5" is half of a GPU
    cpu = value("cpus") * (1 if mapping.cpu_unit == "milli" else 1000)
    memory = value("memory") * parse_quantity(f"1{mapping.memory_unit}").ceil_value()
    models = row.get(mapping.columns.get("model", ""), "") or ""
    wanted = Wanted(
        int(cpu / count),
        int(memory / count),
        -(-gpus // count),
        min(WHOLE, int(value("share", part)) or WHOLE) if gpus else 0,
        tuple(sorted(filter(None, models.split("|")))),
        int(value("priority")),
    )
    return at, duration, wanted, count


# --- as Kubernetes objects ----------------------------------------------------------


def template_of(wanted: Wanted, mapping: ColumnMapping = OPENB) -> PodTemplate:
    """Return the pods and claims that ask for this."""
    requests = {"cpu": f"{wanted.cpu}m", "memory": wanted.memory}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    spec: dict[str, Any] = {"containers": [container], "priority": wanted.priority}
    claims: tuple[tuple[str, ResourceClaimSpec], ...] = ()
    if wanted.gpus:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        exactly: dict[str, Any] = {
            "deviceClassName": mapping.device_class or "gpu",
            "allocationMode": "ExactCount",
            "count": wanted.gpus,
        }
        if not mapping.device_class:
            exactly["capacity"] = {"requests": {"share": f"{wanted.share}m"}}
        if wanted.models:
            expression = f"{mapping.model_expression} in {json.dumps(wanted.models)}"
            exactly["selectors"] = [{"cel": {"expression": expression}}]
        body = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
        claims = (("gpu", msgspec.convert(body, ResourceClaimSpec)),)
    pod = msgspec.convert({"metadata": {"namespace": "default"}, "spec": spec}, Pod)
    return PodTemplate(
        pod, claims, None if mapping.device_class and wanted.gpus else wanted.gpus * wanted.share
    )


def gpu_class() -> DeviceClass:
    """Return the class that the claims of CSV traces name."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return msgspec.convert({"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}, DeviceClass)


def read_nodes(path: Path) -> tuple[list[Node], list[ResourceSlice]]:
    """Read an openb node list, sorted by name. Raises TraceError."""
    rows = read_rows(path, ("sn", "cpu_milli", "gpu"))
    nodes, slices = [], []
    for row in sorted(rows, key=lambda each: each["sn"] or ""):
        try:
            cpu, memory, gpus = (
                int(float(row.get(column) or otherwise))
                for column, otherwise in (("cpu_milli", ""), ("memory_mib", _MUCH_MEMORY), ("gpu", 0))
            )
        except (ValueError, OverflowError) as error:
            raise TraceError(f"{path}: node {(row['sn'] or '')[:60]}: {error}") from error
        node, slice_ = node_of(row["sn"] or "", cpu, memory, gpus, row.get("model") or "")
        nodes.append(node)
        slices += [slice_] if slice_ is not None else []
    return nodes, slices


def node_of(name: str, cpu: int, memory: int, gpus: int, model: str) -> tuple[Node, ResourceSlice | None]:
    """Return a node (millicpu, MiB) and the slice of its GPUs, which are shared by capacity."""
    if not name or cpu < 0 or memory < 0:
        raise TraceError(
            f"a node {name[:60]!r} with {cpu} millicpu and {memory} MiB; every node needs a name"
        )
    if not 0 <= gpus <= 64:
        raise TraceError(f"node {name[:60]} has {gpus} GPUs; a list has at most 64")
    resources = {"cpu": f"{cpu}m", "memory": f"{memory}Mi", "pods": 10_000}
    node = msgspec.convert(
        {"metadata": {"name": name}, "status": {"capacity": resources, "allocatable": resources}}, Node
    )
    if not gpus:
        return node, None
    devices = [
        {
            "name": f"gpu-{number}",
            "allowMultipleAllocations": True,
            "attributes": {"model": {"string": model}},
            "capacity": {"share": {"value": "1"}},
        }
        for number in range(gpus)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return node, msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)
