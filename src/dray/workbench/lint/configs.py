"""Opaque configs in claims, templates and classes: what the driver would refuse at prepare, told before."""

from __future__ import annotations

from collections.abc import Iterator

from dray.api.json_types import JsonObject
from dray.api.raw_json import RawJson
from dray.drivers.opaque_configs import OpaqueConfigError, check_config
from dray.workbench.lint.findings import Problem, error


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
                "the claim would be allocated, and its pods would wait until it is corrected",
            )
