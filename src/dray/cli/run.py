"""`dray run`: a command with devices, in one line: claim, pod, logs, exit code.

Works on any cluster that serves resource.k8s.io/v1. The pod is created first and the
claim second, owned by the pod; the scheduler waits for it. Whatever happens after that
(the command ends, Ctrl-C, an error), the pod is deleted, and the claim with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import re
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from dray.api.json_types import JsonObject
from dray.api.quantity import QuantityError, parse_quantity
from dray.cli.arguments import seconds
from dray.cli.output import CommandError, say
from dray.sim.launching import (
    DeviceWish,
    claim_manifest,
    claim_spec,
    driver_of,
    exit_code_of,
    is_started,
    pod_manifest,
    trouble_of,
)

if TYPE_CHECKING:
    from dray.client import ApiError, Client


EXPLAIN_AFTER = 2.0  # seconds without a node, before we say why
TIMED_OUT = 124  # as timeout(1)
NOT_STARTED = 127  # as a shell says of a command that cannot be run
HOPELESS = frozenset({"RunContainerError", "CreateContainerError", "InvalidImageName", "StartError"})
DEFAULT_IMAGE = "busybox"


class _Device(argparse.Action):
    """`--device` begins a wish; `--count`, `--min`, `--where` and `--capacity` refine the latest."""

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        wishes: list[DeviceWish] = args.devices
        if flag == "--device":
            args.devices = [*wishes, DeviceWish(values)]
            return
        if not wishes:
            parser.error(f"{flag} belongs to a device: put it after --device CLASS")
        wish = wishes[-1]
        try:
            _refine(wish, str(flag), values)
        except ValueError as error:
            parser.error(f"{flag} {values}: {error}")


def _refine(wish: DeviceWish, flag: str, value: str) -> None:
    if flag == "--count":
        if value != "all" and not re.fullmatch(r"[1-9][0-9]{0,5}", value):
            raise ValueError("must be a number from 1, or all")
        wish.count = 0 if value == "all" else int(value)
    elif flag == "--where":
        wish.wheres.append(value)
    else:
        name, equals, amount = value.partition("=")
        if not equals or not name:
            raise ValueError("must be NAME=AMOUNT, for example memory=40Gi")
        try:
            parse_quantity(amount)
        except QuantityError:
            raise ValueError(f"{amount!r} is no quantity such as 40Gi") from None
        if flag == "--min":
            wish.minimums.append((name, amount))
        else:
            wish.capacity[name] = amount


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(devices=[])
    parser.add_argument(
        "--device", action=_Device, metavar="CLASS", help="device class; may be given more than once"
    )
    parser.add_argument("--count", action=_Device, metavar="N", help="how many of the device, or `all`")
    parser.add_argument(
        "--min", action=_Device, metavar="NAME=AMOUNT", help="at least this capacity, for example memory=40Gi"
    )
    parser.add_argument(
        "--where", action=_Device, metavar="CEL", help="a selector that the device must match"
    )
    parser.add_argument(
        "--capacity",
        action=_Device,
        metavar="NAME=AMOUNT",
        help="take only this much of a device that is shared",
    )
    parser.add_argument(
        "--same",
        action="append",
        default=[],
        metavar="ATTRIBUTE",
        help="all devices share one value of it, for example pcieRoot",
    )
    parser.add_argument("--image", default=DEFAULT_IMAGE, help=f"container image (default: {DEFAULT_IMAGE})")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the command"
    )
    parser.add_argument("--name", help="name of the pod and the claim (default: run- and a few letters)")
    parser.add_argument("-n", "--namespace", help="namespace (default: the kubeconfig's)")
    parser.add_argument("--detach", action="store_true", help="start it and return; nothing is deleted")
    parser.add_argument("--keep", action="store_true", help="do not delete pod and claim at the end")
    parser.add_argument(
        "--timeout",
        type=seconds(),
        default=0.0,
        metavar="SECONDS",
        help="give up when it has not started by then",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the manifests and create nothing")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="the cluster (default: $KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument("words", nargs="*", metavar="CMD", help="the command, after --")


def run(args: argparse.Namespace) -> int:
    """Run; the exit code is the command's, 124 after a timeout, 127 if it cannot start, 2 for bad input."""
    from dray.client import ApiError

    if not args.devices:
        raise CommandError(
            "no device wanted",
            "dray run --device gpu.nvidia.com -- nvidia-smi; `dray get devices` lists them",
        )
    if not args.words and args.image == DEFAULT_IMAGE:
        raise CommandError("no command", "put it after --, for example: -- nvidia-smi")
    _check_wheres(args.devices)
    try:
        return asyncio.run(_run(args))
    except ApiError as error:
        advice = _advice(error)
        if not advice:
            raise
        raise CommandError(f"the server refuses: {error}", advice, code=1) from error


