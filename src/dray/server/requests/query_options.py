"""Options of requests: what query parameters and delete bodies ask for.

Values are read as kube-apiserver reads them (a boolean is true unless it says
"false" or "0"; a number that cannot be parsed ends the request with 400) and checked
as it checks them (422 with the option's name as field).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dray.api.kinds import META
from dray.api.pod_logs import parse_boolean, parse_integer
from dray.api.reading import DecodeError, read
from dray.api.schema import schema_of
from dray.api.validation.fields import (
    FieldError,
    Path,
    forbidden,
    invalid,
    not_supported,
    required,
)
from dray.api.validation.metadata import validate_field_manager
from dray.server.requests import errors
from dray.server.requests.messages import Request

NOT_OLDER_THAN = "NotOlderThan"
EXACT = "Exact"


@dataclass(frozen=True, slots=True)
class ListOptions:
    """Which objects of a collection, of which time, and how many at once."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    match: str = ""  # resourceVersionMatch
    limit: int = 0
    continue_token: str = ""
    timeout_seconds: int | None = None
    bookmarks: bool = False
    send_initial_events: bool | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a create, update or patch is to be done."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = ""  # empty means Warn
    force: bool = False


@dataclass(slots=True)
class DeleteOptions:
    """How a deletion is to be done; a graceful kind may set the grace period."""

    grace_period_seconds: int | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


def list_options(request: Request, *, watch: bool) -> ListOptions:
    """Read and check the options of list, watch and deletecollection."""
    send_initial = _boolean(request, "sendInitialEvents")
    options = ListOptions(
        label_selector=request.first("labelSelector"),
        field_selector=request.first("fieldSelector"),
        resource_version=request.first("resourceVersion"),
        match=request.first("resourceVersionMatch"),
        limit=max(0, _integer(request, "limit") or 0),
        continue_token=request.first("continue"),
        timeout_seconds=_integer(request, "timeoutSeconds"),
        bookmarks=bool(_boolean(request, "allowWatchBookmarks")),
        send_initial_events=send_initial,
    )
    problems = _watch_problems(options) if watch else _list_problems(options)
    if problems:
        raise errors.invalid(META, "ListOptions", "", problems)
    if watch and send_initial is None and options.resource_version in ("", "0"):
        # Watches that begin with the state are watch lists, even if they do not know the word.
        return replace(options, send_initial_events=True)
    return options


