"""Which versions of the built-in kinds a server serves: kube-apiserver's `--runtime-config` and feature gates.

A setting is `key=true` or `key=false` (`key` alone means true). Keys, the more specific one decides:

    api/all                       everything
    api/ga, api/beta, api/alpha   versions of that maturity
    group/version                 one version; `v1` or `api/v1` is the core group's
    group/version/resource        one resource of it, by its plural

Without settings every version is served (kube-apiserver leaves beta and alpha versions out).
A kind that belongs to a feature gate is not served while the gate is off, whatever the
settings say. Stored objects are left as they are and come back with their version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dray.api.features import DEVICES_AFTER_POD_START, Features
from dray.api.kinds import GROUP_VERSIONS, KINDS, SCHEDULING, Kind

__all__ = ["RuntimeConfig", "RuntimeConfigError", "ServedVersions", "parse_runtime_config"]

_STAGES: Final = {"": "api/ga", "beta": "api/beta", "alpha": "api/alpha"}
_BROAD: Final = frozenset({"api/all", *_STAGES.values()})
_STAGE: Final = re.compile(r"^v\d+(?:(alpha|beta)\d+)?$")
_BOOLEANS: Final = {"": True, "true": True, "false": False}
# (group, kind) -> the gate without which the kind does not exist
_GATES: Final = {(SCHEDULING, "PodGroup"): "GenericWorkload", (SCHEDULING, "Workload"): "GenericWorkload"}
# (group, kind, subresource) -> the gate without which the path does not exist
_SUBRESOURCE_GATES: Final = {("", "Pod", "resourceclaims"): DEVICES_AFTER_POD_START}


class RuntimeConfigError(ValueError):
    """A setting cannot be read, or names something that does not exist."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What was switched on and off."""

    switches: Mapping[str, bool] = field(default_factory=dict)  # normalised key -> on

    def serves(self, group: str, version: str, plural: str) -> bool:
        """Return whether a resource is switched on in a version."""
        group_version = f"{group}/{version}" if group else version
        match = _STAGE.match(version)
        stage = _STAGES[(match.group(1) or "") if match else ""]
        for key in (f"{group_version}/{plural}", group_version, stage, "api/all"):
            if key in self.switches:
                return self.switches[key]
        return True


def parse_runtime_config(texts: Iterable[str]) -> RuntimeConfig:
    """Read the values of `--runtime-config`; raises RuntimeConfigError.

    >>> parse_runtime_config(["api/beta=false,resource.k8s.io/v1beta1"]).switches
    {'api/beta': False, 'resource.k8s.io/v1beta1': True}
    """
    switches: dict[str, bool] = {}
    for setting in (part.strip() for text in texts for part in text.split(",")):
        if not setting:
            continue
        key, _, value = setting.partition("=")
        if value.lower() not in _BOOLEANS:
            raise RuntimeConfigError(f"{setting!r}: the value must be true or false")
        name = key.strip()
        switches["v1" if name == "api/v1" else _known(name)] = _BOOLEANS[value.lower()]
    config = RuntimeConfig(switches)
    core = [kind.plural for kind in KINDS if not kind.group and not config.serves("", "v1", kind.plural)]
    if core:
        raise RuntimeConfigError(
            f"{core[0]} of v1 cannot be switched off (add v1=true to keep the core group)"
        )
    return config


def _known(key: str) -> str:
    """Return a key as it is, if it means something."""
    if key in _BROAD:
        return key
    parts = key.split("/")
    group, rest = ("", parts) if parts[0] == "v1" else (parts[0], parts[1:])
    if group not in GROUP_VERSIONS:
        raise RuntimeConfigError(f"{key!r}: unknown API group {group}")
    if not 1 <= len(rest) <= 2:
        raise RuntimeConfigError(f"{key!r}: write group/version or group/version/resource")
    # A version that this server does not have may stay in the settings of a later or earlier one.
    if len(rest) == 2 and not any(kind.group == group and kind.plural == rest[1] for kind in KINDS):
        raise RuntimeConfigError(f"{key!r}: the group has no resource {rest[1]}")
    return key


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The built-in versions that are served, by settings and gates."""

    config: RuntimeConfig = field(default_factory=RuntimeConfig)
    features: Features = field(default_factory=Features.everything)

    def serves(self, kind: Kind, version: str) -> bool:
        """Return whether a built-in kind is served in a version."""
        gate = _GATES.get((kind.group, kind.kind))
        if gate is not None and gate not in self.features:
            return False
        return version in kind.versions and self.config.serves(kind.group, version, kind.plural)

    def serves_subresource(self, kind: Kind, name: str) -> bool:
        """Return whether a subresource is served: most are without a gate."""
        gate = _SUBRESOURCE_GATES.get((kind.group, kind.kind, name))
        return gate is None or gate in self.features

    def kinds_in(self, group: str, version: str) -> list[Kind]:
        """Return the kinds of a group that are served in a version."""
        return [kind for kind in KINDS if kind.group == group and self.serves(kind, version)]

    def group_versions(self) -> dict[str, tuple[str, ...]]:
        """Return the versions of each group that serve anything, preferred first; no groups without any."""
        served = {
            group: tuple(version for version in versions if self.kinds_in(group, version))
            for group, versions in GROUP_VERSIONS.items()
        }
        return {group: versions for group, versions in served.items() if versions}
