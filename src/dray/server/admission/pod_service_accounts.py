"""ServiceAccount: every pod acts as some account of its namespace.

Unlike Kubernetes this plugin does not wait for the controller that makes the
account `default` in a new namespace: a pod of `default` is let in before its
account exists, without a token. And a token is mounted only where the pod could
start with it, that is where the config map with the CA certificate is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dray.api.json_types import JsonObject
from dray.api.well_known import MIRROR_POD_ANNOTATION, SERVICE_ACCOUNT_FOLDER
from dray.host.random_names import random_suffix
from dray.server.admission.admission_plugin import BasePlugin, refused, target_of
from dray.server.auth import references_of
from dray.server.requests import Call, Reader

DEFAULT = "default"
VOLUME_PREFIX = "kube-api-access-"
CA_CONFIG_MAP = "kube-root-ca.crt"
TOKEN_SECONDS = 3607  # Kubernetes' number, by which its server knows tokens it may extend


@dataclass(slots=True)
class ServiceAccount(BasePlugin):
    """Give pods their account, its pull secrets and its token."""

    reader: Reader
    new_suffix: Callable[[], str] = random_suffix
    name: str = "ServiceAccount"

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Set the account of a new pod and mount its token."""
        if (
            operation != "CREATE"
            or target_of(call) != ("", "pods", "")
            or not isinstance(new.get("spec"), dict)
        ):
            return
        spec = new["spec"]
        if MIRROR_POD_ANNOTATION in ((new.get("metadata") or {}).get("annotations") or {}):
            self._check_mirror(call, new)
            return
        if not spec.get("serviceAccountName"):
            spec["serviceAccountName"] = spec["serviceAccount"] = DEFAULT
        account_name, namespace = spec["serviceAccountName"], call.route.namespace
        account = self.reader.get("", "serviceaccounts", namespace, account_name)
        if account is None:
            if account_name == DEFAULT:
                return
            why = f'error looking up service account {namespace}/{account_name}: serviceaccount "{account_name}" not found'
            raise refused(call, new, why)
        if _wants_token(account, spec) and self.reader.get("", "configmaps", namespace, CA_CONFIG_MAP):
            self._mount_token(spec)
        pull_secrets = account.get("imagePullSecrets") or ()
        if pull_secrets and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [{"name": secret.get("name", "")} for secret in pull_secrets]

    def _check_mirror(self, call: Call, new: JsonObject) -> None:
        references = {resource for resource, _ in references_of(new)}
        if "serviceaccounts" in references:
            raise refused(call, new, "a mirror pod may not reference service accounts")
        if "secrets" in references:
            raise refused(call, new, "a mirror pod may not reference secrets")
        for volume in new["spec"].get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if source.get("serviceAccountToken"):
                    raise refused(
                        call, new, "a mirror pod may not use ServiceAccountToken volume projections"
                    )

    def _mount_token(self, spec: JsonObject) -> None:
        volumes = list(spec.get("volumes") or ())
        existing = next((v["name"] for v in volumes if v.get("name", "").startswith(VOLUME_PREFIX)), "")
        name = existing or VOLUME_PREFIX + self.new_suffix()
        mounted = False
        for containers in (spec.get("initContainers") or (), spec.get("containers") or ()):
            for container in containers:
                mounts = list(container.get("volumeMounts") or ())
                # Something else at that path means: the pod brings its own token.
                if not any(mount.get("mountPath") == SERVICE_ACCOUNT_FOLDER for mount in mounts):
                    container["volumeMounts"] = [
                        *mounts,
                        {"name": name, "readOnly": True, "mountPath": SERVICE_ACCOUNT_FOLDER},
                    ]
                    mounted = True
        if mounted and not existing:
            spec["volumes"] = [*volumes, {"name": name, "projected": _token_volume()}]


def _wants_token(account: JsonObject, spec: JsonObject) -> bool:
    for holder in (spec, account):
        if holder.get("automountServiceAccountToken") is not None:
            return bool(holder["automountServiceAccountToken"])
    return True


def _token_volume() -> JsonObject:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": CA_CONFIG_MAP, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
    }