def _list_problems(options: ListOptions) -> list[FieldError]:
    problems: list[FieldError] = []
    field = "resourceVersionMatch"
    if options.match:
        if not options.resource_version:
            problems.append(forbidden(field, f"{field} is forbidden unless resourceVersion is provided"))
        if options.continue_token:
            problems.append(forbidden(field, f"{field} is forbidden when continue is provided"))
        if options.match not in (EXACT, NOT_OLDER_THAN):
            problems.append(not_supported(field, options.match, [EXACT, NOT_OLDER_THAN, ""]))
        if options.match == EXACT and options.resource_version == "0":
            problems.append(forbidden(field, f'{field} "exact" is forbidden for resourceVersion "0"'))
    if options.send_initial_events is not None:
        problems.append(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    return problems


def _watch_problems(options: ListOptions) -> list[FieldError]:
    problems: list[FieldError] = []
    field = "resourceVersionMatch"
    if options.send_initial_events is not None and options.match != NOT_OLDER_THAN:
        problems.append(forbidden(field, f"sendInitialEvents requires setting {field} to {NOT_OLDER_THAN}"))
    if options.match:
        if options.send_initial_events is None:
            problems.append(
                forbidden(field, f"{field} is forbidden for watch unless sendInitialEvents is provided")
            )
        if options.match != NOT_OLDER_THAN:
            problems.append(not_supported(field, options.match, [NOT_OLDER_THAN]))
        if options.continue_token:
            problems.append(forbidden(field, f"{field} is forbidden when continue is provided"))
    return problems


def write_options(
    request: Request, kind: str, *, is_patch: bool = False, is_apply: bool = False
) -> WriteOptions:
    """Read and check the options of create, update (`kind` names them) and patch."""
    read = _known_write_options if sum(map(_length, request.query)) <= _LONGEST_KNOWN else _write_options
    return read(request.query, kind, is_patch, is_apply)


def _length(pair: tuple[str, str]) -> int:
    return len(pair[0]) + len(pair[1])


def _write_options(
    query: tuple[tuple[str, str], ...], kind: str, is_patch: bool, is_apply: bool
) -> WriteOptions:
    request = Request("", "", query)
    manager = request.first("fieldManager")
    validation = request.first("fieldValidation")
    dry_run = request.all("dryRun")
    force = _boolean(request, "force")
    problems: list[FieldError] = []
    if is_apply and not manager:
        problems.append(required("fieldManager", "is required for apply patch"))
    if is_patch and not is_apply and force is not None:
        problems.append(forbidden("force", "may not be specified for non-apply patch"))
    problems += validate_field_manager(manager, Path("fieldManager"))
    problems += _dry_run_problems(dry_run)
    if validation not in ("", "Ignore", "Warn", "Strict"):
        problems.append(not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
    if problems:
        raise errors.invalid(META, kind, "", problems)
    return WriteOptions(bool(dry_run), manager, validation, bool(force))


_LONGEST_KNOWN = 500  # characters of a query; nobody repeats longer ones
# A client asks with the same few queries again and again.
_known_write_options = lru_cache(maxsize=1024)(_write_options)


def _dry_run_problems(values: Sequence[str]) -> list[FieldError]:
    if all(value == "All" for value in values):
        return []
    return [not_supported("dryRun", list(values), ["All"])]


def delete_options(request: Request, body: dict[str, Any] | None) -> DeleteOptions:
    """Read and check delete options; a body replaces the query."""
    if body is None:
        options, dry_run = _options_of_query(request)
    else:
        options, dry_run = _options_of_body(body)
    problems = _delete_problems(options, dry_run)
    if problems:
        raise errors.invalid(META, "DeleteOptions", "", problems)
    options.dry_run = bool(dry_run)
    return options


def _options_of_query(request: Request) -> tuple[DeleteOptions, list[str]]:
    options = DeleteOptions(
        grace_period_seconds=_integer(request, "gracePeriodSeconds"),
        propagation_policy=request.first("propagationPolicy") or None,
        orphan_dependents=_boolean(request, "orphanDependents"),
    )
    return options, request.all("dryRun")


def _options_of_body(body: dict[str, Any]) -> tuple[DeleteOptions, list[str]]:
    try:
        found, _ = read(schema_of(META, "v1", "DeleteOptions"), body)
    except DecodeError as problem:
        raise errors.bad_request(str(problem)) from None
    preconditions = found.get("preconditions") or {}
    options = DeleteOptions(
        grace_period_seconds=found.get("gracePeriodSeconds"),
        propagation_policy=found.get("propagationPolicy"),
        orphan_dependents=found.get("orphanDependents"),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
    )
    return options, found.get("dryRun") or []


def _delete_problems(options: DeleteOptions, dry_run: Sequence[str]) -> list[FieldError]:
    problems: list[FieldError] = []
    policy = options.propagation_policy
    if options.orphan_dependents is not None and policy is not None:
        problems.append(
            invalid(
                "propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"
            )
        )
    if policy is not None and policy not in ("Foreground", "Background", "Orphan"):
        problems.append(
            not_supported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"])
        )
    return problems + _dry_run_problems(dry_run)


def _boolean(request: Request, name: str) -> bool | None:
    if not request.has(name):
        return None
    return parse_boolean(request.first(name))


def _integer(request: Request, name: str) -> int | None:
    if not request.has(name):
        return None
    try:
        return parse_integer(request.first(name))
    except ValueError as problem:
        raise errors.bad_request(str(problem)) from None
