"""Admission by objects: webhooks and policies that users configure.

It stands beside the chain of built-in plugins and is asked after them: mutating webhooks
before validation, policies and validating webhooks after it, as in kube-apiserver. Without
any configuration a write pays for four lookups only, and the expression language is not
even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dray.api.json_types import JsonObject
from dray.api.kinds import ADMISSION, Kind
from dray.server.admission.admission_plugin import Kept
from dray.server.admission.admission_request import AdmissionRequest, ObjectForms
from dray.server.auth import Attributes, Decision
from dray.server.requests import Call, Reader

if TYPE_CHECKING:
    from dray.server.admission.admission_expressions import ExpressionChecker
    from dray.server.admission.validating_policies import ValidatingPolicies
    from dray.server.admission.webhook_calls import Transport
    from dray.server.admission.webhooks import Webhooks

OwnKind = tuple[str, str, str]  # group, version, kind of a body that is not the object itself


def admission_cel(*, params: bool, has_variables: bool) -> ExpressionChecker:
    """Return a checker for the expressions of policies and match conditions."""
    from dray.server.admission.admission_expressions import ExpressionChecker

    return ExpressionChecker(params=params, has_variables=has_variables)


class DynamicAdmission:
    """Asks webhooks and policies about writes."""

    def __init__(
        self,
        reader: Reader,
        forms: ObjectForms,
        decide: Callable[[Attributes], Decision],
        find_kind: Callable[[str, str, str], Kind | None],
        new_uid: Callable[[], str],
        transport: Transport,
        disabled: Collection[str] = (),
    ) -> None:
        self._reader = reader
        self._forms = forms
        self._decide = decide
        self._find_kind = find_kind
        self._new_uid = new_uid
        self._transport = transport
        self._disabled = frozenset(disabled)
        self._mutating = Kept(reader, ADMISSION, "mutatingwebhookconfigurations")
        self._validating = Kept(reader, ADMISSION, "validatingwebhookconfigurations")
        self._policies = Kept(reader, ADMISSION, "validatingadmissionpolicies")
        self._bindings = Kept(reader, ADMISSION, "validatingadmissionpolicybindings")
        self._webhooks: Webhooks | None = None
        self._judges: ValidatingPolicies | None = None

    async def close(self) -> None:
        """Drop connections to webhooks."""
        await self._transport.close()

    def observe(self, group: str, resource: str) -> None:
        """Follow a committed write."""
        if group == ADMISSION:
            for kept in (self._mutating, self._validating, self._policies, self._bindings):
                kept.observe(group, resource)

    @property
    def mutates(self) -> bool:
        """Return whether there is a mutating webhook."""
        return bool(self._mutating.list()) and "MutatingAdmissionWebhook" not in self._disabled

    @property
    def validates(self) -> bool:
        """Return whether there is a validating webhook, or a policy with a binding."""
        return self._has_webhooks or self._has_policies

    @property
    def _has_webhooks(self) -> bool:
        return bool(self._validating.list()) and "ValidatingAdmissionWebhook" not in self._disabled

    @property
    def _has_policies(self) -> bool:
        return bool(self._bindings.list()) and "ValidatingAdmissionPolicy" not in self._disabled

    async def mutate(
        self,
        call: Call,
        operation: str,
        new: JsonObject,
        old: JsonObject | None,
        *,
        dry_run: bool,
        plugins: Callable[[], None],
    ) -> None:
        """Let webhooks change a new object in place; `plugins` runs the built-in plugins again."""
        if self.mutates:
            request = self._request(call, operation, new, old, dry_run=dry_run)
            if not request.is_exempt:
                await self._hooks().mutate(request, plugins)

    async def validate(
        self, call: Call, operation: str, new: JsonObject, old: JsonObject | None, *, dry_run: bool
    ) -> None:
        """Raise the error that refuses an object in its final form."""
        if self.validates:
            await self._validate(self._request(call, operation, new, old, dry_run=dry_run))

    async def validate_delete(self, call: Call, old: JsonObject, *, dry_run: bool) -> None:
        """Raise the error that protects an object from deletion."""
        if self.mutates or self.validates:
            request = self._request(call, "DELETE", None, old, dry_run=dry_run)
            await self._ask_all(request)

    async def admit_body(
        self, call: Call, operation: str, body: JsonObject, own_kind: OwnKind, *, dry_run: bool = False
    ) -> None:
        """Raise the error that refuses a request whose body is not an object: a binding, a connection."""
        if self.mutates or self.validates:
            request = self._request(call, operation, body, None, dry_run=dry_run)
            request.own_kind = own_kind
            await self._ask_all(request)

    async def _ask_all(self, request: AdmissionRequest) -> None:
        if self.mutates and not request.is_exempt:
            await self._hooks().mutate(request, lambda: None)
        await self._validate(request)

    async def _validate(self, request: AdmissionRequest) -> None:
        if request.is_exempt:
            return
        if self._has_policies:
            await self._policy_judges().validate(request)
        if self._has_webhooks:
            await self._hooks().validate(request)

    def _request(
        self, call: Call, operation: str, new: JsonObject | None, old: JsonObject | None, *, dry_run: bool
    ) -> AdmissionRequest:
        metadata = (new or old or {}).get("metadata") or {}
        name = call.route.name or metadata.get("name") or ""
        return AdmissionRequest(call, operation, new, old, self._forms, dry_run, name)

    def _hooks(self) -> Webhooks:
        if self._webhooks is None:
            from dray.server.admission.webhooks import Webhooks

            self._webhooks = Webhooks(
                self._reader, self._mutating, self._validating, self._transport, self._decide, self._new_uid
            )
        return self._webhooks

    def _policy_judges(self) -> ValidatingPolicies:
        if self._judges is None:
            from dray.server.admission.validating_policies import ValidatingPolicies

            self._judges = ValidatingPolicies(
                self._reader, self._policies, self._bindings, self._find_kind, self._decide
            )
        return self._judges
