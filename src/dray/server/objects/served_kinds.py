"""All kinds that are served right now: the built-in table and custom kinds.

Which built-in versions are served is decided once (`dray.api.runtime_config`).
Custom resource definitions add and remove kinds while the server runs; everybody
who routes, lists or discovers asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dray.api.kinds import KINDS, Kind, kind_of_plural
from dray.api.runtime_config import ServedVersions


class ServedKinds:
    """Find kinds by the words of a URL."""

    def __init__(self, built_in: ServedVersions) -> None:
        self._custom: dict[tuple[str, str], Kind] = {}
        self._groups: Mapping[str, set[str]] = {}
        self._built_in = built_in
        self.use_custom_kinds(())

    def use_custom_kinds(self, kinds: Iterable[Kind]) -> None:
        """Serve these custom kinds instead of the former ones."""
        self._custom = {(kind.group, kind.plural): kind for kind in kinds}
        groups: dict[str, set[str]] = {
            group: set(versions) for group, versions in self._built_in.group_versions().items()
        }
        for kind in self._custom.values():
            groups.setdefault(kind.group, set()).update(kind.versions)
        self._groups = groups

    def is_custom(self, kind: Kind) -> bool:
        """Return whether a kind comes from a definition."""
        return (kind.group, kind.plural) in self._custom

    def serves_group(self, group: str) -> bool:
        """Return whether a group exists at all."""
        return group in self._groups

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that a group version serves under a plural."""
        kind = kind_of_plural(group, plural)
        if kind is not None:
            return kind if self._built_in.serves(kind, version) else None
        custom = self._custom.get((group, plural))
        return custom if custom is not None and version in custom.versions else None

    def serves_subresource(self, kind: Kind, name: str) -> bool:
        """Return whether the gate of a subresource, if it has one, is on."""
        return self._built_in.serves_subresource(kind, name)

    def stored(self, group: str, plural: str) -> Kind | None:
        """Return the kind of stored objects, whether it is served or not."""
        return kind_of_plural(group, plural) or self._custom.get((group, plural))

    def named(self, group: str, version: str, name: str) -> Kind | None:
        """Return the kind of a name that a group version serves."""
        kind = next((kind for kind in self.all() if kind.group == group and kind.kind == name), None)
        return None if kind is None else self.find(group, version, kind.plural)

    def all(self) -> list[Kind]:
        """Return every kind."""
        return [*KINDS, *self._custom.values()]
