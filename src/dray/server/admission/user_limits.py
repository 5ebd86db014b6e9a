"""UserLimits: the limits of a person that are judged when a pod is made: its time, and how many may wait.

A pod of a user gets `activeDeadlineSeconds`: what it asks for, else the default time, never more than the longest
(a pod that asks for more is refused). A pod is refused while as many pods of the user wait as may. Limits of what a
user holds make a pod wait instead, which is for the scheduler. The limits are those of `dray user limit`
(`dray.scheduler.user_limits`); an entry that cannot be read limits nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dray.api.json_types import JsonObject
from dray.api.user_names import UNIX_GROUP_PREFIX
from dray.host.accounts import Account
from dray.scheduler.limits import Ask, Holding, Limits, check_submission, time_of
from dray.scheduler.user_limits import NAME, NAMESPACE, UserLimits, effective_limits, parse_user_limits
from dray.server.admission.admission_plugin import BasePlugin, refused, target_of
from dray.server.admission.user_pods import owner_of
from dray.server.requests import Call, Reader


@dataclass(slots=True)
class UserLimitsPlugin(BasePlugin):
    """Bound the time and the number of waiting pods of a user."""

    reader: Reader
    account_of: Callable[[str], Account | None]
    name: str = "UserLimits"
    _stored: UserLimits | None = field(default=None, init=False)  # None: to be read again

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Judge a new pod and set its deadline."""
        if operation != "CREATE" or target_of(call) != ("", "pods", ""):
            return
        spec = new.get("spec")
        owner = owner_of(call, self.reader)
        if not owner or not isinstance(spec, dict):
            return
        limits = self._limits(owner)
        if limits == Limits():
            return
        asked = spec.get("activeDeadlineSeconds")
        waiting = self._count_waiting(call.route.namespace) if limits.waiting is not None else 0
        refusal = check_submission(limits, Holding(waiting=waiting), Ask(seconds=asked))
        if refusal is not None:
            raise refused(call, new, f"limit of {owner}: {refusal.message}")
        seconds = time_of(limits, asked)
        if seconds is not None:
            spec["activeDeadlineSeconds"] = max(1, math.floor(seconds))

    def observe(self, group: str, resource: str, old: JsonObject | None, new: JsonObject | None) -> None:
        """Forget the limits when they may have changed."""
        if (group, resource) == ("", "configmaps"):
            self._stored = None

    def _limits(self, owner: str) -> Limits:
        if self._stored is None:
            found = self.reader.get("", "configmaps", NAMESPACE, NAME) or {}
            self._stored = parse_user_limits(found.get("data") or {})
        if not self._stored.entries:
            return Limits()
        account = self.account_of(owner)
        groups = () if account is None else (UNIX_GROUP_PREFIX + name for _, name in account.groups)
        return effective_limits(self._stored, owner, groups)

    def _count_waiting(self, namespace: str) -> int:
        pods = self.reader.list("", "pods", namespace)
        phases = ((pod.get("status") or {}).get("phase", "Pending") for pod in pods)
        return sum(phase == "Pending" for phase in phases)
