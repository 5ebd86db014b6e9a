"""Are the allocations right? An independent judge: own code, plain JSON, no allocator.

`Ledger` follows claims one by one (events of a watch, or a list) and says at every step
what is wrong: an exclusive device with two owners, a share id used twice, a capacity or
a counter exceeded, devices in use that are not compatible. `check_state` judges a whole
cluster at rest: counts, selectors (by a function that the caller brings), constraints,
nodes, reservations.

What it judges is the state on the server only; it knows nothing of how it came about.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

Object = dict[str, Any]
DeviceKey = tuple[str, str, str]  # driver, pool, device

_UNITS = {
    "": Fraction(1),
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}


def amount(text: Any) -> Fraction:
    """Read a quantity as an exact fraction."""
    text = str(text)
    for suffix in sorted(_UNITS, key=len, reverse=True):
        if suffix and text.endswith(suffix):
            return Fraction(text[: -len(suffix)]) * _UNITS[suffix]
    return Fraction(text)


def results_of(claim: Object) -> list[Object]:
    """Return the allocation results of a claim, none when it has no allocation."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def device_key(result: Object) -> DeviceKey:
    """Return the identity of the device of a result."""
    return result["driver"], result["pool"], result["device"]


class Inventory:
    """The devices and counters of the newest generation of each pool."""

    def __init__(self, slices: Iterable[Object]) -> None:
        self.devices: dict[DeviceKey, tuple[Object, Object]] = {}  # -> (device, slice spec)
        self.limits: dict[tuple[str, str, str, str], Fraction] = {}
        specs = [each["spec"] for each in slices]
        newest: dict[tuple[str, str], int] = defaultdict(int)
        for spec in specs:
            pool = (spec["driver"], spec["pool"]["name"])
            newest[pool] = max(newest[pool], spec["pool"].get("generation", 0))
        for spec in specs:
            driver, pool = spec["driver"], spec["pool"]["name"]
            if spec["pool"].get("generation", 0) != newest[driver, pool]:
                continue
            for device in spec.get("devices") or ():
                self.devices[driver, pool, device["name"]] = (device, spec)
            for counters in spec.get("sharedCounters") or ():
                for name, counter in counters["counters"].items():
                    self.limits[driver, pool, counters["name"], name] = amount(counter["value"])


