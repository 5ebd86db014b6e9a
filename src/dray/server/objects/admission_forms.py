"""Objects as webhooks and policies see them: in a version of their kind, and read back from it."""

from __future__ import annotations

from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.server.objects.object_versions import Versions
from dray.server.requests import Call, Environment, read_object


@dataclass(frozen=True, slots=True)
class AdmissionForms:
    """Shows stored objects to webhooks, and reads what they changed."""

    versions: Versions
    environment: Environment

    def show(self, call: Call, obj: JsonObject, version: str) -> JsonObject:
        """Return a stored object in a version of its kind; shared, not to be changed."""
        kind = call.route.kind
        shown = self.versions.outgoing(kind, obj, version)
        return {**shown, "kind": kind.kind, "apiVersion": kind.api_version(version)}

    def read(self, call: Call, shown: JsonObject, version: str) -> JsonObject:
        """Return an object in a version as it is stored, with defaults; unknown fields are dropped."""
        kind = call.route.kind
        inner = Call(call.request, call.route._replace(version=version), call.user)
        schema = self.versions.schema(kind, version)
        if schema is None:
            obj = self.versions.read_custom(inner, shown, "Ignore")
        else:
            api_version = kind.api_version(version)
            obj = read_object(
                inner, schema, shown, kind=kind.kind, api_version=api_version, validation="Ignore"
            )
        return self.versions.incoming(kind, obj, version, self.environment.now())
