"""Limits of users and groups as they are stored: one ConfigMap, an entry for each user and group.

`kube-system/dray-user-limits` has the keys `default`, `user.NAME` and `group.NAME` (a Unix group, without
`unix:`); a value is a JSON object with the fields of `Limits` in camelCase. `effective_limits` says what holds for
a person: field by field the user's own entry, else the strictest of their groups, else the default.

Pure. An entry that cannot be read is reported, and the others hold: an administrator's slip must not lift all
limits nor stop all jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from dray.api.parsing import ParseError, load_json
from dray.api.user_names import UNIX_GROUP_PREFIX
from dray.scheduler.limits import Limits

NAMESPACE: Final = "kube-system"
NAME: Final = "dray-user-limits"
DEFAULT_KEY: Final = "default"

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")  # of ConfigMap data
_LONGEST_ENTRY = 4096  # characters
_FIELDS = {
    re.sub(r"_(.)", lambda found: found[1].upper(), each.name): (each.name, each.name.endswith("seconds"))
    for each in fields(Limits)
}


@dataclass(frozen=True, slots=True)
class UserLimits:
    """All entries that could be read, and what is wrong with the others."""

    entries: Mapping[str, Limits] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def entry_key(*, user: str = "", group: str = "") -> str:
    """Return the key of an entry; raises ValueError when the name cannot be one."""
    key = f"user.{user}" if user else f"group.{group}" if group else DEFAULT_KEY
    if not _KEY.fullmatch(key):
        raise ValueError(f"{(user or group)[:80]!r} has characters that the key of an entry cannot have")
    return key


def format_entry(limits: Limits) -> str:
    """Return the text of an entry; what is not limited is left out."""
    values = {camel: getattr(limits, name) for camel, (name, _) in _FIELDS.items()}
    return json.dumps({camel: value for camel, value in values.items() if value is not None})


def parse_entry(text: str) -> Limits:
    """Read an entry; raises ValueError.

    >>> parse_entry('{"devices": 2, "defaultSeconds": 3600}').devices
    2
    """
    if len(text) > _LONGEST_ENTRY:
        raise ValueError(f"longer than {_LONGEST_ENTRY} characters")
    try:
        found = load_json(text.encode())
    except ParseError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  # one kind of error for all bad text
    unknown = sorted(set(found) - set(_FIELDS))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    for camel, value in found.items():
        kinds = (int, float) if _FIELDS[camel][1] else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 1 << 60:
            raise ValueError(f"{camel} is not a number from 0")
    return Limits(**{_FIELDS[camel][0]: value for camel, value in found.items()})


def parse_user_limits(data: Mapping[str, str]) -> UserLimits:
    """Read the data of the ConfigMap."""
    entries, problems = {}, []
    for key, text in data.items():
        try:
            entries[key] = parse_entry(text)
        except ValueError as error:
            problems.append(f"{NAMESPACE}/{NAME}: entry {key}: {error}")
    return UserLimits(entries, tuple(problems))


def effective_limits(stored: UserLimits, user: str, groups: Iterable[str]) -> Limits:
    """Return what holds for a user of the API; of the groups those count that are Unix groups."""
    entries = stored.entries
    own = entries.get(f"user.{user}", Limits())
    keys = (f"group.{group.removeprefix(UNIX_GROUP_PREFIX)}" for group in groups if group.startswith("unix:"))
    shared = [entries[key] for key in keys if key in entries]
    default = entries.get(DEFAULT_KEY, Limits())
    values = {}
    for each in fields(Limits):
        found = getattr(own, each.name)
        if found is None:
            strictest = [getattr(limits, each.name) for limits in shared]
            found = min((value for value in strictest if value is not None), default=None)
        values[each.name] = getattr(default, each.name) if found is None else found
    return Limits(**values)
