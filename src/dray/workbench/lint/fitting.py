"""Manifests against a cluster: which devices do the selectors see, and could it ever fit?

Selectors are asked about every published device, in the order of the allocator: first
those of the class, then, on what is left, those of the request. Devices that agree in
what a selector reads are asked once. Whether a pod or claim can ever fit is asked of
the scheduler itself, on the same cluster with nobody in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dray.allocator import AllocationError, Explanation
from dray.api.features import Features
from dray.api.json_types import JsonObject
from dray.api.resource import ResourceClaim
from dray.api.semver import Semver
from dray.cel import CelError, CompileError, DeviceInput, Program, compile_selector, explain_false
from dray.client import key_of
from dray.scheduler import NotReady, Unplaceable
from dray.sim.cluster import OfflineCluster
from dray.sim.snapshot import Snapshot, SnapshotError
from dray.workbench.inventory import Inventory
from dray.workbench.lint.findings import INFO, Problem, error, warning
from dray.workbench.lint.objects import claim_spec_of, exact_requests, selectors_of
from dray.workbench.lint.partial_claims import check_whole_hosts
from dray.workbench.lint.references import Known
from dray.workbench.lint.selectors import compared_with_text, is_guarded, version_hint

_MOST_REASONS = 3


class Devices:
    """The devices of a cluster as selectors see them."""

    def __init__(self, cluster: Snapshot) -> None:
        self.names: list[str] = []
        self.inputs: list[DeviceInput] = []
        for key, row in Inventory(cluster).devices.items():
            device = row.device
            self.names.append("/".join(key))
            self.inputs.append(
                DeviceInput.build(
                    row.driver, device.attributes, device.capacity, device.allow_multiple_allocations
                )
            )
        self.attributes = _published(device.attributes for device in self.inputs)
        self.capacities = _published(device.capacity for device in self.inputs)

    def matching(self, programs: Sequence[Program], among: Sequence[int] | None = None) -> list[int]:
        """Return the devices on which all programs are true; failures count as false."""
        found = list(range(len(self.inputs)) if among is None else among)
        for program in programs:
            answers = self.verdicts(program, found)
            found = [index for index in found if answers[index] is True]
        return found

    def verdicts(self, program: Program, among: Sequence[int]) -> dict[int, bool | str]:
        """Return true, false or an error text for each device."""
        known: dict[object, bool | str] = {}
        answers: dict[int, bool | str] = {}
        for index in among:
            key = program.reads.project(self.inputs[index])
            if key is None or key not in known:
                outcome = program.outcome(self.inputs[index])
                answer: bool | str = outcome.error or bool(outcome.value)
                if key is not None:
                    known[key] = answer
            else:
                answer = known[key]
            answers[index] = answer
        return answers


def _published(maps: Iterable[dict[Any, Any]]) -> dict[tuple[str, str], list[object]]:
    """Return every published name with its distinct values, at most a few."""
    found: dict[tuple[str, str], list[object]] = {}
    for domains in maps:
        for domain, names in domains.items():
            for name, value in names.items():
                values = found.setdefault((str(domain), str(name)), [])
                if len(values) < 64 and not any(value is known or value == known for known in values):
                    values.append(value)
    return found


# --- selectors on devices -------------------------------------------------------------------


def check_selectors(
    stored: JsonObject, known: Known, devices: Devices, features: Features
) -> Iterator[Problem]:
    """Yield what the devices of the cluster say about an object's selectors."""
    if stored.get("kind") == "DeviceClass":
        yield from _class_problems(stored, devices, features)
        return
    found = claim_spec_of(stored)
    if found is None:
        return
    path, spec = found
    yield from check_whole_hosts(stored, devices.attributes)
    by_path = {
        request_path: list(_request_problems(request_path, request, known, devices, features))
        for request_path, request in exact_requests(stored)
    }
    for request_path, problems in by_path.items():
        yield from _of_alternative(request_path, problems, by_path)
    for index, constraint in enumerate((spec.get("devices") or {}).get("constraints") or []):
        for word in ("matchAttribute", "distinctAttribute"):
            name = constraint.get(word)
            derived = {
                (entry or {}).get("name")
                for _, request in exact_requests(stored)
                for entry in request.get("derivedAttributes") or []
            }
            if name and name not in derived:
                yield from _unpublished_name(
                    str(name), f"{path}.devices.constraints[{index}].{word}", devices
                )


