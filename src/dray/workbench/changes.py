"""The smallest change that would make claims fit, found by trying.

Guessing from counts is wrong as soon as requests depend on each other, so every
candidate is asked of the allocator itself: one thing is changed (a holder freed, a
selector loosened, a count lowered, a constraint dropped, a taint tolerated), and what
then fits is reported. Single changes only; the cheapest kind comes first, and a change
of somebody else's claims is only offered for devices that are really in use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dray.allocator import AllocationError
from dray.api.features import Features
from dray.api.quantity import Quantity, QuantityError, parse_quantity
from dray.api.resource import (
    CELDeviceSelector,
    DeviceRequest,
    DeviceSelector,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimStatus,
)
from dray.cel import Program
from dray.client import key_of
from dray.sim.cluster import OfflineCluster
from dray.sim.other_users import HELD_UNTIL
from dray.workbench.lint.fitting import Devices, closest, compiled
from dray.workbench.lint.selectors import compared_with_text

MOST_HOLDERS = 40  # claims that are freed one by one, in search of one that suffices
MOST_CHANGES = 4
_AMOUNT = re.compile(r"""quantity\(["']([^"']+)["']\)""")

replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Change:
    """One change that would be enough."""

    text: str
    nodes: tuple[str, ...]  # where it would fit then


def smallest_changes(cluster: OfflineCluster, claims: Sequence[ResourceClaim]) -> list[Change]:
    """Return changes that each make the claims fit, at most a few, cheapest first."""
    found: list[Change] = []
    for change in _changes(cluster, claims):
        if change.text not in [known.text for known in found]:
            found.append(change)
        if len(found) >= MOST_CHANGES:
            break
    return found


def fitting_nodes(cluster: OfflineCluster, claims: Sequence[ResourceClaim]) -> tuple[str, ...]:
    """Return the nodes on which the claims fit; none when they cannot be allocated at all."""
    try:
        return tuple(cluster.allocator.plan_nodes(list(claims)).nodes)
    except AllocationError:
        return ()


def _changes(cluster: OfflineCluster, claims: Sequence[ResourceClaim]) -> Iterator[Change]:
    yield from _loosened(cluster, claims)
    yield from _freed(cluster, claims)


# --- changes of the claims themselves -------------------------------------------------------------


def _loosened(cluster: OfflineCluster, claims: Sequence[ResourceClaim]) -> Iterator[Change]:
    devices = Devices(cluster.snapshot)
    for position, claim in enumerate(claims):

        def fits(changed: ResourceClaim, position: int = position) -> tuple[str, ...]:
            return fitting_nodes(cluster, [*claims[:position], changed, *claims[position + 1 :]])

        for index, request in enumerate(claim.spec.devices.requests):
            if request.exactly is None:
                continue
            with_request = _replacer(claim, index, request)
            yield from _other_values(request.name, request.exactly, with_request, fits, devices)
            yield from _tolerating(cluster, request.name, request.exactly, with_request, fits)
            yield from _without_selector(request.name, request.exactly, with_request, fits)
            yield from _fewer(request.name, request.exactly, with_request, fits)
            yield from _less_capacity(request.name, request.exactly, with_request, fits)
        constraints = claim.spec.devices.constraints
        for index, constraint in enumerate(constraints):
            devices_spec = replace(
                claim.spec.devices, constraints=[*constraints[:index], *constraints[index + 1 :]]
            )
            nodes = fits(replace(claim, spec=replace(claim.spec, devices=devices_spec)))
            if nodes:
                word = "matchAttribute" if constraint.match_attribute else "distinctAttribute"
                name = constraint.match_attribute or constraint.distinct_attribute
                yield Change(f"drop the constraint {word} {name}", nodes)


_WithRequest = Callable[[ExactDeviceRequest], ResourceClaim]
_Fits = Callable[[ResourceClaim], tuple[str, ...]]


def _replacer(claim: ResourceClaim, index: int, request: DeviceRequest) -> _WithRequest:
    def with_request(exactly: ExactDeviceRequest) -> ResourceClaim:
        requests = list(claim.spec.devices.requests)
        requests[index] = replace(request, exactly=exactly)
        return replace(
            claim, spec=replace(claim.spec, devices=replace(claim.spec.devices, requests=requests))
        )

    return with_request


def _other_values(
    name: str, exactly: ExactDeviceRequest, with_request: _WithRequest, fits: _Fits, devices: Devices
) -> Iterator[Change]:
    """Try what devices publish in place of names, texts and amounts that no device has."""
    for index, selector in enumerate(exactly.selectors):
        expression = selector.cel.expression if selector.cel else ""
        program = compiled(expression, Features.default())
        if program is None:
            continue
        helped: set[str] = set()  # the largest amount that fits is enough to know
        for old, new, changed in _rewritten(program, devices):
            if old in helped:
                continue
            selectors = list(exactly.selectors)
            selectors[index] = DeviceSelector(cel=CELDeviceSelector(expression=changed))
            nodes = fits(with_request(replace(exactly, selectors=selectors)))
            if nodes:
                helped.add(old)
                yield Change(f"request {name}: write {new} instead of {old}", nodes)


def _rewritten(program: Program, devices: Devices) -> Iterator[tuple[str, str, str]]:
    """Yield (old, new, expression) for each single replacement worth trying."""
    expression = program.expression
    for domain, name in sorted(program.reads.attributes):
        if (domain, name) not in devices.attributes:
            near = closest(name, [key[1] for key in devices.attributes if key[0] == domain])
            if near is not None:
                yield name, near, re.sub(rf"\b{re.escape(name)}\b", near, expression)
    for key, literal in compared_with_text(program):
        values = [value for value in devices.attributes.get(key, []) if isinstance(value, str)]
        near = closest(literal, values)
        if near is None or near == literal:
            continue
        for quote in "\"'":
            if f"{quote}{literal}{quote}" in expression:
                changed = expression.replace(f"{quote}{literal}{quote}", f"{quote}{near}{quote}")
                yield repr(literal), repr(near), changed
    published = {
        value for key in program.reads.capacities for value in devices.capacities.get(key, [])
        if isinstance(value, Quantity)
    }  # fmt: skip
    for found in _AMOUNT.finditer(expression):
        try:
            wanted = parse_quantity(found[1])
        except QuantityError:
            continue
        for smaller in sorted((value for value in published if value < wanted), reverse=True)[:MOST_CHANGES]:
            changed = expression[: found.start(1)] + str(smaller) + expression[found.end(1) :]
            yield found[1], str(smaller), changed


def _without_selector(
    name: str, exactly: ExactDeviceRequest, with_request: _WithRequest, fits: _Fits
) -> Iterator[Change]:
    for index, selector in enumerate(exactly.selectors):
        rest = [*exactly.selectors[:index], *exactly.selectors[index + 1 :]]
        nodes = fits(with_request(replace(exactly, selectors=rest)))
        if nodes:
            text = " ".join((selector.cel.expression if selector.cel else "").split())
            yield Change(f"request {name}: drop or loosen the selector `{text}`", nodes)


def _fewer(
    name: str, exactly: ExactDeviceRequest, with_request: _WithRequest, fits: _Fits
) -> Iterator[Change]:
    low, high = 0, max(exactly.count, 1)  # fits with `low`, not with `high`
    best: tuple[str, ...] = ()
    while high - low > 1:
        middle = (low + high) // 2
        nodes = fits(with_request(replace(exactly, count=middle)))
        if nodes:
            low, best = middle, nodes
        else:
            high = middle
    if low:
        yield Change(f"request {name}: ask for {low} instead of {exactly.count}", best)


def _less_capacity(
    name: str, exactly: ExactDeviceRequest, with_request: _WithRequest, fits: _Fits
) -> Iterator[Change]:
    if exactly.capacity is None or not exactly.capacity.requests:
        return
    nodes = fits(with_request(replace(exactly, capacity=None)))
    if nodes:
        wanted = ", ".join(f"{key}={value}" for key, value in exactly.capacity.requests.items())
        yield Change(f"request {name}: lower or drop the capacity request {wanted}", nodes)


def _tolerating(
    cluster: OfflineCluster, name: str, exactly: ExactDeviceRequest, with_request: _WithRequest, fits: _Fits
) -> Iterator[Change]:
    taints = {
        (taint.key, taint.effect): taint
        for found in cluster.snapshot.slices
        for device in found.spec.devices
        for taint in device.taints
        if taint.effect != "None"
    }
    for rule in cluster.snapshot.taint_rules:
        taints.setdefault((rule.spec.taint.key, rule.spec.taint.effect), rule.spec.taint)
    for taint in taints.values():
        toleration = DeviceToleration(key=taint.key, operator="Exists", effect=taint.effect)
        nodes = fits(with_request(replace(exactly, tolerations=[*exactly.tolerations, toleration])))
        if nodes:
            yield Change(f"request {name}: tolerate the taint {taint.key}:{taint.effect}", nodes)


# --- changes of others ------------------------------------------------------------------------------


def _freed(cluster: OfflineCluster, claims: Sequence[ResourceClaim]) -> Iterator[Change]:
    holders = [claim for claim in cluster.claims.values() if claim.status.allocation is not None]
    if not holders:
        return
    for holder in sorted(holders, key=lambda claim: len(claim.status.reserved_for))[:MOST_HOLDERS]:
        cluster.set_claim(replace(holder, status=ResourceClaimStatus()))
        try:
            nodes = fitting_nodes(cluster, claims)
        finally:
            cluster.set_claim(holder)
        if nodes:
            yield Change(f"free the devices of {_holder_text(holder)}", nodes)
            return
    for holder in holders:
        cluster.set_claim(replace(holder, status=ResourceClaimStatus()))
    try:
        nodes = fitting_nodes(cluster, claims)
    finally:
        for holder in holders:
            cluster.set_claim(holder)
    if nodes:
        yield Change("free devices that others hold: no single claim is enough", nodes)


def _holder_text(holder: ResourceClaim) -> str:
    if HELD_UNTIL in (
        holder.metadata.annotations or {}
    ):  # of another user: claim and pod are not known by name
        return f"a job of {holder.metadata.namespace}"
    users = ", ".join(user.name for user in holder.status.reserved_for)
    return f"claim {key_of(holder.metadata)}" + (f" (pod {users})" if users else " (nobody uses it)")


__all__ = ["Change", "fitting_nodes", "smallest_changes"]
