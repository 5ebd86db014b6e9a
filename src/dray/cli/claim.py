"""`dray claim`: give a running pod a claim, and take it away again (docs/guides/running-pods.md).

The request is a change of the pod's list of claims through pods/resourceclaims. Then the command waits for what the
scheduler and the pod's node make of it, which they tell in the claim, in the pod's status and in events.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dray.api.features import DEVICES_AFTER_POD_START
from dray.api.json_types import JsonObject
from dray.api.well_known import CLAIMS_PREPARED, TERMINAL_PHASES
from dray.cli.arguments import add_flags, seconds
from dray.cli.output import CommandError, add_output_flag, emit, say

if TYPE_CHECKING:
    from dray.client import Client

_LOOK_SECONDS = 0.2
_SILENT_SECONDS = 3.0  # in which a claim that is being allocated is nothing to talk about
_ATTEMPTS = 5  # of a change that meets others


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    attach = actions.add_parser("attach", help="give a running pod a claim, without restarting it")
    detach = actions.add_parser("detach", help="take a claim away from a running pod")
    for command in (attach, detach):
        command.add_argument("pod", metavar="POD", help="the pod, which must be running")
        command.add_argument("claim", metavar="CLAIM", help="the ResourceClaim, in the pod's namespace")
        command.add_argument("--no-wait", action="store_true", help="request it only, do not wait for it")
        command.add_argument(
            "--timeout",
            type=seconds(1, 3600),
            default=60.0,
            metavar="SECONDS",
            help="how long to wait (default: 60)",
        )
        add_output_flag(command)
        add_flags(command, "--namespace", "--kubeconfig", "--context")
    attach.add_argument(
        "--name", metavar="NAME", help="name of the entry in spec.resourceClaims (default: that of the claim)"
    )


def run(args: argparse.Namespace) -> int:
    """Request it and wait; exit code 1 when it was refused or did not happen in time."""
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        pod = await _request(client, namespace, args)
        devices: list[str] = []
        if not args.no_wait:
            devices = await _wait(client, pod, args)
    what = f"claim {namespace}/{args.claim}"
    if args.output != "table":
        emit(_as_data(namespace, args, devices), args.output)
    elif args.no_wait:
        say(f"{what}: {args.action} requested for pod {args.pod}")
    elif args.action == "attach":
        say(f"{what} is attached to pod {args.pod}: {', '.join(devices)}")
    else:
        say(f"{what} is detached from pod {args.pod}")
    return 0


def _as_data(namespace: str, args: argparse.Namespace, devices: list[str]) -> JsonObject:
    return {
        "namespace": namespace,
        "pod": args.pod,
        "claim": args.claim,
        "action": args.action,
        "done": not args.no_wait,
        "devices": devices,
    }


# --- requesting ----------------------------------------------------------------------------------


async def _request(client: Client, namespace: str, args: argparse.Namespace) -> JsonObject:
    """Change the pod's list of claims; return the pod as it is then."""
    from dray.client import Conflict, Invalid, NotFound
    from dray.client.resources import CLAIMS, PODS

    for attempt in range(_ATTEMPTS):
        try:
            pod: JsonObject = await client.get(PODS, args.pod, namespace)
        except NotFound:
            raise CommandError(
                f"there is no pod {namespace}/{args.pod}", "-n names another namespace", code=1
            ) from None
        entries = changed_entries(pod, args.action, args.claim, getattr(args, "name", None))
        if entries is None:
            return pod  # as it is wanted
        if args.action == "attach":
            try:
                await client.get(CLAIMS, args.claim, namespace)
            except NotFound:
                raise CommandError(
                    f"there is no claim {namespace}/{args.claim}",
                    "create it first: kubectl apply -f CLAIM.yaml",
                    code=1,
                ) from None
        meta = pod["metadata"]
        body = {
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "spec": {"resourceClaims": entries or None},
        }
        try:
            changed: JsonObject = await client.patch(
                PODS, args.pod, body, namespace, subresource="resourceclaims"
            )
        except Conflict:
            if attempt + 1 == _ATTEMPTS:
                raise
        except NotFound as error:
            raise CommandError(
                "this API server cannot change the claims of a running pod",
                f"it must be dray's, with --feature-gates {DEVICES_AFTER_POD_START}=true",
                code=1,
            ) from error
        except Invalid as error:
            raise CommandError(
                f"pod {namespace}/{args.pod}: {'; '.join(cause.message for cause in error.causes) or error}",
                f"`kubectl describe pod {args.pod}` shows its state and its claims",
                code=1,
            ) from error
        else:
            return changed
    raise AssertionError("unreachable")


