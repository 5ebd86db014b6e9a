"""Nodes: taints, capacity, declared features, and what may change once it is set.

Errors about taints are reported below `metadata`, where taints once lived;
that is what clients of the reference see.
"""

from __future__ import annotations

import ipaddress
import re

from dray.api.json_types import JsonMapping
from dray.api.validation.context import ValidationContext
from dray.api.validation.fields import (
    FieldError,
    Path,
    duplicate,
    forbidden,
    internal,
    invalid,
    invalid_each,
    not_supported,
    required,
)
from dray.api.validation.formats import label_key, label_value, size
from dray.api.validation.metadata import metadata_of, validate_changed_metadata, validate_new_metadata
from dray.api.validation.pod_scheduling import TAINT_EFFECTS
from dray.api.validation.resource_lists import validate_amount

_FEATURE_NAME = re.compile(r"[A-Z][a-zA-Z0-9]*(/[a-zA-Z][a-zA-Z0-9]*)*")
_FEATURE_RULE = (
    "must start with an UpperCamelCase segment, with subsequent segments separated by '/' "
    "(e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
)
_SPEC, _STATUS = Path("spec"), Path("status")


def validate_node(node: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a new node; a status is optional, but not arbitrary."""
    errors = validate_new_metadata(metadata_of(node), namespaced=False)
    errors += _validate_taints(node)
    errors += _validate_amounts(node) + _validate_features(node)
    blocks = _pod_blocks(node)
    for number, block in enumerate(blocks):
        errors += _validate_block(block, _SPEC.child("podCIDRs").at(number))
    unreadable = not all(map(_is_block, blocks))
    if len(blocks) > 1 and unreadable:
        detail = "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR"
        errors.append(internal(_SPEC.child("podCIDRs"), detail))
    if len(blocks) > 1 and sorted(":" in block for block in blocks) != [False, True]:
        detail = "may specify no more than one CIDR for each IP family"
        errors.append(invalid(_SPEC.child("podCIDRs"), blocks, detail))
    return errors


def validate_node_update(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check a changed node."""
    return validate_node(new, context) + validate_node_status(new, old, context)


def validate_node_status(new: JsonMapping, old: JsonMapping, context: ValidationContext) -> list[FieldError]:
    """Check the changed status of a node, and what neither way may change."""
    errors = validate_changed_metadata(metadata_of(new), metadata_of(old))
    errors += _validate_amounts(new) + _validate_features(new)
    addresses = (new.get("status") or {}).get("addresses") or []
    seen: list[JsonMapping] = []
    for number, address in enumerate(addresses):
        if address in seen:
            errors.append(duplicate(_STATUS.child("addresses").at(number), address))
        seen.append(address)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    old_blocks = _pod_blocks(old)
    if old_blocks and _pod_blocks(new) != old_blocks:
        detail = 'node updates may not change podCIDR except from "" to valid'
        errors.append(forbidden(_SPEC.child("podCIDRs"), detail))
    old_provider, provider = old_spec.get("providerID") or "", spec.get("providerID") or ""
    if old_provider and provider != old_provider:
        verb = "modified" if provider else "cleared"
        errors.append(invalid(_SPEC.child("providerID"), None, f"field cannot be {verb} once set"))
    return errors + _validate_taints(new)


def _validate_taints(node: JsonMapping) -> list[FieldError]:
    path = Path("metadata").child("taints")
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate((node.get("spec") or {}).get("taints") or []):
        here = path.at(number)
        key, value, effect = (taint.get(field) or "" for field in ("key", "value", "effect"))
        errors += invalid_each(here.child("key"), key, label_key(key))
        problems = label_value(value)
        if problems:
            errors.append(invalid(here.child("value"), value, ";".join(problems)))
        if not effect:
            errors.append(required(here.child("effect")))
        elif effect not in TAINT_EFFECTS:
            errors.append(not_supported(here.child("effect"), effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(here, dict(taint)))
        seen.add((key, effect))
    return errors


def _validate_amounts(node: JsonMapping) -> list[FieldError]:
    status = node.get("status") or {}
    return [
        error
        for field in ("capacity", "allocatable")
        for name, amount in (status.get(field) or {}).items()
        for error in validate_amount(name, amount, _STATUS.child(field, name))
    ]


def _validate_features(node: JsonMapping) -> list[FieldError]:
    names, path = (node.get("status") or {}).get("declaredFeatures") or [], _STATUS.child("declaredFeatures")
    errors: list[FieldError] = []
    for number, name in enumerate(names):
        if size(name) > 253:
            detail = f'invalid feature name "{name}": must be no more than 253 characters'
            errors.append(invalid(path.at(number), name, detail))
        elif not _FEATURE_NAME.fullmatch(name):
            errors.append(invalid(path.at(number), name, f'invalid feature name "{name}": {_FEATURE_RULE}'))
        if number and names[number - 1] == name:
            errors.append(duplicate(path.at(number), name))
        elif number and names[number - 1] > name:
            errors.append(invalid(path.at(number), name, "list must be sorted alphabetically"))
    return errors


def _pod_blocks(node: JsonMapping) -> list[str]:
    """Return the address blocks of a node; the older single field wins where both disagree."""
    spec = node.get("spec") or {}
    block, blocks = spec.get("podCIDR") or "", list(spec.get("podCIDRs") or [])
    return [block] if block and blocks[:1] != [block] else blocks


def _is_block(text: str) -> bool:
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return "/" in text


def _validate_block(block: str, path: Path) -> list[FieldError]:
    if not _is_block(block):
        detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        return [invalid(path, block, detail)]
    interface = ipaddress.ip_interface(block)
    if interface.ip != interface.network.network_address:
        return [invalid(path, block, "must not have bits set beyond the prefix length")]
    return []
