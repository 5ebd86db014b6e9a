"""create and update: from a client's object to a stored one.

The order is kube-apiserver's, because errors of an earlier step hide those of a
later one: decode, defaults, mutating admission, identity, strategy, validation,
validating admission, store.

Theory of operation: an update is a function from the old object to the new one
(a PUT ignores the old, a patch does not). It is computed on what is stored now
and written only if that is still there; if somebody was faster, it is computed
again on the new state. A client that named a resourceVersion gets a conflict
instead.

All objects here are in their storage version. A `new` object belongs to the
function that has it and may be changed in place; `old` never is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dray.api.json_types import JsonObject
from dray.api.kinds import Kind
from dray.api.validation import (
    FieldError,
    ValidationContext,
    allows_unconditional_update,
    kind_key,
    missing_resource_version,
    validate_create,
    validate_namespace_finalize,
    validate_pod_claims,
    validate_pod_resize,
    validate_status_update,
    validate_update,
    warnings_create,
    warnings_update,
)
from dray.server.objects.cross_object_rules import validation_size
from dray.server.objects.get_and_list import parse_version
from dray.server.objects.stored_objects import Objects, key_of, storage_of
from dray.server.objects.write_strategies import (
    prepare_create,
    prepare_finalize,
    prepare_pod_claims,
    prepare_resize,
    prepare_status,
    prepare_update,
    strategy_of,
)
from dray.server.requests import LARGE, Call, Environment, compute, copy_json, errors
from dray.server.store import ABSENT, WriteConflict

Warn = Callable[[str], None]
Transform = Callable[[JsonObject | None], JsonObject]  # old (None: nothing there) -> new; may raise ApiError
MOST_ATTEMPTS = 100  # lost races of one update; each loss means that somebody else won
NAME_ATTEMPTS = 8


class Admission(Protocol):
    """The chain of admission plugins."""

    def mutate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Change a new object, or raise the 403 that refuses it."""

    def validate(self, call: Call, operation: str, new: JsonObject, old: JsonObject | None) -> None:
        """Raise the error that refuses an object in its final form."""

    def validate_delete(self, call: Call, old: JsonObject) -> None:
        """Raise the error that protects an object from deletion."""


class ConfiguredAdmission(Protocol):
    """Webhooks and policies that users configure."""

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
        """Change a new object in place, or raise the error that refuses it."""

    async def validate(
        self, call: Call, operation: str, new: JsonObject, old: JsonObject | None, *, dry_run: bool
    ) -> None:
        """Raise the error that refuses an object in its final form."""

    async def validate_delete(self, call: Call, old: JsonObject, *, dry_run: bool) -> None:
        """Raise the error that protects an object from deletion."""

    async def admit_body(
        self,
        call: Call,
        operation: str,
        body: JsonObject,
        own_kind: tuple[str, str, str],
        *,
        dry_run: bool = False,
    ) -> None:
        """Raise the error that refuses a request whose body is not an object: a binding, a connection."""


class ExtraValidation(Protocol):
    """Rules that need to look at other objects (namespaces' labels, nodes' features)."""

    def create(self, call: Call, new: JsonObject) -> list[FieldError]:
        """Judge a new object."""

    def check_may_create(self, call: Call) -> None:
        """Raise the 403 where an update or a patch would create an object and its writer may not create."""

    def change(self, call: Call, new: JsonObject, old: JsonObject) -> list[FieldError]:
        """Judge a change through a subresource."""

    def admit(self, call: Call, new: JsonObject) -> None:
        """Raise the error that refuses an object because of what is around it."""