def changed_entries(pod: JsonObject, action: str, claim: str, name: str | None) -> list[JsonObject] | None:
    """Return the pod's list of claims as it shall be; None when it is so already."""
    entries: list[JsonObject] = (pod.get("spec") or {}).get("resourceClaims") or []
    has_it = any(entry.get("resourceClaimName") == claim for entry in entries)
    if action == "attach":
        return (
            None if has_it else [*entries, {"name": name or _entry_name(claim), "resourceClaimName": claim}]
        )
    if has_it:
        return [entry for entry in entries if entry.get("resourceClaimName") != claim]
    made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    if any(each.get("resourceClaimName") == claim for each in made):
        raise CommandError(
            f"claim {claim} was made from a template of the pod and ends with it",
            "only claims that were given to the pod by name can be detached",
            code=1,
        )
    return None


def _entry_name(claim: str) -> str:
    """Return a name for the entry: that of the claim, as far as a label may be long and has no dots."""
    return claim.replace(".", "-")[:63].rstrip("-")


# --- waiting -------------------------------------------------------------------------------------


async def _wait(client: Client, pod: JsonObject, args: argparse.Namespace) -> list[str]:
    """Wait until the claim is attached or detached; return the devices that it has."""
    from dray.client import NotFound
    from dray.client.resources import CLAIMS, PODS

    meta, told = pod["metadata"], ""
    namespace = meta["namespace"]
    began = asyncio.get_running_loop().time()
    while True:
        try:
            now: JsonObject = await client.get(PODS, args.pod, namespace)
        except NotFound:
            now = {}
        phase = (now.get("status") or {}).get("phase")
        if now.get("metadata", {}).get("uid") != meta["uid"] or phase in TERMINAL_PHASES:
            raise CommandError(f"pod {namespace}/{args.pod} ended meanwhile", code=1)
        try:
            claim: JsonObject = await client.get(CLAIMS, args.claim, namespace)
        except NotFound:
            claim = {}
        if is_done(now, claim, args.action, meta.get("generation") or 1):
            return list(_devices(claim))
        problem = await _problem(client, now, args.claim)
        spent = asyncio.get_running_loop().time() - began
        if problem and problem != told and spent > _SILENT_SECONDS:
            told = problem
            say(f"waiting: {problem}")
        if spent > args.timeout:
            undo = "detach" if args.action == "attach" else "attach"
            raise CommandError(
                f"claim {namespace}/{args.claim} is not {args.action}ed after {args.timeout:g} s"
                + (f": {told}" if told else ""),
                f"the request stands; `dray claim {undo} {args.pod} {args.claim}` takes it back",
                code=1,
            )
        await asyncio.sleep(_LOOK_SECONDS)


def is_done(pod: JsonObject, claim: JsonObject, action: str, generation: int) -> bool:
    """Return whether the pod's node has done what that generation of the pod asks for with this claim."""
    status = pod.get("status") or {}
    uid = pod["metadata"]["uid"]
    is_reserved = any(user.get("uid") == uid for user in (claim.get("status") or {}).get("reservedFor") or ())
    if action == "attach" and generation < 2:
        return is_reserved  # the pod has had it from the start
    if (status.get("observedGeneration") or 0) < generation:
        return False
    if action == "detach":
        return not is_reserved
    condition = _condition(pod)
    name = f"{pod['metadata']['namespace']}/{claim.get('metadata', {}).get('name')}"
    return is_reserved and (
        condition.get("status") == "True" or f"claim {name}" not in (condition.get("message") or "")
    )


async def _problem(client: Client, pod: JsonObject, claim: str) -> str:
    """Return why the claim is not there yet: the scheduler's words, else those of the node."""
    from dray.client.resources import EVENTS

    meta, condition = pod["metadata"], _condition(pod)
    listed = await client.list(
        EVENTS, meta["namespace"], fieldSelector=f"involvedObject.uid={meta['uid']},reason=FailedAttachClaim"
    )
    about = [
        event
        for event in listed.items
        if f"claim {meta['namespace']}/{claim} " in (event.get("message") or "")
        and (event.get("lastTimestamp") or "") >= (condition.get("lastTransitionTime") or "")
    ]
    said: str = max(about, key=lambda event: event.get("lastTimestamp") or "", default={}).get("message", "")
    if condition.get("status") == "False":
        return said or condition.get("message") or ""
    return ""


def _condition(pod: JsonObject) -> dict[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == CLAIMS_PREPARED), {})


def _devices(claim: JsonObject) -> Iterator[str]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    for result in (allocation.get("devices") or {}).get("results") or ():
        yield f"{result['driver']}/{result['pool']}/{result['device']}"
