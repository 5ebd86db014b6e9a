"""The verbs on objects: get, list, watch, create, update, patch, apply, delete, and the subresources.

Objects are read from and written to `dray.server.store`; admission is handed in.
"""

from dray.server.objects.admission_forms import AdmissionForms
from dray.server.objects.create_and_update import Writer
from dray.server.objects.cross_object_rules import CrossObjectRules, Selectors
from dray.server.objects.deletion import Deleter
from dray.server.objects.disruption_budgets import DisruptionBudgets
from dray.server.objects.event_expiry import expire_events
from dray.server.objects.initial_objects import ensure_bootstrap_objects
from dray.server.objects.object_versions import Versions
from dray.server.objects.patch_requests import Patcher
from dray.server.objects.response_forms import ResponseForms
from dray.server.objects.served_kinds import ServedKinds
from dray.server.objects.server_side_apply import Applier, FieldManagers
from dray.server.objects.stored_objects import Objects, key_of, prefix_of, storage_of
from dray.server.objects.subresources import Subresources
from dray.server.objects.user_namespaces import UserNamespaces
from dray.server.objects.verb_handlers import Handlers

# fmt: off
__all__ = [
    "AdmissionForms",
    "Applier",
    "CrossObjectRules",
    "Deleter",
    "DisruptionBudgets",
    "FieldManagers",
    "Handlers",
    "Objects",
    "Patcher",
    "ResponseForms",
    "Selectors",
    "ServedKinds",
    "Subresources",
    "UserNamespaces",
    "Versions",
    "Writer",
    "ensure_bootstrap_objects",
    "expire_events",
    "key_of",
    "prefix_of",
    "storage_of",
]
# fmt: on
