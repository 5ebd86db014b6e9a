"""NamespaceLifecycle: nothing new in namespaces that are absent or on their way out."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.server.admission.admission_plugin import BasePlugin, refused, target_of
from dray.server.requests import Call, Reader, forbidden, not_found

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})


@dataclass(slots=True)
class NamespaceLifecycle(BasePlugin):
    """Refuse creation in absent and terminating namespaces, and deletion of the first ones."""

    reader: Reader
    name: str = "NamespaceLifecycle"

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Refuse a creation where the namespace is absent or terminating."""
        namespace = call.route.namespace
        if operation != "CREATE" or not namespace or target_of(call)[:2] == ("", "namespaces"):
            return
        # Telling whether a namespace exists would answer more than an access review was asked.
        if target_of(call)[1] == "localsubjectaccessreviews":
            return
        found = self.reader.get("", "namespaces", "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if (found.get("status") or {}).get("phase") == "Terminating" or found["metadata"].get(
            "deletionTimestamp"
        ):
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise refused(call, new, why, [cause])

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Protect the namespaces that every cluster has."""
        name = old["metadata"]["name"]
        if target_of(call)[:2] == ("", "namespaces") and name in IMMORTAL:
            raise forbidden("", "namespaces", name, "this namespace may not be deleted")
