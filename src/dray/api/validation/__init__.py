"""Validation of Kubernetes objects, as kube-apiserver v1.37 does it.

The door: `validate_create`, `validate_update` and `validate_status_update` take a kind (see
`kind_key`), plain JSON objects in the shape in which they are stored, and a
`ValidationContext`; they return `FieldError`s, none if the object is fine. Nothing here raises
for a bad object, reads a clock or talks to anybody. CEL lies above this package, so whoever
validates claims and classes hands in a `SelectorChecker`.
"""

from dray.api.validation.admin_access import check_admin_access, check_admin_access_of_status
from dray.api.validation.claims import expressions_of
from dray.api.validation.context import Accepted, CelVerdict, NoCel, SelectorChecker, ValidationContext
from dray.api.validation.core_kinds import validate_namespace_finalize
from dray.api.validation.fields import ErrorType, FieldError, Path
from dray.api.validation.node_features import check_declared_features
from dray.api.validation.pod_changes import validate_pod_resize
from dray.api.validation.pod_claims import validate_pod_claims
from dray.api.validation.pods import validate_binding
from dray.api.validation.registry import (
    allows_unconditional_update,
    kind_key,
    missing_resource_version,
    validate_create,
    validate_status_update,
    validate_update,
    warnings_create,
    warnings_update,
)

__all__ = [
    "Accepted",
    "CelVerdict",
    "ErrorType",
    "FieldError",
    "NoCel",
    "Path",
    "SelectorChecker",
    "ValidationContext",
    "allows_unconditional_update",
    "check_admin_access",
    "check_admin_access_of_status",
    "check_declared_features",
    "expressions_of",
    "kind_key",
    "missing_resource_version",
    "validate_binding",
    "validate_create",
    "validate_namespace_finalize",
    "validate_pod_claims",
    "validate_pod_resize",
    "validate_status_update",
    "validate_update",
    "warnings_create",
    "warnings_update",
]
