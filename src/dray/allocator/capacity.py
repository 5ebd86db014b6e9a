"""How much of a device's capacities a request takes.

A request names amounts; the device may round them: up to the smallest value on a
list, or to `min + n * step`. What is not requested takes the policy's default or
everything. All arithmetic is on integers (see `dray.api.quantity`).

Three outcomes per device: a `Need`; None where the device cannot serve such a
request (another one may); `CapacityError` where the numbers themselves are unusable,
which ends the whole attempt: such a request must not be retried device by device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.allocator.device_facts import CapacityFacts
from dray.api.quantity import INT64_MAX, Quantity, parse_quantity
from dray.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, QuantityValue

_MILLI: Final = 10**6  # nanos in a thousandth
_NOT_REPRESENTABLE: Final = "capacity request cannot be represented in the device's range arithmetic"


class AmountError(ValueError):
    """The amount is negative or beyond the range; the text starts with the capacity's name."""


class Need:
    """What one request takes from a device with certain capacities."""

    __slots__ = ("amounts", "nanos")

    def __init__(self, amounts: dict[str, Quantity]) -> None:
        self.amounts = amounts
        self.nanos = {name: amount.nanos for name, amount in amounts.items()}

    def fits(self, facts: CapacityFacts, *used: Mapping[str, int] | None) -> bool:
        """Return whether the need and what is used already stay within every capacity."""
        for name, nanos in self.nanos.items():
            total = nanos
            for amounts in used:
                if amounts:
                    total += amounts.get(name, 0)
            if total > facts.values[name].nanos:
                return False
        return True


def need_of(
    requested: Mapping[str, Quantity] | None, facts: CapacityFacts, *, fractional: bool
) -> Need | None:
    """Return what a request takes; None where the device's capacities do not suit it.

    Raises AmountError where the numbers cannot be computed with. Whether there is room is
    not decided here: see `Need.fits`.
    """
    if requested and any(name not in facts.values for name in requested):
        return None
    amounts: dict[str, Quantity] = {}
    for name, value in facts.values.items():
        wanted = requested.get(name) if requested else None
        try:
            amount = _consumed(wanted, value, facts.policies[name], fractional=fractional)
            if amount.nanos < 0:
                raise AmountError("capacity value is negative")
        except AmountError as error:
            raise AmountError(f'capacity "{name}": {error}') from None
        amounts[name] = amount
    if any(_violates(amounts[name], facts.policies[name], fractional=fractional) for name in amounts):
        return None
    return Need(amounts)


def _consumed(
    wanted: Quantity | None, value: Quantity, policy: CapacityRequestPolicy | None, *, fractional: bool
) -> Quantity:
    if wanted is None:
        return parse_quantity(policy.default) if policy and policy.default is not None else value
    if policy is None:
        return wanted
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded_up(wanted, policy.valid_range, fractional=fractional)
    for valid in policy.valid_values:
        if wanted <= (candidate := parse_quantity(valid)):
            return candidate
    return wanted


def _rounded_up(wanted: Quantity, valid: CapacityRequestPolicyRange, *, fractional: bool) -> Quantity:
    """Round up to min + n * step, in thousandths where gate and range allow, else in whole numbers."""
    least = parse_quantity(valid.min if valid.min is not None else 0)
    if wanted < least:
        return least
    if valid.step is None:
        return wanted
    step = parse_quantity(valid.step)
    if fractional and _in_thousandths(valid):
        milli = _exact_milli(wanted)
        if milli is None:
            raise AmountError(f"{_NOT_REPRESENTABLE}: request {wanted} is not a representable milli value")
        result = _next_step(milli, least.nanos // _MILLI, step.nanos // _MILLI)
        if result > INT64_MAX:
            raise AmountError(
                f"{_NOT_REPRESENTABLE}: rounding request {wanted} up to the next step passes the milli-value range"
            )
        whole, rest = divmod(result, 1000)
        return Quantity.of(whole, step.notation) if not rest else Quantity.of_milli(result, step.notation)
    if wanted.nanos > INT64_MAX * 10**9:
        raise AmountError(f"{_NOT_REPRESENTABLE}: request {wanted} exceeds MaxInt64")
    result = _next_step(wanted.ceil_value(), least.ceil_value(), step.ceil_value())
    if result > INT64_MAX and least.nanos >= 0:
        raise AmountError(
            f"{_NOT_REPRESENTABLE}: rounding request {wanted} up to the next step passes MaxInt64"
        )
    return Quantity.of(result, step.notation)


def _next_step(wanted: int, least: int, step: int) -> int:
    if step <= 0:  # validation forbids it; an old object must not stop the inventory
        return wanted
    return least - (least - wanted) // step * step


def _exact_milli(quantity: Quantity) -> int | None:
    milli, rest = divmod(quantity.nanos, _MILLI)
    return milli if not rest and -INT64_MAX - 1 <= milli <= INT64_MAX else None


def _in_thousandths(valid: CapacityRequestPolicyRange) -> bool:
    """Return whether min, max and step are all exact in thousandths, and the step is at least one."""
    for value in (valid.min, valid.max, valid.step):
        if value is not None and _exact_milli(parse_quantity(value)) is None:
            return False
    return valid.step is None or parse_quantity(valid.step).nanos >= _MILLI


def _violates(amount: Quantity, policy: CapacityRequestPolicy | None, *, fractional: bool) -> bool:
    if policy is None:
        return False
    if policy.default is not None and _same(amount, parse_quantity(policy.default)):
        return False
    if policy.valid_range is not None:
        return _outside(amount, policy.valid_range, fractional=fractional)
    return bool(policy.valid_values) and all(amount != parse_quantity(v) for v in policy.valid_values)


def _same(amount: Quantity, default: Quantity) -> bool:
    return amount.nanos == default.nanos and amount.notation == default.notation


def _outside(amount: Quantity, valid: CapacityRequestPolicyRange, *, fractional: bool) -> bool:
    if valid.max is not None and amount > parse_quantity(valid.max):
        return True
    if valid.step is None:
        return False
    step, least = parse_quantity(valid.step), parse_quantity(valid.min if valid.min is not None else 0)
    if fractional and _in_thousandths(valid):
        milli = _exact_milli(amount)
        return milli is None or (milli - least.nanos // _MILLI) % (step.nanos // _MILLI) != 0
    whole_step = step.ceil_value()
    return whole_step > 0 and (amount.ceil_value() - least.ceil_value()) % whole_step != 0


def parse_amounts(amounts: Mapping[str, QuantityValue]) -> dict[str, Quantity]:
    """Parse the amounts of a request. Raises QuantityError (a ValueError)."""
    return {name: parse_quantity(value) for name, value in amounts.items()}
