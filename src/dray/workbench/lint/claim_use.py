"""How a pod uses its claims: those that no container refers to, and hardware asked for in two ways.

Both depend on what a claim is for, so they are judged only where the claim (or its template) is known. Network
drivers give their devices to the pod as a whole: no container needs to refer to their claims.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from dray.api.json_types import JsonObject
from dray.drivers.driver_names import NETWORK
from dray.drivers.hardware import device_classes
from dray.workbench.conversion.resources import SRIOV, request_for
from dray.workbench.lint.findings import Problem, info, warning
from dray.workbench.lint.objects import exact_requests
from dray.workbench.pod_templates import PodTemplate, containers_of

# Drivers that set up the pod's network, and classes that installers and cloud providers give their devices.
_NETWORK_DRIVERS = frozenset([NETWORK, SRIOV, "cni.dra.networking.x-k8s.io"])
_NETWORK_CLASSES = frozenset(["dranet", "dranet.net", "netdev.google.com", "mrdma.google.com"])
_DRIVER = re.compile(r"""device\.driver\s*==\s*["']([^"']+)["']""")

Classes = Mapping[str, JsonObject]


def check_use(
    template: PodTemplate, claim_by_entry: Mapping[str, JsonObject], classes: Classes
) -> Iterator[Problem]:
    """Yield claims that no container uses, and containers that ask for the same hardware twice."""
    used: set[str] = set()
    for path, container in containers_of(template.spec):
        resources = container.get("resources") or {}
        names = {str(entry.get("name")) for entry in resources.get("claims") or []}
        used |= names
        targets = {name: claim_by_entry[name] for name in sorted(names) if name in claim_by_entry}
        for resource in resources.get("limits") or {}:
            twice = [name for name, claim in targets.items() if _is_same_hardware(resource, claim, classes)]
            if twice:
                yield warning(
                    "double-request",
                    template.below(f"spec.{path}.resources"),
                    f"asks for {resource} and for the same hardware by claim {', '.join(twice)}: "
                    "devices are taken twice",
                    "drop the extended resource, or the claim",
                )
    used |= {str(entry.get("name")) for entry in (template.spec.get("resources") or {}).get("claims") or []}
    for index, entry in enumerate(template.spec.get("resourceClaims") or []):
        name = str(entry.get("name"))
        if name not in used:
            place = template.below(f"spec.resourceClaims[{index}]")
            yield from _unused(name, place, claim_by_entry.get(name), classes)


def _unused(name: str, path: str, claim: JsonObject | None, classes: Classes) -> Iterator[Problem]:
    hint = f"add `resources: {{claims: [{{name: {name}}}]}}` to a container"
    names = _class_names(claim) if claim is not None else []
    drivers = {driver for each in names for driver in drivers_of_class(each, classes)}
    if not _NETWORK_CLASSES.isdisjoint(names) or not _NETWORK_DRIVERS.isdisjoint(drivers):
        return
    if names and drivers <= _container_drivers():
        message = f"no container uses the claim {name!r}: devices are held, and no container sees them"
        yield warning("claim-unused", path, message, hint)
    else:
        message = f"no container uses the claim {name!r}: only network drivers give devices to the whole pod"
        yield info("claim-unused", path, message, hint)


def _is_same_hardware(resource: str, claim: JsonObject, classes: Classes) -> bool:
    """Return whether a claim asks for what a resource of a device plugin stands for."""
    names = _class_names(claim)
    if any(
        ((classes.get(name) or {}).get("spec") or {}).get("extendedResourceName") == resource
        for name in names
    ):
        return True
    request = request_for(resource, {})
    return request is not None and any(request.driver in drivers_of_class(name, classes) for name in names)


def _class_names(claim: JsonObject) -> list[str]:
    return [str(request.get("deviceClassName") or "") for _, request in exact_requests(claim)]


def drivers_of_class(name: str, classes: Classes) -> set[str]:
    """Return the drivers whose devices a class selects, as far as its selectors say it; else its name."""
    found = classes.get(name)
    if found is None:
        return set(_modelled_classes().get(name, (name,)))
    texts = [
        str(((selector or {}).get("cel") or {}).get("expression") or "")
        for selector in (found.get("spec") or {}).get("selectors") or []
    ]
    return {driver for text in texts for driver in _DRIVER.findall(text)} or {name}


@cache
def _modelled_classes() -> dict[str, tuple[str, ...]]:
    """Return the drivers of the classes that come with the modelled drivers."""
    return {
        found.metadata.name: tuple(
            driver
            for selector in found.spec.selectors
            if selector.cel is not None
            for driver in _DRIVER.findall(selector.cel.expression)
        )
        for found in device_classes()
    }


@cache
def _container_drivers() -> frozenset[str]:
    """Return the drivers that are known to give devices to containers only."""
    return (
        frozenset(driver for drivers in _modelled_classes().values() for driver in drivers) - _NETWORK_DRIVERS
    )
