"""delete: marking, waiting for finalizers, dying with grace, vanishing.

The server only marks. An object vanishes at once when nothing holds it; finalizers
hold it (those of `orphan` and `foregroundDeletion` stand for work of the garbage
collector), a pod's grace period holds it, a namespace's content holds it. Whoever
removes the last finalizer with an update completes the deletion (see `create_and_update`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dray.api.json_types import JsonObject
from dray.api.kinds import Kind
from dray.api.times import format_time, parse_time
from dray.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from dray.server.objects import pod_strategy
from dray.server.objects.create_and_update import MOST_ATTEMPTS, Admission, ConfiguredAdmission
from dray.server.objects.stored_objects import Objects, key_of, storage_of
from dray.server.objects.write_strategies import Strategy, strategy_of
from dray.server.requests import Call, DeleteOptions, Environment, errors
from dray.server.store import Record, WriteConflict


@dataclass(slots=True)
class Deleter:
    """Deletes objects of every kind."""

    objects: Objects
    admission: Admission
    configured: ConfiguredAdmission
    environment: Environment

    async def delete(self, call: Call, name: str, options: DeleteOptions) -> tuple[JsonObject, bool]:
        """Delete an object, or begin to; returns its last state and whether it vanished."""
        kind, namespace = call.route.kind, call.route.namespace
        key = key_of(kind, namespace, name)
        for _ in range(MOST_ATTEMPTS):
            record = self.objects.store.get(key)
            if record is None:
                raise errors.not_found(kind.group, kind.plural, name)
            old = self.objects.decoded(kind, record)
            self.admission.validate_delete(call, old)
            check_preconditions(kind, old, options)
            await self.configured.validate_delete(call, old, dry_run=options.dry_run)
            try:
                if kind.plural == "namespaces" and not kind.group:
                    return await self._delete_namespace(kind, old, record, options)
                return await self._delete(kind, old, record, options)
            except WriteConflict:
                continue  # somebody changed it meanwhile: decide again on what is there
        raise errors.conflict(kind.group, kind.plural, name, errors.MODIFIED)

    async def _delete(
        self, kind: Kind, old: JsonObject, record: Record, options: DeleteOptions
    ) -> tuple[JsonObject, bool]:
        strategy = strategy_of(kind)
        # Deletion touches nothing below metadata; all else is shared with the old object.
        metadata = dict(old["metadata"])
        new: JsonObject = {**old, "metadata": metadata}
        graceful = False
        if strategy.graceful:
            pending, graceful = self._begin_grace(new, options)
            if pending:
                return old, False
        finalizers = finalizers_after(old, strategy, options)
        if finalizers != (metadata.get("finalizers") or []):
            metadata["finalizers"] = finalizers
            if not finalizers:
                del metadata["finalizers"]
        if finalizers and not graceful:
            self._mark(metadata)
        if finalizers or (graceful and metadata["deletionGracePeriodSeconds"] > 0):
            return await self._write(kind, new, record, options), False
        if options.dry_run:
            return new, True
        if graceful:
            # Watchers see a pod marked before they see it gone, even when it goes at once.
            new, record = await self.objects.put(kind, record.key, new, record.revision)
            return await self._finish(kind, new, record)
        event = await self.objects.store.delete(record.key, record.revision)
        assert event is not None
        return _gone(old, event.revision), True

    async def _finish(self, kind: Kind, marked: JsonObject, record: Record) -> tuple[JsonObject, bool]:
        """Remove what was marked to go at once, whatever others write to it meanwhile.

        An update of a marked object completes its deletion (see `create_and_update`): then it is gone, as asked.
        """
        for _ in range(MOST_ATTEMPTS):
            try:
                event = await self.objects.store.delete(record.key, record.revision)
            except WriteConflict:
                current = self.objects.store.get(record.key)
                found = None if current is None else self.objects.decoded(kind, current)
                if current is None or found is None or found["metadata"]["uid"] != marked["metadata"]["uid"]:
                    return marked, True
                if found["metadata"].get("finalizers"):
                    return found, False
                marked, record = found, current
            else:
                assert event is not None
                return _gone(marked, event.revision), True
        raise errors.conflict(kind.group, kind.plural, marked["metadata"]["name"], errors.MODIFIED)

    async def _delete_namespace(
        self, kind: Kind, old: JsonObject, record: Record, options: DeleteOptions
    ) -> tuple[JsonObject, bool]:
        if not old["metadata"].get("deletionTimestamp"):
            new: JsonObject = {**old, "metadata": dict(old["metadata"])}
            new["metadata"]["deletionTimestamp"] = self.environment.timestamp()
            new["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
            finalizers = finalizers_after(old, strategy_of(kind), options)
            if finalizers:
                new["metadata"]["finalizers"] = finalizers
            return await self._write(kind, new, record, options), False
        if (old.get("spec") or {}).get("finalizers"):
            return old, False
        return await self._delete(kind, old, record, options)

    async def _write(self, kind: Kind, new: JsonObject, record: Record, options: DeleteOptions) -> JsonObject:
        if options.dry_run:
            return new
        old = self.objects.decoded(kind, record)
        if new == old:
            return old
        stored, _ = await self.objects.put(kind, record.key, new, record.revision)
        return stored

    def _mark(self, metadata: JsonObject) -> None:
        """Say that an object waits for its finalizers only."""
        now = self.environment.timestamp()
        if not metadata.get("deletionTimestamp"):
            _count(metadata)
            metadata["deletionTimestamp"] = now
        elif metadata["deletionTimestamp"] > now:
            metadata["deletionTimestamp"] = now
        metadata["deletionGracePeriodSeconds"] = 0

    def _begin_grace(self, new: JsonObject, options: DeleteOptions) -> tuple[bool, bool]:
        """Mark a pod for its grace period; returns (nothing to do, graceful)."""
        metadata = new["metadata"]
        wanted = options.grace_period_seconds
        if wanted is not None and wanted < 0:
            wanted = 1
        running = metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp"):
            if not running:
                return False, False
            if wanted is None or wanted >= running:
                return True, False
            begun = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=running)
            end, period = begun + timedelta(seconds=wanted), wanted
            now = self.environment.now()
            if end < now:
                # Too late for the shorter period, but somebody still must see it end.
                end, period = now, 1 if wanted else 0
            metadata["deletionTimestamp"] = format_time(end)
            metadata["deletionGracePeriodSeconds"] = period
            return False, True
        period = pod_strategy.grace_period(new, wanted)
        metadata["deletionTimestamp"] = format_time(self.environment.now() + timedelta(seconds=period))
        metadata["deletionGracePeriodSeconds"] = period
        _count(metadata)
        return False, True


def _gone(last: JsonObject, revision: int) -> JsonObject:
    """Return an object as the answer shows it: a pod as it was marked, others as they were last stored."""
    return {**last, "metadata": {**last["metadata"], "resourceVersion": str(revision)}}


def check_preconditions(kind: Kind, obj: JsonObject, options: DeleteOptions) -> None:
    """Raise the conflict when the object is not the one that the client meant."""
    metadata = obj["metadata"]
    name = metadata.get("name", "")
    for word, wanted, found in (
        ("UID", options.uid, metadata.get("uid", "")),
        ("ResourceVersion", options.resource_version, metadata.get("resourceVersion", "")),
    ):
        if wanted is not None and wanted != found:
            hint = "deleted and then recreated" if word == "UID" else "modified"
            raise errors.conflict(
                storage_of(kind)[0],
                # The reference names the kind here, where other conflicts name the plural.
                kind.plural if kind.plural == "namespaces" and not kind.group else kind.kind,
                name,
                f"the {word} in the precondition ({wanted}) does not match the {word} in record ({found}). "
                f"The object might have been {hint}",
            )


def finalizers_after(obj: JsonObject, strategy: Strategy, options: DeleteOptions) -> list[str]:
    """Return the finalizers that an object has once deletion began."""
    finalizers: list[str] = list(obj["metadata"].get("finalizers") or [])
    if strategy.dependents == "unsupported":
        orphan = foreground = False
    elif options.orphan_dependents is not None:
        orphan, foreground = options.orphan_dependents, False
    elif options.propagation_policy is not None:
        orphan = options.propagation_policy == "Orphan"
        foreground = options.propagation_policy == "Foreground"
    elif ORPHAN_FINALIZER in finalizers or FOREGROUND_FINALIZER in finalizers:
        orphan, foreground = ORPHAN_FINALIZER in finalizers, FOREGROUND_FINALIZER in finalizers
    else:
        orphan, foreground = strategy.dependents == "orphan", False
    wanted = [name for name in finalizers if name not in (ORPHAN_FINALIZER, FOREGROUND_FINALIZER)]
    wanted += [ORPHAN_FINALIZER] if orphan else []
    wanted += [FOREGROUND_FINALIZER] if foreground else []
    return finalizers if set(wanted) == set(finalizers) else wanted


def _count(metadata: JsonObject) -> None:
    if metadata.get("generation"):
        metadata["generation"] += 1