def _of_alternative(
    path: str, problems: list[Problem], by_path: Mapping[str, list[Problem]]
) -> Iterator[Problem]:
    """Yield the problems of a request; that an alternative matches nothing is a note while another one matches."""
    request, is_alternative, _ = path.partition(".firstAvailable[")
    others = [found for other, found in by_path.items() if other.startswith(f"{request}.firstAvailable[")]
    has_choice = bool(is_alternative) and any(
        all(problem.code != "matches-nothing" for problem in found) for found in others
    )
    for problem in problems:
        yield replace(problem, severity=INFO) if has_choice and problem.code == "matches-nothing" else problem


def _class_problems(stored: JsonObject, devices: Devices, features: Features) -> Iterator[Problem]:
    among: list[int] = list(range(len(devices.inputs)))
    for place in selectors_of(stored):
        program = compiled(place.expression, features)
        if program is None:
            return
        yield from _selector_problems(program, place.path, devices, among, "the class")
        among = devices.matching([program], among)


def _request_problems(
    path: str, request: JsonObject, known: Known, devices: Devices, features: Features
) -> Iterator[Problem]:
    class_name = str(request.get("deviceClassName") or "")
    device_class = known.classes.get(class_name)
    if device_class is None:
        return
    programs = [compiled(place.expression, features) for place in selectors_of(device_class)]
    among = devices.matching([program for program in programs if program is not None])
    if not among:
        yield warning(
            "matches-nothing",
            f"{path}.deviceClassName",
            f"class {class_name} selects none of the {len(devices.inputs)} devices of the cluster",
            "is the driver installed, and does it publish?",
        )
        return
    for index, selector in enumerate(request.get("selectors") or []):
        expression = ((selector or {}).get("cel") or {}).get("expression") or ""
        program = compiled(expression, features)
        if program is None:
            return
        place = f"{path}.selectors[{index}].cel.expression"
        yield from _selector_problems(program, place, devices, among, f"class {class_name}")
        among = devices.matching([program], among)
    for name in (request.get("capacity") or {}).get("requests") or {}:
        full = tuple(name.split("/", 1)) if "/" in name else None
        if not any(key == full or (full is None and key[1] == name) for key in devices.capacities):
            yield error(
                "unknown-attribute",
                f"{path}.capacity.requests[{name}]",
                f"no device publishes the capacity {name}",
                nearest_names(name, devices.capacities),
            )


def compiled(expression: str, features: Features) -> Program | None:
    """Return the program, or None for an expression that was already complained about."""
    try:
        return compile_selector(expression, features=features)
    except CompileError:
        return None


def _selector_problems(
    program: Program, path: str, devices: Devices, among: list[int], scope: str
) -> Iterator[Problem]:
    if not among:
        return
    unpublished = list(_unpublished_reads(program, path, devices))
    yield from unpublished
    mistyped = list(_mistyped(program, path, devices))
    yield from mistyped
    answers = devices.verdicts(program, among)
    failures = {index: answer for index, answer in answers.items() if isinstance(answer, str)}
    if failures and not unpublished and not mistyped:
        index, message = next(iter(failures.items()))
        yield error(
            "cel-fails",
            path,
            f"fails on {len(failures)} of {len(among)} devices of {scope} ({devices.names[index]}: {message}); "
            "one failure stops the whole allocation",
            "test with has(…) or .?name.orValue(…) before reading what only some devices have",
        )
    elif not any(answer is True for answer in answers.values()) and not unpublished and not mistyped:
        yield warning(
            "matches-nothing",
            path,
            f"matches none of the {len(among)} devices of {scope}{_first_false(program, devices, among)}",
            _nearest_values(program, devices),
        )


