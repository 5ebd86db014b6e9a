"""The plugins of admission, in order.

The order matters: a namespace that does not exist is told before a quota that is
exceeded, defaults are set before limits are judged, and the quota comes last,
because it counts what is really about to be written.

`observe` must be called for every committed write, so that plugins which keep
usage records (quota) follow what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dray.api.json_types import JsonObject
from dray.host.accounts import Account, account_of_name
from dray.host.clock import utc_now
from dray.server.admission.admission_plugin import BasePlugin
from dray.server.admission.limit_ranges import LimitRanger
from dray.server.admission.namespace_lifecycle import NamespaceLifecycle
from dray.server.admission.node_restriction import NodeRestriction
from dray.server.admission.node_taints import DefaultTolerationSeconds, TaintNodesByCondition
from dray.server.admission.pod_service_accounts import ServiceAccount
from dray.server.admission.priority_classes import Priority
from dray.server.admission.rbac_escalation import RoleEscalation
from dray.server.admission.resource_quota import ResourceQuota
from dray.server.admission.user_limits import UserLimitsPlugin
from dray.server.admission.user_pods import UserPods
from dray.server.auth import Authorizer
from dray.server.requests import Call, Reader


class Plugin(Protocol):
    """One concern of admission."""

    name: str

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Complete a new object in place, or raise the error that refuses it."""

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Raise the error that refuses an object in its final form."""

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Raise the error that protects an object from deletion."""

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Follow a committed write: `new` is what was written, or None and `old` is what was deleted."""


@dataclass(slots=True)
class AdmissionChain:
    """All plugins that are on; satisfies what the writing verbs call admission."""

    plugins: Sequence[Plugin] = field(default_factory=tuple)
    _mutating: list[Plugin] = field(init=False)
    _validating: list[Plugin] = field(init=False)
    _protecting: list[Plugin] = field(init=False)
    _following: list[Plugin] = field(init=False)

    def __post_init__(self) -> None:
        # Every write asks; plugins that inherit their silence need not be asked.
        self._mutating = self._with("mutate")
        self._validating = self._with("validate")
        self._protecting = self._with("validate_delete")
        self._following = self._with("observe")

    def _with(self, step: str) -> list[Plugin]:
        silent = getattr(BasePlugin, step)
        return [plugin for plugin in self.plugins if getattr(type(plugin), step, None) is not silent]

    @classmethod
    def standard(
        cls,
        reader: Reader,
        authorizer: Authorizer,
        disabled: Collection[str] = (),
        now: Callable[[], datetime] = utc_now,
        account_of: Callable[[str], Account | None] = account_of_name,
    ) -> AdmissionChain:
        """Return the chain of Kubernetes' default plugins and dray's own, less the disabled ones.

        Raises ValueError for a disabled name that is not a plugin.
        """
        plugins: list[Plugin] = [
            NamespaceLifecycle(reader),
            LimitRanger(reader),
            UserPods(reader, account_of),
            UserLimitsPlugin(reader, account_of),
            ServiceAccount(reader),
            NodeRestriction(reader),
            TaintNodesByCondition(),
            Priority(reader),
            DefaultTolerationSeconds(),
            RoleEscalation(authorizer),
            ResourceQuota(reader, now),
        ]
        known = {plugin.name for plugin in plugins} | _CONFIGURED
        unknown = sorted(set(disabled) - known - _NOT_NEEDED)
        if unknown:
            raise ValueError(
                f"unknown admission plugin {', '.join(unknown)}; known are {', '.join(sorted(known))}"
            )
        return cls([plugin for plugin in plugins if plugin.name not in set(disabled)])

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Let every plugin complete the object."""
        for plugin in self._mutating:
            plugin.mutate(call, operation, new, old)

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Let every plugin judge the object."""
        for plugin in self._validating:
            plugin.validate(call, operation, new, old)

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Let every plugin judge a deletion."""
        for plugin in self._protecting:
            plugin.validate_delete(call, old)

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Tell every plugin about a committed write."""
        for plugin in self._following:
            plugin.observe(group, resource, old, new)


# Asked beside this chain (see `dynamic_admission`), and switched off by the same flag.
_CONFIGURED = frozenset(
    {"MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"}
)

# Plugins of kube-apiserver whose objects are not served here: switching them off is not an error.
_NOT_NEEDED = frozenset(
    {
        "AlwaysPullImages",
        "CertificateApproval",
        "CertificateSigning",
        "CertificateSubjectRestriction",
        "ClusterTrustBundleAttest",
        "DefaultIngressClass",
        "DefaultStorageClass",
        "MutatingAdmissionPolicy",
        "PersistentVolumeClaimResize",
        "PodSecurity",
        "PodTopologyLabels",
        "RuntimeClass",
        "StorageObjectInUseProtection",
    }
)