class FieldOwners(Protocol):
    """Keeps managedFields."""

    def track(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """Record in `new` who wrote what, for requests that are not applies."""


@dataclass(slots=True)
class Writer:
    """Writes objects of every kind."""

    objects: Objects
    admission: Admission
    configured: ConfiguredAdmission
    rules: ExtraValidation
    owners: FieldOwners
    context: Callable[[Call], ValidationContext]
    environment: Environment
    complete: Callable[
        [Kind, JsonObject], None
    ]  # puts members that are always written where they are missing
    prepare_special: Callable[[Kind, JsonObject, JsonObject | None], None]  # what needs to know other objects
    drop_empties: Callable[[Kind, JsonObject], None]
    is_custom: Callable[[Kind], bool]
    validate_custom: Callable[[Kind, JsonObject, JsonObject | None, Warn], list[FieldError]]
    takes_long: Callable[[Kind], bool]  # judging an object, however small it is

    async def create(self, call: Call, new: JsonObject, *, dry_run: bool) -> JsonObject:
        """Store a new object and return it; raises AlreadyExists, Invalid, Forbidden, ..."""
        metadata = new.setdefault("metadata", {})
        version = metadata.pop("resourceVersion", None) or ""
        # What is not a version at all is not taken for one.
        if version.isascii() and version.isdigit() and int(version):
            raise errors.plain_failure(500, "resourceVersion should not be set on objects to be created")
        generated = not metadata.get("name") and metadata.get("generateName")
        for attempt in range(NAME_ATTEMPTS):
            candidate = copy_json(new) if generated else new
            if generated:
                candidate["metadata"]["name"] = self.environment.generated_name(metadata["generateName"])
            try:
                return await self._create(call, candidate, dry_run=dry_run)
            except errors.ApiError as problem:
                if not (generated and problem.reason == "AlreadyExists" and attempt + 1 < NAME_ATTEMPTS):
                    raise
        raise AssertionError("unreachable")

    async def _create(self, call: Call, new: JsonObject, *, dry_run: bool) -> JsonObject:
        kind = call.route.kind
        # Before admission and strategy: what the server fills in belongs to nobody.
        await compute(call.size, self.owners.track, call, new, None)
        await self._mutate(call, "CREATE", new, None, dry_run=dry_run)
        metadata = new["metadata"]
        self._give_identity(call, metadata)
        await compute(call.size, prepare_create, kind, new, self.environment.timestamp())
        self.prepare_special(kind, new, None)
        self.complete(kind, new)
        problems = self.rules.create(call, new)
        await compute(self._judging_size(call, new), self._validate_new, call, new, problems)
        if call.keeps_empties:
            self.drop_empties(kind, new)
        await self._admit(call, "CREATE", new, None, dry_run=dry_run)
        self.rules.admit(call, new)
        key = key_of(kind, call.route.namespace, metadata["name"])
        existing = self.objects.store.get(key)
        if existing is not None:
            raise self._already_exists(call, metadata["name"])
        if dry_run:
            return new
        try:
            stored, _ = await self.objects.put(kind, key, new, ABSENT)
        except WriteConflict:
            raise self._already_exists(call, metadata["name"]) from None
        return stored

    async def update(
        self,
        call: Call,
        transform: Transform,
        *,
        dry_run: bool,
        uid: str = "",
        allow_create: bool | None = None,
    ) -> tuple[JsonObject, bool]:
        """Change an object, or create it where that is allowed; tells whether it was created.

        `allow_create` None: as the kind has it for plain updates.
        """
        kind, route = call.route.kind, call.route
        key = key_of(kind, route.namespace, route.name)
        may_create = allow_create
        if may_create is None:
            may_create = strategy_of(kind).creates_on_update and not route.subresource
        for _ in range(MOST_ATTEMPTS):
            record = self.objects.store.get(key)
            if record is None:
                if not may_create:
                    raise errors.not_found(kind.group, kind.plural, route.name)
                if uid:
                    raise _uid_conflict(call, uid, "")
                self.rules.check_may_create(call)
                new = await compute(call.size, transform, None)
                new["metadata"].pop("resourceVersion", None)
                try:
                    return await self._create(call, new, dry_run=dry_run), True
                except errors.ApiError as problem:
                    if problem.reason == "AlreadyExists" and self.objects.store.get(key) is not None:
                        continue
                    raise
            call.extra_bytes = max(call.extra_bytes, len(record.value))
            old = await compute(call.size, self.objects.decoded, kind, record)
            if uid and uid != old["metadata"].get("uid"):
                raise _uid_conflict(call, uid, old["metadata"].get("uid", ""))
            new = await compute(call.size, transform, old)
            self._check_version(call, new, record.revision)
            await self._change(call, new, old, dry_run=dry_run)
            if self._dies_with(new, old, kind):
                if not dry_run:
                    try:
                        await self.objects.store.delete(key, record.revision)
                    except WriteConflict:
                        continue
                return new, False
            if dry_run:
                new["metadata"]["resourceVersion"] = str(record.revision)
                return new, False
            if await compute(call.size, _same_but_version, new, old):
                return old, False
            try:
                stored, _ = await self.objects.put(kind, key, new, record.revision)
            except WriteConflict:
                continue
            return stored, False
        raise errors.conflict(kind.group, kind.plural, route.name, errors.MODIFIED)

    # --- steps ---------------------------------------------------------------

    def _give_identity(self, call: Call, metadata: JsonObject) -> None:
        for part in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(part, None)
        metadata["uid"] = self.environment.new_uid()
        metadata["creationTimestamp"] = self.environment.timestamp()
        if call.route.kind.namespaced:
            metadata["namespace"] = call.route.namespace

    def _judging_size(self, call: Call, new: JsonObject) -> int:
        """Return the size of the request that takes as long to judge."""
        if self.takes_long(call.route.kind):
            return max(call.size, LARGE)
        return validation_size(call, new)

    def _validate_new(self, call: Call, new: JsonObject, problems: Sequence[FieldError]) -> None:
        kind = call.route.kind
        key = kind_key(kind.group, kind.kind)
        problems = [
            *problems,
            *validate_create(key, new, self.context(call)),
            *self.validate_custom(kind, new, None, call.warn),
        ]
        if problems:
            raise errors.invalid(_group_in_errors(kind), kind.kind, new["metadata"].get("name", ""), problems)
        for text in warnings_create(key, new):
            call.warn(text)

    def _check_version(self, call: Call, new: JsonObject, current: int) -> None:
        kind = call.route.kind
        text = new["metadata"].get("resourceVersion") or ""
        wanted = parse_version(text, lambda why: errors.plain_failure(500, why), said=False) if text else 0
        if wanted == 0:
            key = kind_key(kind.group, kind.kind)
            if self.is_custom(kind) or not allows_unconditional_update(key, call.route.version):
                raise errors.invalid(kind.group, kind.plural, call.route.name, [missing_resource_version()])
            new["metadata"]["resourceVersion"] = str(current)
        elif wanted != current:
            raise errors.conflict(kind.group, kind.plural, call.route.name, errors.MODIFIED)

    async def _mutate(
        self, call: Call, operation: str, new: JsonObject, old: JsonObject | None, *, dry_run: bool
    ) -> None:
        """Let admission complete a new object: the built-in plugins, then webhooks."""

        def plugins() -> None:
            self.admission.mutate(call, operation, new, old)

        plugins()
        await self.configured.mutate(call, operation, new, old, dry_run=dry_run, plugins=plugins)

    async def _admit(
        self, call: Call, operation: str, new: JsonObject, old: JsonObject | None, *, dry_run: bool
    ) -> None:
        """Let admission judge an object in its final form; quotas, which take what they allow, come last."""
        await self.configured.validate(call, operation, new, old, dry_run=dry_run)
        self.admission.validate(call, operation, new, old)

    async def _change(self, call: Call, new: JsonObject, old: JsonObject, *, dry_run: bool) -> None:
        """Bring a new object into its final form and judge it."""
        kind, subresource = call.route.kind, call.route.subresource
        await compute(call.size, self.owners.track, call, new, old)
        await self._mutate(call, "UPDATE", new, old, dry_run=dry_run)
        metadata, before = new["metadata"], old["metadata"]
        _take(metadata, before, "generation")
        now = self.environment.timestamp()
        if subresource == "status":
            await compute(call.size, prepare_status, kind, new, old, now)
            self.prepare_special(kind, new, old)
        elif subresource == "finalize":
            prepare_finalize(new, old)
        elif subresource == "resize":
            prepare_resize(kind, new, old)
        elif subresource == "resourceclaims":
            prepare_pod_claims(kind, new, old)
        else:
            await compute(call.size, prepare_update, kind, new, old, now)
            self.prepare_special(kind, new, old)
        self.complete(kind, new)
        metadata.pop("selfLink", None)
        if not metadata.get("uid"):
            metadata["uid"] = before.get("uid", "")
        _take(metadata, before, "creationTimestamp")
        if before.get("deletionTimestamp"):
            metadata["deletionTimestamp"] = before["deletionTimestamp"]
        if "deletionGracePeriodSeconds" in before and metadata.get("deletionGracePeriodSeconds") is None:
            metadata["deletionGracePeriodSeconds"] = before["deletionGracePeriodSeconds"]
        problems = self.rules.change(call, new, old) if subresource else []
        await compute(self._judging_size(call, new), self._validate_changed, call, new, old, problems)
        if call.keeps_empties:
            self.drop_empties(kind, new)
        await self._admit(call, "UPDATE", new, old, dry_run=dry_run)
        if not subresource:
            self.rules.admit(call, new)

    def _validate_changed(
        self, call: Call, new: JsonObject, old: JsonObject, problems: Sequence[FieldError]
    ) -> None:
        kind = call.route.kind
        key, context = kind_key(kind.group, kind.kind), self.context(call)
        if call.route.subresource == "status":
            problems = [*problems, *validate_status_update(key, new, old, context)]
        elif call.route.subresource == "finalize":
            problems = validate_namespace_finalize(new, old, context)
        elif call.route.subresource == "resize":
            problems = validate_pod_resize(new, old, context)
        elif call.route.subresource == "resourceclaims":
            problems = [*problems, *validate_pod_claims(new, old)]
        else:
            problems = validate_update(key, new, old, context)
        problems = [*problems, *self.validate_custom(kind, new, old, call.warn)]
        if problems:
            raise errors.invalid(_group_in_errors(kind), kind.kind, call.route.name, problems)
        if call.route.subresource != "status":
            for text in warnings_update(key, new, old):
                call.warn(text)

    def _dies_with(self, new: JsonObject, old: JsonObject, kind: Kind) -> bool:
        """Return whether an update took away the last thing that kept a deleted object."""
        before = old["metadata"]
        if new["metadata"].get("finalizers") or not before.get("deletionTimestamp"):
            return False
        if kind.plural == "namespaces" and not kind.group and (new.get("spec") or {}).get("finalizers"):
            return False
        return not before.get("deletionGracePeriodSeconds")

    def _already_exists(self, call: Call, name: str) -> errors.ApiError:
        kind = call.route.kind
        existing = self.objects.find(kind, call.route.namespace, name)
        dying = existing is not None and bool(existing["metadata"].get("deletionTimestamp"))
        return errors.already_exists(kind.group, kind.plural, name, dying)


def _group_in_errors(kind: Kind) -> str:
    """Return the group that names a kind in validation errors: of its stored form."""
    return storage_of(kind)[0]


def _take(new: JsonObject, old: JsonObject, part: str) -> None:
    if part in old:
        new[part] = old[part]
    else:
        new.pop(part, None)


def _same_but_version(new: JsonObject, old: JsonObject) -> bool:
    """Return whether writing would change nothing."""
    if any(new.get(part) != old.get(part) for part in {*new, *old} - {"metadata", "kind", "apiVersion"}):
        return False
    version = {"resourceVersion": old["metadata"].get("resourceVersion")}
    return bool({**new["metadata"], **version} == old["metadata"])


# Where etcd's keys differ from the resource; clients see them in this message only.
_STORED_AS = {"nodes": "minions", "services": "services/specs"}


def _uid_conflict(call: Call, wanted: str, found: str) -> errors.ApiError:
    kind = call.route.kind
    plural = _STORED_AS.get(kind.group_resource, kind.plural)
    place = f"{call.route.namespace}/" if call.route.namespace else ""
    key = f"/registry/{plural}/{place}{call.route.name}"
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )
    return errors.conflict(kind.group, kind.plural, call.route.name, why)