def _first_false(program: Program, devices: Devices, among: list[int]) -> str:
    """Name the term that decides against most devices."""
    counts: dict[str, int] = {}
    seen: dict[str, dict[str, None]] = {}
    answers: dict[object, object] = {}
    for index in among:
        key = program.reads.project(devices.inputs[index])
        try:
            if key is None or key not in answers:
                answers[key] = explain_false(program, devices.inputs[index])
        except CelError:
            continue
        term: Any = answers[key]
        if term is not None:
            counts[term.text] = counts.get(term.text, 0) + 1
            for name, value in term.values.items():
                seen.setdefault(term.text, {})[f"{name.rpartition('/')[2]} = {value}"] = None
    if not counts:
        return ""
    text = max(counts, key=lambda found: counts[found])
    values = list(seen.get(text, {}))[:4]
    return f": `{text}` is false on {counts[text]}" + (f" ({'; '.join(values)})" if values else "")


def _unpublished_reads(program: Program, path: str, devices: Devices) -> Iterator[Problem]:
    for what, reads, published in (
        ("attribute", program.reads.attributes, devices.attributes),
        ("capacity", program.reads.capacities, devices.capacities),
    ):
        for domain, name in sorted(reads):
            if (domain, name) in published:
                continue
            message = f"no device publishes the {what} {domain}/{name}"
            hint = nearest_names(f"{domain}/{name}", published)
            if is_guarded(program, name):
                yield warning("unknown-attribute", path, message, hint)
            else:
                yield error("unknown-attribute", path, f"{message}: the selector fails", hint)


def _mistyped(program: Program, path: str, devices: Devices) -> Iterator[Problem]:
    for (domain, name), literal in compared_with_text(program):
        values = devices.attributes.get((domain, name), [])
        if values and all(isinstance(value, Semver) for value in values):
            yield error(
                "version-as-text",
                path,
                f"{domain}/{name} is a version ({values[0]}), compared with the text {literal!r}",
                version_hint(domain, name, literal),
            )
        elif values and not any(isinstance(value, str) for value in values):
            yield error(
                "version-as-text",
                path,
                f"{domain}/{name} is {values[0]!r}, compared with the text {literal!r}",
                "compare it without quotes",
            )


def _unpublished_name(name: str, path: str, devices: Devices) -> Iterator[Problem]:
    domain, _, identifier = name.partition("/")
    # A name without domain is refused by validation, with the same advice.
    if identifier and (domain, identifier) not in devices.attributes:
        yield error(
            "unknown-attribute",
            path,
            f"no device publishes {name}, so no two devices can agree on it",
            nearest_names(name, devices.attributes),
        )


def nearest_names(name: str, published: dict[tuple[str, str], list[object]]) -> str:
    """Return the published names that look alike: same name elsewhere first, then similar spelling."""
    domain, _, identifier = name.rpartition("/")
    listed = sorted("/".join(key) for key in published)
    same = [full for full in listed if full.rpartition("/")[2].lower() == identifier.lower()]
    similar = [
        f"{key[0]}/{key[1]}"
        for key in published
        if (not domain or key[0] == domain)
        and difflib.SequenceMatcher(None, key[1].lower(), identifier.lower()).ratio() >= 0.6
    ]
    near = list(dict.fromkeys([*same, *similar, *difflib.get_close_matches(name, listed, n=3, cutoff=0.8)]))
    if near:
        return f"nearest: {', '.join(near[:3])}"
    there = [key[1] for key in published if key[0] == domain]
    if there:
        return f"{domain} publishes: {', '.join(sorted(there)[:12])}"
    domains = sorted({key[0] for key in published})
    return f"published domains: {', '.join(domains)}" if domains else "no device publishes any"


def _nearest_values(program: Program, devices: Devices) -> str:
    parts = []
    for (domain, name), literal in compared_with_text(program):
        values = [value for value in devices.attributes.get((domain, name), []) if isinstance(value, str)]
        if values and literal not in values:
            parts.append(f"{name}: wanted {literal!r}, {nearest_value(literal, values)}")
    return "; ".join(parts)


def closest(wanted: str, values: Sequence[str]) -> str | None:
    """Return the value that is most like the wanted one; None when none is alike."""
    lower = {value.lower(): value for value in values}
    contained = [low for low in lower if wanted.lower() in low or low in wanted.lower()]
    near = contained[:1] or difflib.get_close_matches(wanted.lower(), list(lower), n=1, cutoff=0.5)
    return lower[near[0]] if near else None


def nearest_value(wanted: str, values: Sequence[str]) -> str:
    """Return which of the values is nearest to the wanted one, or which there are."""
    near = closest(wanted, values)
    if near is not None:
        return f"nearest: {near!r}"
    return f"there are: {', '.join(map(repr, sorted(values)[:4]))}"