def _advice(error: ApiError) -> str:
    """Return what to do about a refusal."""
    text = str(error)
    if "namespaces" in text and "not found" in text:
        return "kubectl create namespace makes one; -n names another"
    return (
        "may you create pods and claims there? `kubectl auth can-i create pods`"
        if "forbidden" in text
        else ""
    )


def _check_wheres(wishes: list[DeviceWish]) -> None:
    from dray.api.features import Features
    from dray.sim.linting.selectors import check_selector

    for wish in wishes:
        for expression in wish.wheres:
            problems, program = check_selector(expression, "--where", Features.default())
            if program is None:
                raise CommandError(f"--where: {problems[0].message}", problems[0].hint)


def _environment(texts: list[str]) -> JsonObject:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandError(f"--env {text!r} is not of the form NAME=VALUE")
        found[name] = value
    return found


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        name = args.name or f"run-{secrets.token_hex(3)}"
        drivers = await _drivers(client, args.devices)
        spec = claim_spec(args.devices, drivers, args.same)
        pod = pod_manifest(name, namespace, args.image, args.words, _environment(args.env))
        if args.dry_run:
            from dray.cli.convert import dump

            print(f"{dump(claim_manifest(name, namespace, spec))}---\n{dump(pod)}", end="")
            return 0
        return await _create_and_follow(client, args, pod, spec)


async def _drivers(client: Client, wishes: list[DeviceWish]) -> list[str]:
    """Return the driver of each wanted class; a class that does not exist is an error with its neighbours."""
    from dray.client.resources import DEVICE_CLASSES

    found = {item["metadata"]["name"]: item for item in (await client.list(DEVICE_CLASSES)).items}
    for wish in wishes:
        if wish.class_name not in found:
            near = difflib.get_close_matches(wish.class_name, found, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"classes: {', '.join(sorted(found)) or 'none'}"
            raise CommandError(f"there is no device class {wish.class_name!r}", hint)
    return [driver_of(found[wish.class_name]) for wish in wishes]


async def _create_and_follow(
    client: Client, args: argparse.Namespace, pod: JsonObject, spec: JsonObject
) -> int:
    from dray.client import AlreadyExists, ApiError
    from dray.client.resources import CLAIMS, PODS

    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    try:
        created = await client.create(PODS, pod, namespace)
    except AlreadyExists:
        raise CommandError(f"pod {namespace}/{name} exists already", "choose another --name") from None
    keeps = args.keep or args.detach
    try:
        try:
            await client.create(
                CLAIMS, claim_manifest(name, namespace, spec, created["metadata"]["uid"]), namespace
            )
        except ApiError as error:
            keeps = False
            raise CommandError(f"the claim is refused: {error}", code=1) from error
        if args.detach:
            say(f"started pod {namespace}/{name} with claim {name}; `kubectl delete pod {name}` deletes both")
            print(name)
            return 0
        return await _follow_until_stopped(client, args, created)
    finally:
        if not keeps:
            await _clean_up(client, namespace, name)
        elif not args.detach:
            say(f"kept pod {namespace}/{name}; `kubectl delete pod {name}` deletes it and its claim")


async def _follow_until_stopped(client: Client, args: argparse.Namespace, pod: JsonObject) -> int:
    following = asyncio.create_task(_follow(client, args, pod))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, following.cancel)
    try:
        return await following
    except asyncio.CancelledError:
        say("stopped; deleting the pod")
        return 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _follow(client: Client, args: argparse.Namespace, pod: JsonObject) -> int:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    explaining = asyncio.create_task(_explain_later(client, namespace, name))
    printing: asyncio.Task[None] | None = None
    told = ""
    try:
        async with asyncio.timeout(args.timeout or None) as limit:
            async for pod in _states(client, namespace, name):
                if (pod.get("spec") or {}).get("nodeName"):
                    explaining.cancel()
                trouble = trouble_of(pod)
                if trouble and trouble != told:
                    say(f"not started: {trouble}")
                    told = trouble
                    if trouble.partition(":")[0] in HOPELESS:
                        return NOT_STARTED
                if printing is None and is_started(pod):
                    limit.reschedule(None)
                    printing = asyncio.create_task(_print_log(client, namespace, name))
                code = exit_code_of(pod)
                if code is not None:
                    if printing is not None:
                        await printing
                    else:
                        say((pod.get("status") or {}).get("message") or "the pod failed before it started")
                    return code
        raise CommandError(f"pod {namespace}/{name} was deleted by somebody else", code=1)
    except TimeoutError:
        if not explaining.done():
            explaining.cancel()
            await _explain(client, namespace, name)
        raise CommandError(f"not started after {args.timeout:g} s", code=TIMED_OUT) from None
    finally:
        for task in (explaining, printing):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (explaining, printing) if task), return_exceptions=True)


