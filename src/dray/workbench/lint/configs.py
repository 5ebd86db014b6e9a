"""Opaque configs in claims, templates and classes: what the driver would refuse at prepare, told before."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api.json_types import JsonObject
from dray.api.raw_json import RawJson
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.workbench.lint.findings import Problem, error

# Versions of configs that drivers no longer read -> the one that they read.
_FORMER_VERSIONS = {
    "gpu.nvidia.com/v1alpha1": "resource.nvidia.com/v1beta1",
    "gpu.resource.nvidia.com/v1alpha1": "resource.nvidia.com/v1beta1",
}


def config_problems(holder: JsonObject, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the entries of `config` in a claim's `devices` or a class's `spec`."""
    for index, entry in enumerate(holder.get("config") or []):
        opaque = (entry or {}).get("opaque") or {}
        parameters = opaque.get("parameters")
        if not isinstance(parameters, RawJson):
            continue  # missing: validation tells that
        try:
            check_config(str(opaque.get("driver") or ""), parameters.value)
        except OpaqueConfigError as refusal:
            place = f"{path}.config[{index}].opaque.parameters"
            yield error(
                "opaque-config",
                f"{place}.{refusal.path}" if refusal.path else place,
                f"{opaque.get('driver')} refuses this config: {refusal}",
                _advice(parameters.value),
            )


def _advice(parameters: object) -> str:
    version = str(parameters.get("apiVersion")) if isinstance(parameters, dict) else ""
    if version in _FORMER_VERSIONS:
        return f"write apiVersion: {_FORMER_VERSIONS[version]}"
    return "the claim would be allocated, and its pods would wait until it is corrected"