# --- could it ever fit? -----------------------------------------------------------------------


def emptied(cluster: Snapshot) -> Snapshot:
    """Return the cluster with nobody in it."""
    empty = Snapshot(features=cluster.features)
    for obj in cluster.objects:
        if obj.get("kind") == "Pod":
            continue
        if obj.get("kind") == "ResourceClaim":
            obj = {key: value for key, value in obj.items() if key != "status"}
        empty.add(obj)
    return empty


class Fitting:
    """Asks the scheduler whether objects fit an empty cluster."""

    def __init__(self, cluster: Snapshot, files: Iterable[JsonObject]) -> None:
        snapshot = emptied(cluster)
        kinds = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "DeviceTaintRule")
        extra = Snapshot(features=cluster.features)
        for stored in files:
            if stored.get("kind") in kinds:
                extra.add({key: value for key, value in stored.items() if key != "status"})
        self.cluster = OfflineCluster(snapshot.merged(extra))
        self.features = cluster.features

    def check_claim(self, stored: JsonObject) -> Iterator[Problem]:
        """Yield why a claim or a template's claims can never be allocated."""
        found = claim_spec_of(stored)
        if found is None:
            return
        path, spec = found
        metadata = stored.get("metadata") or {}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": spec,
        }
        claim = _claim_of(body)
        if claim is None or any(name not in self.cluster.allocator.classes for name in _class_names(stored)):
            return
        try:
            explanation = self.cluster.explain_claims([claim])
        except AllocationError as failure:
            yield error("never-fits", f"{path}.devices", f"cannot be allocated anywhere: {failure}")
            return
        if not explanation.fits:
            yield error(
                "never-fits",
                f"{path}.devices",
                f"does not fit any node, not even with nobody else in the cluster: {shortfall(explanation)}",
                "ask for less, or try other hardware with `dray whatif --add-node PROFILE`",
            )

    def check_pod(self, pod: JsonObject) -> Iterator[Problem]:
        """Yield why a pod can never be placed, when its claims alone could."""
        holder = Snapshot(features=self.features)
        try:
            holder.add({key: value for key, value in pod.items() if key != "status"})
        except (SnapshotError, ValueError):
            return
        added = self.cluster.add_pod(holder.pods[0])
        claims = self.cluster.claims_of(added)
        try:
            if isinstance(claims, NotReady):
                return
            answer = self.cluster.decide(added)
            if isinstance(answer, Unplaceable):
                yield error(
                    "never-fits",
                    "spec",
                    f"no node takes this pod, not even with nobody else in the cluster: {answer.explain()}",
                    "`dray explain pod NAME -f FILE --against …` tells more",
                )
        except AllocationError:
            return  # the claim itself was reported
        finally:
            self.cluster.pods.pop(key_of(added.metadata), None)


def shortfall(explanation: Explanation) -> str:
    """Say in one line which request lacks what, on the nodes that come nearest."""
    best: tuple[int, str] | None = None
    for nodes, requests in explanation.reasons:
        for entry in requests:
            wanted = max(entry.wanted, 1)
            if entry.usable >= wanted:
                continue
            where = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} like it"
            amount = "all matching" if not entry.wanted else str(entry.wanted)
            refusals = [f"{r.devices} refused by {r.detail}" for r in entry.reasons if r.devices]
            text = f"request {entry.request} wants {amount}, {where} has {entry.usable} of {entry.devices} usable"
            text += f" ({'; '.join(refusals[:_MOST_REASONS])})" if refusals else ""
            if best is None or entry.usable > best[0]:
                best = entry.usable, text
    if best is not None:
        return best[1]
    hints = [
        entry.relaxation for _, requests in explanation.reasons for entry in requests if entry.relaxation
    ]
    return hints[0] if hints else "the requests together find no devices"


def _class_names(stored: JsonObject) -> list[str]:
    return [str(request.get("deviceClassName")) for _, request in exact_requests(stored)]


def _claim_of(body: JsonObject) -> ResourceClaim | None:
    holder = Snapshot()
    try:
        holder.add(body)
    except (SnapshotError, ValueError):
        return None
    return holder.claims[0]
