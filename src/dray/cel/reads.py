"""Which parts of a device an expression looks at.

Devices that agree in those parts get the same answer, so one evaluation serves them
all: `ReadSet.project` is the key to group devices by.

Theory of operation: follow `device` through the tree. Selecting with a constant
leads from the device to its attributes, to a domain, to a leaf; a leaf is a read.
Variables of `cel.bind` are followed, too. Where a whole map escapes (is iterated,
compared, sized) or is indexed with something computed, everything is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dray.cel.device import DeviceInput
from dray.cel.syntax import Call, Fold, Ident, Literal, Node, Select, children
from dray.cel.values import MISSING

Key = tuple[str, str]  # domain, id


@dataclass(frozen=True, slots=True)
class ReadSet:
    """What an expression reads; `everything` overrules the rest."""

    attributes: frozenset[Key] = frozenset()
    capacities: frozenset[Key] = frozenset()
    driver: bool = False
    allow_multiple_allocations: bool = False
    everything: bool = False
    _attribute_order: tuple[Key, ...] = field(default=(), repr=False)
    _capacity_order: tuple[Key, ...] = field(default=(), repr=False)

    def project(self, device: DeviceInput) -> tuple[object, ...] | None:
        """Return a hashable key that is equal for devices with equal answers; None: no such key."""
        if self.everything:
            return None
        key: list[object] = [device.poison]
        if self.driver:
            key.append(device.driver)
        if self.allow_multiple_allocations:
            key.append(device.allow_multiple_allocations)
        for domain, name in self._attribute_order:
            value = _entry(device.attributes, domain, name)
            # Python takes True for 1: keep types apart.
            key.append(type(value))
            key.append(_frozen(value))
        for domain, name in self._capacity_order:
            key.append(_entry(device.capacity, domain, name))
        return tuple(key)

    def union(self, other: ReadSet) -> ReadSet:
        """Return what two expressions read together."""
        return _make(
            self.attributes | other.attributes,
            self.capacities | other.capacities,
            driver=self.driver or other.driver,
            multiple=self.allow_multiple_allocations or other.allow_multiple_allocations,
            everything=self.everything or other.everything,
        )

    def __str__(self) -> str:
        if self.everything:
            return "everything"
        words = [f"attributes {domain}/{name}" for domain, name in self._attribute_order]
        words += [f"capacity {domain}/{name}" for domain, name in self._capacity_order]
        words += ["driver"] if self.driver else []
        words += ["allowMultipleAllocations"] if self.allow_multiple_allocations else []
        return ", ".join(words) or "nothing"


def _entry(domains: dict[object, object], domain: str, name: str) -> object:
    inner = domains.get(domain)
    return inner.get(name, MISSING) if isinstance(inner, dict) else MISSING


def _frozen(value: object) -> object:
    return tuple((type(item), item) for item in value) if isinstance(value, list) else value


def _make(
    attributes: frozenset[Key], capacities: frozenset[Key], *, driver: bool, multiple: bool, everything: bool
) -> ReadSet:
    return ReadSet(
        attributes,
        capacities,
        driver,
        multiple,
        everything,
        tuple(sorted(attributes)),
        tuple(sorted(capacities)),
    )


Place = tuple[str, ...]  # ("device",), ("attributes",), ("attributes", domain), ...


def reads_of(tree: Node) -> ReadSet:
    """Return what an expression reads."""
    finder = _Finder()
    finder.use(tree, {})
    return _make(
        frozenset(finder.attributes),
        frozenset(finder.capacities),
        driver=finder.driver,
        multiple=finder.multiple,
        everything=finder.everything,
    )


class _Finder:
    def __init__(self) -> None:
        self.attributes: set[Key] = set()
        self.capacities: set[Key] = set()
        self.driver = False
        self.multiple = False
        self.everything = False

    def use(self, node: Node, scope: dict[str, Place | None]) -> None:
        """Visit an expression whose value is used as a whole."""
        if self.place(node, scope) is not None:
            self.everything = True

    def place(self, node: Node, scope: dict[str, Place | None]) -> Place | None:
        """Visit an expression; return where in the device its value lies, if it is not a leaf."""
        match node:
            case Ident():
                if node.name in scope:
                    return scope[node.name]
                return ("device",) if node.name.removeprefix(".") == "device" else None
            case Select() if node.constant is None:
                return self._step(self.place(node.operand, scope), node.name)
            case Call(function="_[_]" | "_[?_]" | "_?._"):
                return self._indexed(node, scope)
            case Call(function="@in", args=[Literal(value=str() as name), container]):
                self._membership(self.place(container, scope), name)
                return None
            case Fold():
                return self._fold(node, scope)
        for child in children(node):
            self.use(child, scope)
        return None

    def _step(self, place: Place | None, name: str) -> Place | None:
        if place is None:
            return None
        if place == ("device",):
            if name in ("attributes", "capacity"):
                return (name,)
            self.driver = self.driver or name == "driver"
            self.multiple = self.multiple or name == "allowMultipleAllocations"
            return None
        if len(place) == 1:
            return (place[0], name)
        (self.attributes if place[0] == "attributes" else self.capacities).add((place[1], name))
        return None

    def _indexed(self, node: Call, scope: dict[str, Place | None]) -> Place | None:
        place = self.place(node.args[0], scope)
        key = node.args[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return self._step(place, key.value)
        self.use(key, scope)
        self.everything = self.everything or place is not None
        return None

    def _membership(self, place: Place | None, name: str) -> None:
        if place is None:
            return
        if len(place) == 2:
            self._step(place, name)
        else:
            self.everything = True

    def _fold(self, node: Fold, scope: dict[str, Place | None]) -> Place | None:
        bound = self.place(node.accu_init, scope)
        self.use(node.iter_range, scope)
        inner: dict[str, Place | None] = {**scope, node.accu_var: bound}
        if node.macro != "bind":
            loop = {**inner, node.iter_var: None} | ({node.iter_var2: None} if node.iter_var2 else {})
            self.use(node.condition, loop)
            self.use(node.step, loop)
        return self.place(node.result, inner)
