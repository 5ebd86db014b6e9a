"""`dray user`: who uses the shared machine, their limits, and who is an administrator.

Limits are stored in one ConfigMap (`dray.scheduler.user_limits`); an administrator is a user with a
ClusterRoleBinding to cluster-admin. Changing either needs an administrator: root on the machine is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dray.cli.arguments import add_flags, quantity, whole_number
from dray.cli.job_flags import duration
from dray.cli.output import CommandError, add_output_flag, emit, table

if TYPE_CHECKING:
    from dray.client import Client
    from dray.scheduler.limits import Limits

_MOST = 1_000_000
# flag -> field of Limits, type, name of the value, help
_LIMITS: dict[str, tuple[str, Any, str, str]] = {
    "--devices": ("devices", whole_number(0, _MOST), "N", "devices held at once"),
    "--device-memory": ("device_memory", quantity, "AMOUNT", "memory of devices held at once, such as 80Gi"),
    "--running": ("running", whole_number(0, _MOST), "N", "jobs that run at once"),
    "--waiting": ("waiting", whole_number(0, _MOST), "N", "jobs that wait at once"),
    "--longest": ("seconds", duration, "TIME", "longest time of a job, for example 12h or 2d"),
    "--default-time": ("default_seconds", duration, "TIME", "time of a job that names none"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = commands.add_parser("list", help="list the users with their jobs and limits")
    limit = commands.add_parser("limit", help="show or set the limits of a user, a Unix group or everybody")
    who = limit.add_mutually_exclusive_group()
    who.add_argument("user", nargs="?", metavar="USER", help="the user")
    who.add_argument("--unix-group", metavar="GROUP", help="all members of a Unix group")
    who.add_argument("--everybody", action="store_true", help="users and groups without limits of their own")
    for flag, (field, kind, value, text) in _LIMITS.items():
        limit.add_argument(flag, dest=field, type=kind, metavar=value, help=text)
    limit.add_argument("--clear", action="store_true", help="remove all limits that were set before")
    admin = commands.add_parser("admin", help="make a user an administrator, or an ordinary user again")
    admin.add_argument("user", metavar="USER", help="the user")
    admin.add_argument("--remove", action="store_true", help="make an ordinary user of an administrator")
    for command in (listing, limit, admin):
        add_output_flag(command)
        add_flags(command, "--kubeconfig", "--context")


def run(args: argparse.Namespace) -> int:
    """List or change; needs an administrator."""
    from dray.cli.sources import connect
    from dray.client import Forbidden

    if args.action == "limit" and not (args.user or args.unix_group or args.everybody):
        raise CommandError("no user was given", "name one, or give --unix-group GROUP or --everybody")
    work = {"list": _list, "limit": _limit, "admin": _admin}[args.action]

    async def act() -> int:
        async with connect(args.kubeconfig, args.context) as client:
            action: Coroutine[Any, Any, int] = work(args, client)
            try:
                return await action
            except Forbidden as error:
                raise CommandError(
                    f"not permitted (403): {error}",
                    "this is for administrators, such as root; `dray queue` shows your own limits and share",
                    code=1,
                ) from error

    return asyncio.run(act())


async def _list(args: argparse.Namespace, client: Client) -> int:
    from dray.api.user_names import USER_ANNOTATION, USER_LABEL
    from dray.client.resources import NAMESPACES, PODS
    from dray.scheduler.user_limits import effective_limits, format_entry

    namespaces = await client.list(NAMESPACES, labelSelector=f"{USER_LABEL}=true")
    pods = await client.list(PODS)
    stored, admins = await _stored(client), await _admins(client)
    counts: Counter[tuple[str, str]] = Counter(
        (pod["metadata"]["namespace"], (pod.get("status") or {}).get("phase", "Pending"))
        for pod in pods.items
    )
    users = []
    for namespace in namespaces.items:
        metadata = namespace["metadata"]
        name = (metadata.get("annotations") or {}).get(USER_ANNOTATION, "")
        running, waiting = counts[metadata["name"], "Running"], counts[metadata["name"], "Pending"]
        limits = effective_limits(stored, name, _unix_groups(name))
        users.append(
            {
                "user": name,
                "namespace": metadata["name"],
                "administrator": name in admins,
                "running": running,
                "waiting": waiting,
                "limits": _as_data(format_entry(limits)),
            }
        )
    if args.output != "table":
        emit(users, args.output)
        return 0
    rows = [
        [user["user"], user["namespace"], "yes" if user["administrator"] else "", user["running"],
         user["waiting"], _words(user["limits"])]
        for user in users
    ]  # fmt: skip
    table(["USER", "NAMESPACE", "ADMIN", "RUNNING", "WAITING", "LIMITS"], rows)
    return 0


async def _limit(args: argparse.Namespace, client: Client) -> int:
    from dray.client import AlreadyExists
    from dray.client.resources import CONFIG_MAPS
    from dray.scheduler.limits import Limits
    from dray.scheduler.user_limits import (
        NAME,
        NAMESPACE,
        effective_limits,
        entry_key,
        format_entry,
    )

    try:
        key = entry_key(user=args.user or "", group=args.unix_group or "")
    except ValueError as error:
        raise CommandError(str(error)) from error
    stored = await _stored(client)
    given = {field: getattr(args, field) for field, *_ in _LIMITS.values()}
    changes = {field: value for field, value in given.items() if value is not None}
    own = Limits() if args.clear else stored.entries.get(key, Limits())
    new = replace(own, **changes)
    if changes or args.clear:
        _check_known(args)
        value = None if new == Limits() else format_entry(new)
        with_entry = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}}
        with contextlib.suppress(AlreadyExists):
            await client.create(CONFIG_MAPS, with_entry, NAMESPACE)
        await client.patch(CONFIG_MAPS, NAME, {"data": {key: value}}, namespace=NAMESPACE)
        stored = await _stored(client)
    shown = effective_limits(stored, args.user, _unix_groups(args.user)) if args.user else new
    _show_limits(args.user or args.unix_group or "everybody", shown, args.output)
    return 0


def _show_limits(name: str, limits: Limits, output: str) -> None:
    from dray.scheduler.user_limits import format_entry

    values = _as_data(format_entry(limits))
    if output != "table":
        emit({"name": name, "limits": values}, output)
    else:
        table(["NAME", "LIMITS"], [[name, _words(values)]])


async def _admin(args: argparse.Namespace, client: Client) -> int:
    from dray.api.user_names import ADMIN_BINDING_PREFIX
    from dray.client import AlreadyExists, NotFound
    from dray.client.resources import CLUSTER_ROLE_BINDINGS

    name = ADMIN_BINDING_PREFIX + args.user
    if args.remove:
        try:
            await client.delete(CLUSTER_ROLE_BINDINGS, name)
        except NotFound:
            raise CommandError(f"{args.user} is not an administrator", code=1) from None
    else:
        _check_known(args)
        group = CLUSTER_ROLE_BINDINGS.group
        binding = {
            "apiVersion": CLUSTER_ROLE_BINDINGS.api_version,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "subjects": [{"kind": "User", "apiGroup": group, "name": args.user}],
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        }
        with contextlib.suppress(AlreadyExists):
            await client.create(CLUSTER_ROLE_BINDINGS, binding)
    answer = {"user": args.user, "administrator": not args.remove}
    if args.output != "table":
        emit(answer, args.output)
    else:
        print(f"{args.user} is {'an ordinary user' if args.remove else 'an administrator'}")
    return 0


def _check_known(args: argparse.Namespace) -> None:
    """Refuse names that this machine does not have: they are typing errors."""
    import grp

    from dray.host.accounts import account_of_name

    if args.user and account_of_name(args.user) is None:
        raise CommandError(
            f"there is no user {args.user[:80]!r} on this machine", "`getent passwd` lists users"
        )
    group = getattr(args, "unix_group", None)
    if group:
        try:
            grp.getgrnam(group)
        except (KeyError, ValueError):
            raise CommandError(
                f"there is no group {group[:80]!r} on this machine", "`getent group` lists groups"
            ) from None


async def _stored(client: Client) -> Any:
    from dray.cli.output import say
    from dray.client import NotFound
    from dray.client.resources import CONFIG_MAPS
    from dray.scheduler.user_limits import NAME, NAMESPACE, parse_user_limits

    try:
        found = await client.get(CONFIG_MAPS, NAME, NAMESPACE)
    except NotFound:
        found = {}
    limits = parse_user_limits(found.get("data") or {})
    for problem in limits.problems:
        say(f"warning: {problem}")
    return limits


async def _admins(client: Client) -> set[str]:
    from dray.api.user_names import ADMIN_BINDING_PREFIX
    from dray.client.resources import CLUSTER_ROLE_BINDINGS

    bindings = await client.list(CLUSTER_ROLE_BINDINGS)
    names = (binding["metadata"]["name"] for binding in bindings.items)
    return {
        name.removeprefix(ADMIN_BINDING_PREFIX) for name in names if name.startswith(ADMIN_BINDING_PREFIX)
    }


def _unix_groups(user: str) -> list[str]:
    from dray.api.user_names import UNIX_GROUP_PREFIX
    from dray.host.accounts import account_of_name

    account = account_of_name(user)
    return [] if account is None else [UNIX_GROUP_PREFIX + name for _, name in account.groups]


def _as_data(text: str) -> dict[str, Any]:
    from dray.api.parsing import load_json

    found: dict[str, Any] = load_json(text.encode())
    return found


def _words(limits: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in limits.items()) or "none"
