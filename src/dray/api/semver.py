"""Semantic versions 2.0.0: `1.2.3-rc.1+build5`.

Order follows the standard: numbers numerically, a pre-release before its release,
pre-release parts numerically or by text, numbers before text. Build metadata counts
neither for order nor for equality.

`parse_semver(text, normalize=True)` accepts what people type and Kubernetes' CEL
library forgives: a leading `v`, missing minor and patch numbers, leading zeros.
"""

from __future__ import annotations

from functools import total_ordering
from string import ascii_letters, digits
from typing import Final

from dray.api.caching import cached_by_text
from dray.api.quoting import quote_go

__all__ = ["Semver", "SemverError", "parse_semver"]

_DIGITS: Final = frozenset(digits)
_WORD: Final = frozenset(ascii_letters + digits + "-")
_UINT64_MAX: Final = 2**64 - 1

PreRelease = tuple[int | str, ...]


class SemverError(ValueError):
    """The text is not a semantic version."""


@total_ordering
class Semver:
    """One version; immutable; equal, ordered and hashed without its build metadata.

    >>> Semver.parse("1.2.3-rc.2") < Semver.parse("1.2.3-rc.11") < Semver.parse("1.2.3+x")
    True
    """

    __slots__ = ("_key", "build", "major", "minor", "patch", "prerelease")

    major: int
    minor: int
    patch: int
    prerelease: PreRelease  # numeric parts are ints
    build: tuple[str, ...]

    def __init__(
        self, major: int, minor: int, patch: int, prerelease: PreRelease = (), build: tuple[str, ...] = ()
    ) -> None:
        # A release sorts after each of its pre-releases; in a part, numbers sort before text.
        parts = tuple((0, part, "") if isinstance(part, int) else (1, 0, part) for part in prerelease)
        key = (major, minor, patch, not prerelease, parts)
        values = zip(self.__slots__, (key, build, major, minor, patch, prerelease), strict=True)
        for name, value in values:
            object.__setattr__(self, name, value)

    @classmethod
    def parse(cls, text: str, *, normalize: bool = False) -> Semver:
        """Parse a version; raise SemverError."""
        return parse_semver(text, normalize=normalize)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Semver is immutable: cannot set {name}")

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def compare(self, other: Semver) -> int:
        """Return -1, 0 or 1."""
        return (self._key > other._key) - (self._key < other._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        if self.build:
            text += "+" + ".".join(self.build)
        return text

    def __repr__(self) -> str:
        return f"Semver({str(self)!r})"

    _key: tuple[int, int, int, bool, tuple[tuple[int, int, str], ...]]


@cached_by_text(maxsize=16384, longest=256)
def parse_semver(text: str, *, normalize: bool = False) -> Semver:
    """Parse a version; raise SemverError."""
    if normalize:
        text = _normalized(text)
    if not text:
        raise SemverError("Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise SemverError("No Major.Minor.Patch elements found")
    patch, plus, build_text = parts[2].partition("+")
    patch, minus, prerelease_text = patch.partition("-")
    major, minor = _number(parts[0], "Major"), _number(parts[1], "Minor")
    last = _number(patch, "Patch")
    prerelease = tuple(map(_prerelease_part, prerelease_text.split("."))) if minus else ()
    build = tuple(map(_build_part, build_text.split("."))) if plus else ()
    return Semver(major, minor, last, prerelease, build)


def _number(text: str, name: str) -> int:
    if not _DIGITS.issuperset(text):
        raise SemverError(f"Invalid character(s) found in {name.lower()} number {quote_go(text)}")
    if len(text) > 1 and text[0] == "0":
        raise SemverError(f'{name} number must not contain leading zeroes "{text}"')
    return _uint64(text)


def _prerelease_part(text: str) -> int | str:
    if not text:
        raise SemverError("Prerelease is empty")
    if _DIGITS.issuperset(text):
        if len(text) > 1 and text[0] == "0":
            raise SemverError(f'Numeric PreRelease version must not contain leading zeroes "{text}"')
        return _uint64(text)
    if not _WORD.issuperset(text):
        raise SemverError(f'Invalid character(s) found in prerelease "{text}"')
    return text


def _build_part(text: str) -> str:
    if not text:
        raise SemverError("Build meta data is empty")
    if not _WORD.issuperset(text):
        raise SemverError(f'Invalid character(s) found in build meta data "{text}"')
    return text


def _uint64(text: str) -> int:
    if not text:
        raise SemverError('strconv.ParseUint: parsing "": invalid syntax')
    # Longer text cannot be in range, and converting it could take long.
    if len(text) > 20 or int(text) > _UINT64_MAX:
        raise SemverError(f'strconv.ParseUint: parsing "{text}": value out of range')
    return int(text)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part.encode(errors="replace")) > 1:  # in bytes, as upstream counts: ä is two
            trimmed = part.lstrip("0")
            parts[index] = trimmed if trimmed[:1] in _DIGITS else "0" + trimmed
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise SemverError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)