class Ledger:
    """Who holds what; every change is judged as it happens."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._held: dict[str, list[Object]] = {}  # claim uid -> results
        self._holders: dict[DeviceKey, dict[tuple[str, str | None], Object]] = defaultdict(dict)
        self._drawn: Counter[tuple[str, str, str, str]] = Counter()
        self._users: dict[tuple[str, str, str], dict[str, set[str]]] = defaultdict(
            dict
        )  # -> device -> groups

    def see(self, claim: Object, *, is_gone: bool = False) -> list[str]:
        """Take note of a claim as it is now; return what is wrong because of it."""
        uid, name = claim["metadata"]["uid"], claim["metadata"]["name"]
        for result in self._held.pop(uid, ()):
            self._release(uid, result)
        problems: list[str] = []
        for result in [] if is_gone else results_of(claim):
            if result.get("adminAccess"):
                continue
            key = device_key(result)
            if key not in self.inventory.devices:
                problems.append(f"{name}: device {key} is not published")
                continue
            problems += self._hold(uid, name, key, result)
            self._held.setdefault(uid, []).append(result)
        return problems

    def _hold(self, uid: str, name: str, key: DeviceKey, result: Object) -> Iterator[str]:
        device = self.inventory.devices[key][0]
        holders, share = self._holders[key], result.get("shareID")
        is_shareable = bool(device.get("allowMultipleAllocations"))
        if is_shareable != (share is not None):
            yield f"{name}: {key}: share id {share!r} although shareable is {is_shareable}"
        if holders and not is_shareable:
            yield f"{name}: {key} is already held by {[owner for owner, _ in holders]}"
        if any(other == share for _, other in holders) and is_shareable:
            yield f"{name}: {key}: share {share} is used twice"
        if not holders:
            yield from self._draw(key, device, +1)
        holders[uid, share] = result.get("consumedCapacity") or {}
        used: Counter[str] = Counter()
        for consumed in holders.values():
            for capacity, value in consumed.items():
                used[capacity] += amount(value)  # type: ignore[assignment]
        for capacity, total in used.items():
            if total > amount((device.get("capacity") or {}).get(capacity, {"value": 0})["value"]):
                yield f"{name}: {key}: {total} of capacity {capacity} is more than there is"

    def _release(self, uid: str, result: Object) -> None:
        key = device_key(result)
        held = self._holders[key].pop((uid, result.get("shareID")), None)
        if held is not None and not self._holders[key]:
            list(self._draw(key, self.inventory.devices[key][0], -1))

    def _draw(self, key: DeviceKey, device: Object, sign: int) -> Iterator[str]:
        for consumption in device.get("consumesCounters") or ():
            users = self._users[key[0], key[1], consumption["counterSet"]]
            if sign > 0:
                users[key[2]] = set(consumption.get("compatibilityGroups") or ())
                if any(users.values()) and not set.intersection(*users.values()):
                    yield f"counter set {consumption['counterSet']}: {users} have no group in common"
            else:
                users.pop(key[2], None)
            for name, counter in consumption["counters"].items():
                where = (key[0], key[1], consumption["counterSet"], name)
                self._drawn[where] += sign * amount(counter["value"])  # type: ignore[assignment]
                limit = self.inventory.limits.get(where, Fraction(0))
                if sign > 0 and self._drawn[where] > limit:
                    yield f"counter {where}: {self._drawn[where]} drawn of {limit}"


Matches = Callable[[str, str, Object], bool]  # (expression, driver, device) -> whether it matches


def check_claim(
    inventory: Inventory, classes: dict[str, Object], claim: Object, matches: Matches | None
) -> Iterator[str]:
    """Judge the allocation of one claim against what it asks for."""
    name, wanted_request = claim["metadata"]["name"], claim["spec"].get("devices") or {}
    results = results_of(claim)
    by_request: dict[str, list[Object]] = defaultdict(list)
    for result in results:
        by_request[result["request"].split("/")[0]].append(result)
    for request in wanted_request.get("requests") or ():
        got = by_request.pop(request["name"], [])
        wanted = request.get("exactly")
        if wanted is None:
            names = {result["request"] for result in got}
            chosen = [
                sub for sub in request["firstAvailable"] if names == {f"{request['name']}/{sub['name']}"}
            ]
            if not chosen:
                yield f"{name}: request {request['name']} has results of {sorted(names)}"
                continue
            wanted = chosen[0]
        count = wanted.get("count") or 1
        if wanted.get("allocationMode", "ExactCount") == "ExactCount" and len(got) != count:
            yield f"{name}: request {request['name']} got {len(got)} devices instead of {count}"
        if len({device_key(result) for result in got}) != len(got):
            yield f"{name}: request {request['name']} got one device twice"
        yield from _check_devices(name, inventory, classes, wanted, got, matches)
    if by_request:
        yield f"{name}: results for requests that do not exist: {sorted(by_request)}"
    derived = _derived_names(wanted_request)
    for constraint in wanted_request.get("constraints") or ():
        # What a derived attribute is only a CEL expression knows; those are for the tests themselves.
        if not derived & {constraint.get("matchAttribute"), constraint.get("distinctAttribute")}:
            yield from _check_constraint(name, inventory, constraint, results)


def _derived_names(wanted_request: Object) -> set[str]:
    entries = [
        entry
        for request in wanted_request.get("requests") or ()
        for entry in (request.get("exactly"), *(request.get("firstAvailable") or ()))
        if entry
    ]
    return {each["name"] for entry in entries for each in entry.get("derivedAttributes") or ()}


def _check_devices(
    name: str,
    inventory: Inventory,
    classes: dict[str, Object],
    wanted: Object,
    got: list[Object],
    matches: Matches | None,
) -> Iterator[str]:
    device_class = classes.get(wanted["deviceClassName"])
    selectors = [
        *((device_class or {}).get("spec", {}).get("selectors") or ()),
        *(wanted.get("selectors") or ()),
    ]
    for result in got:
        found = inventory.devices.get(device_key(result))
        if found is None:
            continue
        for selector in selectors if matches is not None else ():
            expression = selector["cel"]["expression"]
            if not matches(expression, result["driver"], found[0]):
                yield f"{name}: {device_key(result)} does not match {expression}"
        for capacity, value in ((wanted.get("capacity") or {}).get("requests") or {}).items():
            consumed = (result.get("consumedCapacity") or {}).get(capacity)
            if consumed is not None and amount(consumed) < amount(value):
                yield f"{name}: {device_key(result)} gives {consumed} of {capacity}, {value} was asked for"


def _check_constraint(
    name: str, inventory: Inventory, constraint: Object, results: list[Object]
) -> Iterator[str]:
    among = constraint.get("requests") or []
    attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute")
    values = []
    for result in results:
        request = result["request"]
        if among and request not in among and request.split("/")[0] not in among:
            continue
        found = inventory.devices.get(device_key(result))
        if found is not None:
            values.append(_values(result["driver"], found[0], attribute))
    if not values:
        return
    if constraint.get("matchAttribute"):
        holds = bool(set.intersection(*values))
    else:
        holds = all(values) and sum(map(len, values)) == len(set.union(*values))
    if not holds:
        yield f"{name}: constraint on {attribute} does not hold: {values}"


def _values(driver: str, device: Object, name: str) -> set[tuple[str, Any]]:
    """Return the values of an attribute with their types: one, those of a list, or none at all."""
    attributes = device.get("attributes") or {}
    domain, _, short = name.partition("/")
    value = attributes.get(name) or (attributes.get(short) if domain == driver else None) or {}
    return {
        (kind.removesuffix("s"), each)
        for kind, content in value.items()
        for each in (content if isinstance(content, list) else [content])
    }


def check_pod(
    pod: Object, claims: dict[tuple[str, str], Object], inventory: Inventory, nodes: dict[str, Object]
) -> Iterator[str]:
    """Judge a bound pod: its claims are allocated, reserved for it, and usable on its node."""
    meta, node = pod["metadata"], pod["spec"].get("nodeName")
    if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return
    made = {
        each["name"]: each.get("resourceClaimName")
        for each in pod["status"].get("resourceClaimStatuses") or ()
    }
    group = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name is None and entry["name"] in made:
            continue
        claim = claims.get((meta["namespace"], name or ""))
        if claim is None or not (claim.get("status") or {}).get("allocation"):
            yield f"pod {meta['name']} is bound, its claim {name} is missing or not allocated"
            continue
        consumers = claim["status"].get("reservedFor") or ()
        if not any(each["uid"] == meta["uid"] or (group and each["name"] == group) for each in consumers):
            yield f"pod {meta['name']} is bound, its claim {name} is not reserved for it"
        for result in results_of(claim):
            found = inventory.devices.get(device_key(result))
            if found is not None and not _serves(found, node, nodes.get(node)):
                yield f"pod {meta['name']} is on {node}, where {device_key(result)} cannot be used"


def _serves(found: tuple[Object, Object], name: str, node: Object | None) -> bool:
    device, spec = found
    place = device if spec.get("perDeviceNodeSelection") else spec
    if place.get("nodeName"):
        return place["nodeName"] == name
    if place.get("allNodes"):
        return True
    labels = ((node or {}).get("metadata") or {}).get("labels") or {}
    terms = (place.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    return any(all(_holds(need, labels) for need in term.get("matchExpressions") or ()) for term in terms)


def _holds(need: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(need["key"]), need.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(need["operator"], True)


def check_state(
    *,
    slices: list[Object],
    classes: list[Object],
    claims: list[Object],
    pods: list[Object],
    nodes: list[Object],
    matches: Matches | None = None,
) -> list[str]:
    """Judge a cluster at rest; returns what is wrong, nothing when all is well."""
    inventory = Inventory(slices)
    ledger = Ledger(inventory)
    class_by_name = {each["metadata"]["name"]: each for each in classes}
    node_by_name = {each["metadata"]["name"]: each for each in nodes}
    claim_by_key = {(each["metadata"]["namespace"], each["metadata"]["name"]): each for each in claims}
    problems: list[str] = []
    for claim in claims:
        problems += ledger.see(claim)
        if results_of(claim):
            problems += check_claim(inventory, class_by_name, claim, matches)
    for pod in pods:
        problems += check_pod(pod, claim_by_key, inventory, node_by_name)
    return problems
