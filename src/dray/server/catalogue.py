"""All kinds that are served right now: the built-in table and custom kinds.

Custom resource definitions add and remove kinds while the server runs; everybody
who routes, lists or discovers asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dray.api.kinds import GROUP_VERSIONS, KINDS, Kind, kind_of_plural


class Catalogue:
    """Finds kinds by the words of a URL."""

    def __init__(self, hidden: Callable[[Kind, str], bool] = lambda kind, version: False) -> None:
        self._custom: dict[tuple[str, str], Kind] = {}
        self._groups: Mapping[str, set[str]] = {}
        self._hidden = hidden
        self.use_custom_kinds(())

    def use_custom_kinds(self, kinds: Iterable[Kind]) -> None:
        """Serve these custom kinds instead of the former ones."""
        self._custom = {(kind.group, kind.plural): kind for kind in kinds}
        groups: dict[str, set[str]] = {group: set(versions) for group, versions in GROUP_VERSIONS.items()}
        for kind in self._custom.values():
            groups.setdefault(kind.group, set()).update(kind.versions)
        self._groups = groups

    def custom_kinds(self) -> list[Kind]:
        """Return the custom kinds."""
        return list(self._custom.values())

    def is_custom(self, kind: Kind) -> bool:
        """Tell whether a kind comes from a definition."""
        return (kind.group, kind.plural) in self._custom

    def serves_group(self, group: str) -> bool:
        """Tell whether a group exists at all."""
        return group in self._groups

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind that a group version serves under a plural."""
        kind = self.stored(group, plural)
        return (
            kind
            if kind is not None and version in kind.versions and not self._hidden(kind, version)
            else None
        )

    def stored(self, group: str, plural: str) -> Kind | None:
        """Return the kind of stored objects."""
        return kind_of_plural(group, plural) or self._custom.get((group, plural))

    def all(self) -> list[Kind]:
        """Return every kind."""
        return [*KINDS, *self._custom.values()]
