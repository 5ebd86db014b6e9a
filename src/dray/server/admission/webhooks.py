"""Mutating and validating admission webhooks, as their configurations say.

Mutating webhooks are asked one after the other, in the order of their configurations'
names; what one changes the next one sees. When one changed something, the built-in plugins
look at the object again, and webhooks with `reinvocationPolicy: IfNeeded` that were asked
before the change are asked once more. Validating webhooks are asked all at once, about the
object in its final form.

A webhook that cannot be asked refuses the request, or with `failurePolicy: Ignore` does
not. A dry run is refused where a webhook would have side effects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dray.api.json_types import JsonMapping, JsonObject
from dray.cel import EvaluationError
from dray.server.admission.admission_expressions import Conditions, Decide, values_of
from dray.server.admission.admission_plugin import Kept
from dray.server.admission.admission_request import (
    AdmissionRequest,
    namespace_fits,
    object_fits,
    rule_version,
)
from dray.server.admission.webhook_calls import CallFailed, Transport, Verdict, ask, denial, failure
from dray.server.patch import PatchError, PatchMalformed, apply_json_patch
from dray.server.requests import LARGE, ApiError, Reader, compute, copy_json, errors, not_found

log = logging.getLogger("dray.server")


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook of a configuration."""

    key: tuple[str, str]  # configuration, name
    written: JsonMapping
    conditions: Conditions | None

    @property
    def name(self) -> str:
        """Return the webhook's name."""
        return self.key[1]

    @property
    def is_ignorable(self) -> bool:
        """Return whether a failed call lets the request pass."""
        return bool(self.written.get("failurePolicy") == "Ignore")


class _Hooks:
    """The webhooks of one kind of configuration, compiled when the configuration changes."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._compiled: tuple[tuple[JsonObject, ...], list[Hook]] = ((), [])

    def all(self) -> list[Hook]:
        found = self._kept.list()
        if self._compiled[0] is not found:
            self._compiled = (found, list(_hooks(found)))
        return self._compiled[1]


def _hooks(configurations: tuple[JsonObject, ...]) -> Iterator[Hook]:
    for configuration in sorted(configurations, key=lambda each: each["metadata"]["name"]):
        for hook in configuration.get("webhooks") or ():
            written = hook.get("matchConditions") or ()
            conditions = Conditions.compile(written) if written else None
            yield Hook((configuration["metadata"]["name"], hook["name"]), hook, conditions)


class Webhooks:
    """Asks the webhooks that are concerned by a request."""

    def __init__(
        self,
        reader: Reader,
        mutating: Kept,
        validating: Kept,
        transport: Transport,
        decide: Decide,
        new_uid: Callable[[], str],
    ) -> None:
        self._reader = reader
        self._mutating = _Hooks(mutating)
        self._validating = _Hooks(validating)
        self._transport = transport
        self._decide = decide
        self._new_uid = new_uid

    async def mutate(self, request: AdmissionRequest, plugins: Callable[[], None]) -> None:
        """Let webhooks change the new object; `plugins` runs the built-in plugins again."""
        again: set[tuple[str, str]] = set()
        if not await self._round(request, None, again):
            return
        before = copy_json(request.new)
        plugins()
        if again or request.new != before:
            await self._round(request, again, set())

    async def _round(
        self,
        request: AdmissionRequest,
        only: set[tuple[str, str]] | None,
        again: set[tuple[str, str]],
    ) -> bool:
        """Ask webhooks in order; returns whether one changed the object, and in `again` who is to be asked anew."""
        changed, asked = False, set[tuple[str, str]]()
        for hook in self._mutating.all():
            if only is not None and hook.key not in only:
                continue
            version = await self._concerned(hook, request)
            if version is None:
                continue
            verdict = await self._ask(hook, request, version)
            if verdict is not None and verdict.patch:
                if await self._patched(hook, request, version, verdict.patch):
                    changed = True
                    again |= asked
            if hook.written.get("reinvocationPolicy") == "IfNeeded":
                asked.add(hook.key)
        return changed

    async def validate(self, request: AdmissionRequest) -> None:
        """Raise the error of the first webhook that refuses."""
        concerned: list[tuple[Hook, str]] = []
        for hook in self._validating.all():
            version = await self._concerned(hook, request)
            if version is not None:
                concerned.append((hook, version))
        asks = [self._judged(hook, request, version) for hook, version in concerned]
        for problem in await asyncio.gather(*asks, return_exceptions=True):
            if isinstance(problem, BaseException):
                raise problem

    async def _judged(self, hook: Hook, request: AdmissionRequest, version: str) -> None:
        verdict = await self._ask(hook, request, version)
        if verdict is not None and verdict.patch:
            problem = CallFailed(
                "received invalid webhook response: validating webhook may not return response.patch"
            )
            if not hook.is_ignorable:
                raise failure(hook.name, problem)

    async def _concerned(self, hook: Hook, request: AdmissionRequest) -> str | None:
        """Return the version in which a webhook wants to see the object; None if it is not concerned."""
        written = hook.written
        if not object_fits(written.get("objectSelector"), request):
            return None
        version = rule_version(written.get("rules") or (), request, written.get("matchPolicy"))
        if version is None:
            return None

        def absent(name: str) -> ApiError:
            return not_found("", "namespaces", name)

        if not namespace_fits(written.get("namespaceSelector"), request, self._reader, absent):
            return None
        if hook.conditions is None:
            return version
        values = values_of(request, version, self._decide)
        try:
            return version if await compute(LARGE, hook.conditions.match, values) else None
        except EvaluationError as problem:
            if hook.is_ignorable:
                return None
            kind = request.call.route.kind
            raise errors.forbidden(kind.group, kind.plural, request.name, str(problem)) from None

    async def _ask(self, hook: Hook, request: AdmissionRequest, version: str) -> Verdict | None:
        """Return a verdict that allows the request; None if the webhook failed and that is ignored."""
        if request.dry_run and hook.written.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise errors.bad_request(f'admission webhook "{hook.name}" does not support dry run')
        try:
            verdict = await ask(self._transport, hook.written, request, version, self._new_uid())
        except CallFailed as problem:
            if not hook.is_ignorable:
                log.warning("failed calling webhook %s, failing closed: %s", hook.name, problem)
                raise failure(hook.name, problem) from None
            log.warning("failed calling webhook %s, failing open: %s", hook.name, problem)
            return None
        for text in verdict.warnings:
            request.call.warn(text)
        if not verdict.allowed:
            raise denial(hook.name, verdict.status)
        return verdict

    async def _patched(
        self, hook: Hook, request: AdmissionRequest, version: str, patch: list[JsonObject]
    ) -> bool:
        shown = request.object_in(version)
        if shown is None or request.operation not in ("CREATE", "UPDATE") or request.own_kind is not None:
            raise errors.internal(
                f'admission webhook "{hook.name}" attempted to modify the object, which is not supported '
                "for this operation"
            )

        def apply() -> Any:
            return apply_json_patch(shown, patch)

        try:
            changed = await compute(LARGE, apply)
        except (PatchError, PatchMalformed) as problem:
            raise errors.internal(str(problem)) from None
        if not isinstance(changed, dict):
            raise errors.internal(
                f'admission webhook "{hook.name}" made something of the object that is none'
            )
        return request.change(changed, version)
