"""Capacities of shared devices: which amounts may be requested.

A device that several claims may share can say how its capacity is cut: a list
of valid values, or a range with a step. The rules make sure that the default
is itself valid and that every cut fits the capacity.

Amounts are exact. Only the step rule counts in whole units (or in thousandths
where fractions are switched on), because that is how amounts are handed out.
A default without values or range is not looked at, as in the reference.
"""

from __future__ import annotations

from dray.api.json_types import JsonMapping
from dray.api.quantity import INT64_MAX, Quantity, parse_quantity
from dray.api.validation.fields import FieldError, Path, duplicate, forbidden, invalid, required, too_many

VALID_VALUES_MAX = 10
_NANOS_PER_UNIT = 10**9


def validate_capacity(
    capacity: JsonMapping, path: Path, *, is_shared: bool, with_fractions: bool
) -> list[FieldError]:
    """Check one capacity of a device; only shared devices may have a request policy."""
    policy, path = capacity.get("requestPolicy"), path.child("requestPolicy")
    if policy is None:
        return []
    if not is_shared:
        return [forbidden(path, "allowMultipleAllocations must be true")]
    values, value_range, default = (
        policy.get("validValues") or [],
        policy.get("validRange"),
        policy.get("default"),
    )
    if values and value_range is not None:
        detail = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, detail)]
    total = parse_quantity(capacity.get("value") or "0")
    if values:
        if default is None:
            return [required(path.child("default"), "required when validValues is defined")]
        amounts = [parse_quantity(value) for value in values]
        return _validate_values(
            amounts, parse_quantity(default), total, path.child("validValues"), with_fractions=with_fractions
        )
    if value_range is not None:
        if default is None:
            return [required(path.child("default"), "required when validRange is defined")]
        return _Range(parse_quantity(default), value_range, total, path.child("validRange")).validate(
            with_fractions=with_fractions
        )
    return []


def _validate_values(
    values: list[Quantity], default: Quantity, total: Quantity, path: Path, *, with_fractions: bool
) -> list[FieldError]:
    errors: list[FieldError] = []
    for number in range(1, len(values)):
        if values[number - 1] > values[number]:
            detail = "values must be sorted in ascending order"
            errors.append(invalid(path.at(number), str(values[number]), detail))
    if len(values) > VALID_VALUES_MAX:
        errors.append(too_many(path, len(values), VALID_VALUES_MAX))
        # Values that were not looked at cannot contain the default.
        return [*errors, _no_default(default, path)]
    for number, value in enumerate(values):
        if value > total:
            detail = f"option is larger than capacity value: {total}"
            errors.append(invalid(path.at(number), str(value), detail))
    seen: set[object] = set()
    for number, value in enumerate(values):
        # Without fractions values are told apart by whole units, rounded up: 100m and 200m are the same.
        key: object = value if with_fractions else value.ceil_value()
        if key in seen:
            errors.append(duplicate(path.at(number), str(key)))
        seen.add(key)
    return errors if default in values else [*errors, _no_default(default, path)]


def _no_default(default: Quantity, path: Path) -> FieldError:
    return invalid(path, str(default), "default value is not valid according to the requestPolicy")


class _Range:
    """A valid range with the default and the capacity it belongs to."""

    def __init__(self, default: Quantity, value_range: JsonMapping, total: Quantity, path: Path) -> None:
        def amount(name: str) -> Quantity | None:
            return None if value_range.get(name) is None else parse_quantity(value_range[name])

        self.default, self.total, self.path = default, total, path
        self.minimum, self.maximum, self.step = amount("min"), amount("max"), amount("step")

    def validate(self, *, with_fractions: bool) -> list[FieldError]:
        if self.minimum is None:
            return [required(self.path.child("min"), "required when validRange is defined")]
        errors = self._validate_bounds(self.minimum)
        milli = with_fractions and any(amount.nanos % _NANOS_PER_UNIT for _, amount in self._amounts())
        if milli:
            odd = [
                invalid(self.path.child(name), str(amount), "value cannot be represented as a milli value")
                for name, amount in self._amounts()
                if Quantity.of_milli(amount.milli_value()) != amount
            ]
            if odd:
                return errors + odd
        if self.step is not None:
            errors += self._validate_step(self.minimum, self.step, milli=milli)
        return errors

    def _amounts(self) -> list[tuple[str, Quantity]]:
        """Return what was given; the default is reported as if it stood in the range."""
        named = (("default", self.default), ("min", self.minimum), ("max", self.maximum), ("step", self.step))
        return [(name, amount) for name, amount in named if amount is not None]

    def _validate_bounds(self, minimum: Quantity) -> list[FieldError]:
        errors: list[FieldError] = []

        def refuse(name: str, amount: Quantity, detail: str) -> None:
            errors.append(invalid(self.path.child(name), str(amount), detail))

        if minimum > self.total:
            refuse("min", minimum, f"min is larger than capacity value: {self.total}")
        if self.default < minimum:
            refuse("default", self.default, f"default is less than min: {minimum}")
        if self.maximum is not None:
            if minimum > self.maximum:
                refuse("max", minimum, f"min is larger than max: {self.maximum}")
            if self.maximum > self.total:
                refuse("max", self.maximum, f"max is larger than capacity value: {self.total}")
            if self.default > self.maximum:
                refuse("default", self.default, f"default is more than max: {self.maximum}")
        return errors

    def _validate_step(self, minimum: Quantity, step: Quantity, *, milli: bool) -> list[FieldError]:
        path = self.path.child("step")
        if step.sign <= 0:
            return [invalid(path, str(step), "must be greater than zero")]
        errors: list[FieldError] = []
        if minimum + step > self.total:
            detail = f"one step {minimum + step} is larger than capacity value: {self.total}"
            errors.append(invalid(path, str(step), detail))
        if not milli:
            unusable = [
                error for name, amount in self._amounts() for error in self._validate_int64(name, amount)
            ]
            if unusable:
                return errors + unusable

        def units(amount: Quantity) -> int:
            return amount.milli_value() if milli else amount.ceil_value()

        for value in (self.default, self.maximum):
            if value is not None and (units(value) - units(minimum)) % units(step):
                detail = f"value is not a multiple of a given step ({step}) from ({minimum})"
                errors.append(invalid(path, str(value), detail))
        return errors

    def _validate_int64(self, name: str, amount: Quantity) -> list[FieldError]:
        path = self.path.child(name)
        if amount.sign < 0:
            return [invalid(path, str(amount), "must be greater than or equal to 0")]
        if amount > Quantity.of(INT64_MAX):
            return [invalid(path, str(amount), f"must not be larger than {INT64_MAX}")]
        return []