async def _states(client: Client, namespace: str, name: str) -> AsyncIterator[JsonObject]:
    """Yield the pod as it is now and after every change, until it is gone."""
    from dray.client import Gone, NotFound, TransportError
    from dray.client.resources import PODS

    while True:
        try:
            pod = await client.get(PODS, name, namespace)
        except NotFound:
            return
        yield pod
        selector = f"metadata.name={name}"
        revision = pod["metadata"]["resourceVersion"]
        with contextlib.suppress(Gone, TransportError):
            async for event in client.watch(
                PODS, namespace, fieldSelector=selector, resourceVersion=revision
            ):
                if event.type == "DELETED":
                    return
                yield event.object
        await asyncio.sleep(0.2)


async def _explain_later(client: Client, namespace: str, name: str) -> None:
    await asyncio.sleep(EXPLAIN_AFTER)
    await _explain(client, namespace, name)


async def _explain(client: Client, namespace: str, name: str) -> None:
    """Say once why the pod has no devices yet."""
    from dray.cli.explain import explain
    from dray.client import ClientError
    from dray.sim.snapshot import SnapshotError, capture

    try:
        story = explain(await capture(client), "pod", f"{namespace}/{name}")
    except (SnapshotError, ClientError, CommandError) as error:
        say(f"waiting for devices ({error})")
        return
    say("waiting for devices:")
    for line in story["lines"]:
        say(f"  {line}")


async def _print_log(client: Client, namespace: str, name: str) -> None:
    """Copy the command's output to ours, as it comes."""
    from dray.client import ApiError, Request
    from dray.client.resources import PODS

    target = f"{PODS.path(namespace, name, 'log')}?follow=true&container=main"
    for attempt in range(5):
        response = await client.transport.send(Request("GET", target, stream=True, timeout=None))
        if response.status < 300 and response.pieces is not None:
            break
        # The node may report the start a moment before it can be asked for the log.
        await asyncio.sleep(0.1 * 2**attempt)
    else:
        say(f"the log cannot be read: {response.status} {response.body.decode('utf-8', 'replace')[:200]}")
        return
    try:
        async for piece in response.pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except ApiError as error:
        say(f"the log was cut off: {error}")
    finally:
        await response.close()


async def _clean_up(client: Client, namespace: str, name: str) -> None:
    from dray.client import ClientError, NotFound
    from dray.client.resources import CLAIMS, PODS

    for resource in (PODS, CLAIMS):
        try:
            await client.delete(resource, name, namespace)
        except NotFound:
            continue
        except ClientError as error:
            say(f"{resource.kind} {namespace}/{name} could not be deleted: {error}")
