"""Why claims do not fit, as text: per request and group of nodes, then what would help.

The allocator counts every device of a node under the first thing that keeps it out. A
person who asks for a GPU does not care that the node's NICs are not GPUs, so devices
outside the class are summed up in a number; the rest is told with the values that were
found, who holds what, and the nearest names and values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dray.allocator import SHARED_WITH, Explanation, Reason, RequestReasons
from dray.api.features import Features
from dray.api.resource import ResourceClaim
from dray.client import key_of
from dray.sim.snapshot import Snapshot
from dray.workbench.inventory import Inventory, requested_class
from dray.workbench.lint.fitting import Devices, compiled, nearest_names, nearest_value
from dray.workbench.lint.selectors import compared_with_text

MOST_GROUPS = 6
_READ = re.compile(r"(?:attributes|capacity) \S+?/(\S+) is ")
_DEVICE = re.compile(r"on device \S+: ")
_NO_KEY = re.compile(r"no such key: (\S+)")


def refusal_lines(explanation: Explanation, claims: Sequence[ResourceClaim], snapshot: Snapshot) -> list[str]:
    """Return the lines about every request that lacks devices, grouped by equal nodes."""
    holders = _holders(snapshot)
    lines: list[str] = []
    for error, places in _by_error(explanation).items():
        lines.append(f"{some_nodes(places) if places != [''] else 'every node'}: {error}")
    for nodes, requests in explanation.reasons[:MOST_GROUPS]:
        lines.append(f"{some_nodes(nodes)}:")
        short = [entry for entry in requests if entry.usable < max(entry.wanted, 1)] or list(requests)
        for entry in short:
            lines += [f"  {line}" for line in _request_lines(entry, claims, holders)]
    left = len(explanation.reasons) - MOST_GROUPS
    if left > 0:
        lines.append(f"… and {left} more kinds of nodes")
    return lines + list(nearest_lines(claims, snapshot))


def _by_error(explanation: Explanation) -> dict[str, list[str]]:
    """Return the nodes by their error; errors that differ only in the device are one."""
    found: dict[str, list[str]] = {}
    for node, error in explanation.errors.items():
        same = next((known for known in found if _DEVICE.sub("", known) == _DEVICE.sub("", error)), error)
        found.setdefault(same, []).append(node)
    return found


def some_nodes(nodes: Sequence[str], limit: int = 3) -> str:
    """Return the names of a few nodes and the number of the rest."""
    if len(nodes) <= limit:
        return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"
    return f"{len(nodes)} nodes like {nodes[0]}"


def _request_lines(
    entry: RequestReasons, claims: Sequence[ResourceClaim], holders: dict[str, str]
) -> Iterator[str]:
    foreign = [reason for reason in entry.reasons if reason.cause == "selector" and _is_class(reason)]
    own = [reason for reason in entry.reasons if reason not in foreign and reason.devices]
    of_class = entry.devices - sum(reason.devices for reason in foreign)
    name = class_of(entry, claims)
    wanted = f"{entry.wanted} x" if entry.wanted else "all"
    head = f"request {entry.request} of {entry.claim} wants {wanted} {name or 'devices'}: "
    if not of_class:
        yield head + f"none of its {entry.devices} devices is of this class"
        return
    if entry.usable >= max(entry.wanted, 1):
        yield head + f"{entry.usable} of {of_class} would do for this request alone"
    else:
        yield head + _usable(entry.usable, of_class)
    for reason in own:
        yield f"  {reason_text(reason, holders)}"
    for reason in entry.reasons:
        if reason.cause == "pool":
            yield f"  {reason.detail}"
    if entry.usable >= max(entry.wanted, 1) and entry.relaxation:
        yield f"  {entry.relaxation}"


def _usable(usable: int, of_class: int) -> str:
    if usable == of_class:
        return f"there are only {of_class}"
    return f"only {usable} of {of_class} can be used" if usable else f"none of the {of_class} can be used"


def _is_class(reason: Reason) -> bool:
    return reason.detail.startswith("class ")


def class_of(entry: RequestReasons, claims: Sequence[ResourceClaim]) -> str:
    """Return the device class that a request (or its alternative) asks for."""
    claim = next((each for each in claims if key_of(each.metadata) == entry.claim), None)
    return requested_class(claim, entry.request)


def reason_text(reason: Reason, holders: dict[str, str]) -> str:
    """Return one reason as a sentence part: how many devices, and what keeps them out."""
    detail, _, found = reason.detail.partition("; found: ")
    found = _READ.sub(r"\1 = ", found)
    match reason.cause:
        case "selector":
            expression = detail.removeprefix("request: ")
            return f"{reason.devices} do not match `{expression}`" + (f" (found {found})" if found else "")
        case "in-use":
            names = dict.fromkeys(holders.get(claim, claim) for claim in detail.split(", "))
            return f"{reason.devices} allocated to {', '.join(names)}"
        case "taint":
            return f"{reason.devices} tainted {detail}"
        case "error":
            return f"{reason.devices} where the selector fails: {detail}"
    if reason.cause == "capacity":
        before, _, claims = detail.partition(SHARED_WITH)
        names = dict.fromkeys(holders.get(claim, claim) for claim in claims.split(", ") if claim)
        detail = f"{before}{SHARED_WITH}{', '.join(names)}" if names else detail
    return f"{reason.devices} lack {reason.cause}: {detail}"


def _holders(snapshot: Snapshot) -> dict[str, str]:
    """Return claims with the pods that use them, for the eye."""
    found = {}
    for row in Inventory(snapshot).devices.values():
        for use in row.uses:
            if use.until is not None:
                found[use.claim] = str(use)
            else:
                found[use.claim] = f"{use.claim} (pod {', '.join(use.pods)})" if use.pods else use.claim
    return found


def nearest_lines(claims: Sequence[ResourceClaim], snapshot: Snapshot) -> Iterator[str]:
    """Yield names and values that exist, for those in selectors that do not."""
    devices = Devices(snapshot)
    seen: set[str] = set()
    for expression in _expressions(claims):
        program = compiled(expression, Features.default())
        if program is None:
            continue
        for (domain, name), literal in compared_with_text(program):
            values = [value for value in devices.attributes.get((domain, name), []) if isinstance(value, str)]
            if values and literal not in values:
                line = f"no device has {name} {literal!r}; {nearest_value(literal, values)}"
                if line not in seen:
                    seen.add(line)
                    yield line
        for what, reads, published in (
            ("attribute", program.reads.attributes, devices.attributes),
            ("capacity", program.reads.capacities, devices.capacities),
        ):
            for key in sorted(reads):
                if key not in published:
                    name = "/".join(key)
                    line = f"no device publishes the {what} {name}; {nearest_names(name, published)}"
                    if line not in seen:
                        seen.add(line)
                        yield line


def key_hints(message: str, snapshot: Snapshot) -> Iterator[str]:
    """Yield the nearest published names for a `no such key` error."""
    found = _NO_KEY.search(message)
    if found:
        devices = Devices(snapshot)
        name = found[1].strip("'\".,:;)")
        yield f"{name}: {nearest_names(name, {**devices.attributes, **devices.capacities})}"


def _expressions(claims: Sequence[ResourceClaim]) -> Iterator[str]:
    for claim in claims:
        for request in claim.spec.devices.requests:
            for option in [request.exactly] if request.exactly else request.first_available:
                for selector in option.selectors:
                    if selector.cel is not None:
                        yield selector.cel.expression
