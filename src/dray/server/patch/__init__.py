"""Server-side apply: who owns which field, and how configurations merge."""

from dray.server.patch.field_managers import (
    FieldConflicts,
    ManagedFields,
    Ownership,
    read_managed_fields,
    write_managed_fields,
)
from dray.server.patch.json_patch import (
    MAX_OPERATIONS,
    PatchError,
    PatchMalformed,
    apply_json_patch,
    apply_merge_patch,
)
from dray.server.patch.patched_text import entered_by_merge, entered_by_operations, patched_text
from dray.server.patch.strategic_merge import StrategicPatchError, apply_strategic_patch, as_go

# fmt: off
__all__ = [
    "MAX_OPERATIONS",
    "FieldConflicts",
    "ManagedFields",
    "Ownership",
    "PatchError",
    "PatchMalformed",
    "StrategicPatchError",
    "apply_json_patch",
    "apply_merge_patch",
    "apply_strategic_patch",
    "as_go",
    "entered_by_merge",
    "entered_by_operations",
    "patched_text",
    "read_managed_fields",
    "write_managed_fields",
]
# fmt: on
