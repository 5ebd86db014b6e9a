"""Types of parsed JSON and YAML, for annotations.

Objects of the API are plain dictionaries until a reader has checked them, and in the server for
good. `JsonValue` is `Any` because a recursive type would have to be narrowed at every step into a
document whose shape the schema already guarantees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonValue = Any  # None, bool, int, float, str, list or dict of these
JsonObject = dict[str, Any]  # whose owner may change it
JsonMapping = Mapping[str, Any]  # an object that is only read
