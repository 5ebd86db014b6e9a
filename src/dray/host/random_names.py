"""Random endings of names, as API servers append them for `generateName`."""

from __future__ import annotations

import secrets

from dray.api.well_known import NAME_CHARACTERS

SUFFIX_LENGTH = 5


def random_suffix() -> str:
    """Return five letters and digits."""
    return "".join(secrets.choice(NAME_CHARACTERS) for _ in range(SUFFIX_LENGTH))
