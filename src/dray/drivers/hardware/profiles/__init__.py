"""Profiles: what stands in one node, read from YAML.

A profile file has `name`, `description`, `labels`, `taints`, `allocatable` (cpu, memory,
ephemeral-storage, pods) and `devices`, a list of entries whose `kind` names a builder in
`dray.drivers.hardware.devices`. The built-in ones lie beside this module; a path
to a file of one's own works everywhere a name does. Its bad input is reported
with the file, the entry and what is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from dray.api.parsing import ParseError, load_yaml
from dray.api.well_known import ARCH_LABEL, well_known_labels
from dray.drivers.hardware.devices import BUILDERS
from dray.drivers.hardware.pools import PoolModel

# What a node has where its profile says nothing else; kubelet reports the file system of its pods, too.
_ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}


class ProfileError(ValueError):
    """A profile that cannot be found or read; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What stands in one node."""

    name: str
    description: str
    labels: dict[str, str]
    allocatable: dict[str, str]
    entries: tuple[dict[str, Any], ...]
    taints: tuple[dict[str, str], ...] = ()  # of the node
    source: str = ""  # by which another process loads it: a built-in name or a path

    def node_labels(self, name: str) -> dict[str, str]:
        """Return the labels that a node with this hardware has: kubelet's own and the profile's."""
        return {**well_known_labels(name, self.labels.get(ARCH_LABEL, "amd64")), **self.labels}

    def pools(self, node: str) -> list[PoolModel]:
        """Return what the drivers of that node would publish."""
        pools = []
        for index, entry in enumerate(self.entries):
            try:
                pools.append(BUILDERS[entry["kind"]](entry, node))
            except (KeyError, TypeError, ValueError) as error:
                raise ProfileError(
                    f"profile {self.name}: devices[{index}] ({entry.get('kind')}): {_reason(error, entry)}"
                ) from error
        return pools


def _reason(error: KeyError | TypeError | ValueError, entry: Mapping[str, Any]) -> str:
    """Say what is wrong with an entry: what builders look up is a field, or the name of a model in its value."""
    if not isinstance(error, KeyError):
        return str(error)
    missing = error.args[0]
    field = next((name for name, value in entry.items() if value == missing), None)
    return f"the field {missing!r} is missing" if field is None else f"{field} {missing!r} is not known"


@lru_cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the built-in profiles."""
    folder = resources.files(__name__)
    return tuple(
        sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))
    )


def load_profile(name_or_path: str) -> Profile:
    """Read a built-in profile by name, or a profile file by path."""
    path = Path(name_or_path)
    if name_or_path in profile_names():
        source, content = (
            name_or_path,
            resources.files(__name__).joinpath(f"{name_or_path}.yaml").read_text("utf-8"),
        )
    else:
        if not path.is_file():
            known = ", ".join(profile_names())
            raise ProfileError(
                f"no hardware profile {name_or_path!r}; built in: {known}; or give the path of a YAML file"
            )
        source, content = str(path), path.read_text("utf-8")
    try:
        profile = parse_profile(load_yaml(content), source)
        return replace(profile, source=source if source in profile_names() else str(path.absolute()))
    except ParseError as error:
        raise ProfileError(f"{source}: not YAML: {error}") from error


def parse_profile(document: Any, source: str) -> Profile:
    """Check the shape of a profile document and return the profile."""
    if not isinstance(document, dict):
        raise ProfileError(f"{source}: expected a mapping with `name` and `devices`")
    entries = document.get("devices")
    if not isinstance(entries, list) or not entries:
        raise ProfileError(f"{source}: `devices` must be a non-empty list")
    for index, entry in enumerate(entries):
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind not in BUILDERS:
            raise ProfileError(
                f"{source}: devices[{index}].kind is {kind!r}; expected one of {', '.join(BUILDERS)}"
            )
    for field in ("labels", "allocatable"):
        if not isinstance(document.get(field) or {}, dict):
            raise ProfileError(f"{source}: `{field}` must be a map")
    allocatable = _ALLOCATABLE | (document.get("allocatable") or {})
    return Profile(
        name=str(document.get("name") or Path(source).stem),
        description=str(document.get("description") or ""),
        labels={str(key): str(value) for key, value in (document.get("labels") or {}).items()},
        allocatable={str(key): str(value) for key, value in allocatable.items()},
        entries=tuple(entries),
        taints=_taints(document.get("taints"), source),
    )


def _taints(given: Any, source: str) -> tuple[dict[str, str], ...]:
    """Check the taints of the node; raise ProfileError."""
    taints = given if given is not None else []
    if not isinstance(taints, list) or not all(isinstance(each, dict) and each.get("key") for each in taints):
        raise ProfileError(f"{source}: `taints` must be a list of {{key, value, effect}}")
    return tuple({str(key): str(value) for key, value in each.items()} for each in taints)
