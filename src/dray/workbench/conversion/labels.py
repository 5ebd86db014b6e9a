"""Node labels that describe devices, as selectors on the devices themselves.

Feature discovery labels a node with what its GPUs are, because a device plugin can only
count. A claim says it of the device. Label values cannot hold every character, so a
label's value is compared with the attribute spelled the way the labeller spells it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from dray.drivers.driver_names import NVIDIA, TPU
from dray.workbench.conversion.resources import AMD

Values = list[str]


@dataclass(frozen=True, slots=True)
class LabelRule:
    """How conditions on one label become an expression."""

    driver: str
    build: Callable[[str, Values], str | None]  # operator, values -> expression; None: cannot be said


def _attribute(driver: str, name: str, spelled: str = "") -> str:
    return f'device.attributes["{driver}"].{name}{spelled}'


def _text(driver: str, name: str, spelled: str = "") -> LabelRule:
    operand = _attribute(driver, name, spelled)

    def build(operator: str, values: Values) -> str | None:
        quoted = [json.dumps(value) for value in values]
        if operator == "In":
            return f"{operand} == {quoted[0]}" if len(quoted) == 1 else f"{operand} in [{', '.join(quoted)}]"
        if operator == "NotIn":
            return (
                f"{operand} != {quoted[0]}" if len(quoted) == 1 else f"!({operand} in [{', '.join(quoted)}])"
            )
        return None

    return LabelRule(driver, build)


def _number(driver: str, operand: str) -> LabelRule:
    signs = {"Gt": ">", "Lt": "<"}

    def build(operator: str, values: Values) -> str | None:
        if not values or not all(re.fullmatch(r"\d+", value) for value in values):
            return None
        if operator in signs:
            return f"{operand} {signs[operator]} {values[0]}"
        if operator == "In":
            return f"{operand} == {values[0]}" if len(values) == 1 else f"{operand} in [{', '.join(values)}]"
        if operator == "NotIn":
            return (
                f"{operand} != {values[0]}" if len(values) == 1 else f"!({operand} in [{', '.join(values)}])"
            )
        return None

    return LabelRule(driver, build)


def _mebibytes(driver: str) -> LabelRule:
    operand = f'device.capacity["{driver}"].memory'
    signs = {"Gt": "> 0", "Lt": "< 0"}

    def build(operator: str, values: Values) -> str | None:
        # An exact amount in MiB is a way to name a model; it does not survive rounding.
        if operator not in signs or len(values) != 1 or not values[0].isdigit():
            return None
        return f'{operand}.compareTo(quantity("{values[0]}Mi")) {signs[operator]}'

    return LabelRule(driver, build)


RULES: dict[str, LabelRule] = {
    "nvidia.com/gpu.product": _text(NVIDIA, "productName", '.replace(" ", "-")'),
    "nvidia.com/gpu.family": _text(NVIDIA, "architecture", ".lowerAscii()"),
    "nvidia.com/gpu.memory": _mebibytes(NVIDIA),
    "nvidia.com/cuda.driver.major": _number(NVIDIA, _attribute(NVIDIA, "driverVersion", ".major()")),
    "nvidia.com/cuda.driver.minor": _number(NVIDIA, _attribute(NVIDIA, "driverVersion", ".minor()")),
    "nvidia.com/cuda.driver-version.major": _number(NVIDIA, _attribute(NVIDIA, "driverVersion", ".major()")),
    "nvidia.com/cuda.driver-version.minor": _number(NVIDIA, _attribute(NVIDIA, "driverVersion", ".minor()")),
    "nvidia.com/cuda.runtime.major": _number(NVIDIA, _attribute(NVIDIA, "cudaDriverVersion", ".major()")),
    "nvidia.com/cuda.runtime.minor": _number(NVIDIA, _attribute(NVIDIA, "cudaDriverVersion", ".minor()")),
    "nvidia.com/gpu.compute.major": _number(NVIDIA, _attribute(NVIDIA, "cudaComputeCapability", ".major()")),
    "nvidia.com/gpu.compute.minor": _number(NVIDIA, _attribute(NVIDIA, "cudaComputeCapability", ".minor()")),
    "amd.com/gpu.product-name": _text(AMD, "productName", '.replace(" ", "_")'),
    "cloud.google.com/gke-tpu-accelerator": _text(TPU, "accelerator"),
    "gpu.intel.com/family": _text("gpu.intel.com", "family"),
}
# Labels that say no more than "there is such a device here", which the claim says anyway.
IMPLIED: dict[str, str] = {
    "nvidia.com/gpu.present": NVIDIA,
    "nvidia.com/gpu": NVIDIA,
    "feature.node.kubernetes.io/pci-10de.present": NVIDIA,
    "nvidia.com/mig.capable": NVIDIA,
    "nvidia.com/gpu.deploy.device-plugin": NVIDIA,
    "amd.com/gpu": AMD,
    "feature.node.kubernetes.io/amd-gpu": AMD,
}
# Labels about devices that no attribute says; they stay where they are.
ABOUT_DEVICES = re.compile(
    r"(nvidia\.com/|amd\.com/|gpu\.intel\.com/|cloud\.google\.com/gke-(accelerator|tpu|gpu)|k8s\.amazonaws\.com/accelerator)"
)
# Those of them that a cloud sets on its nodes: they are there whatever gives out the devices.
OF_CLOUD = re.compile(r"(cloud\.google\.com|k8s\.amazonaws\.com)/")


def expression_for(label: str, operator: str, values: Values, drivers: set[str]) -> str | None:
    """Return the selector for a condition on a label; None when it must stay on the node."""
    rule = RULES.get(label)
    if rule is None or rule.driver not in drivers:
        return None
    return rule.build(operator, values)


def is_implied(label: str, operator: str, values: Values, drivers: set[str]) -> bool:
    """Return whether having the device implies the condition."""
    if IMPLIED.get(label) not in drivers:
        return False
    return operator == "Exists" or (operator == "In" and values in (["true"], ["present"]))
