"""`dray run`: a command with devices, in one line: claim, pod, logs, exit code.

Works on any cluster that serves resource.k8s.io/v1. The pod is created first and the claim second, owned by the
pod; the scheduler waits for it. Whatever happens after that (the command ends, Ctrl-C, an error), the pod is
deleted, and the claim with it.

Where nodes run commands as processes (`dray up` without runc), the job gets the caller's directory and environment
and can be used like the command itself. With `--image` a container engine of that machine runs the
image (`container_engines`). Elsewhere the job runs in the image, with what `--workdir` and `--env` say.
Ctrl-C asks the job to stop (SIGTERM, and SIGKILL after its grace period); a second Ctrl-C ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dray.api.json_types import JsonObject
from dray.api.quantity import QuantityError, parse_quantity
from dray.api.wording import plural
from dray.cli.arguments import add_flags, did_you_mean
from dray.cli.following import follow, pod_states
from dray.cli.interactive import check_terminal, run_at_terminal
from dray.cli.job_flags import (
    ARRAY_VARIABLE,
    add_job_flags,
    add_start_flags,
    array_range,
    environment,
    resources,
    working_directory,
)
from dray.cli.job_objects import create_job, delete_job
from dray.cli.output import CommandError, say
from dray.workbench.container_engines import FOR_IMAGES, image_command
from dray.workbench.run_manifests import (
    DeviceFlags,
    Job,
    claim_manifest,
    claim_spec,
    driver_of,
    exit_code_of,
    pod_manifest,
)

if TYPE_CHECKING:
    from dray.client import ApiError, Client

DEFAULT_IMAGE = "busybox"
INTERRUPTED = 130  # as shells say of a command that Ctrl-C ended
_AT_ONCE = 1  # second; `kubectl delete --now` says the same
_PROCESS_RUNTIME = "process://"


class _Device(argparse.Action):
    """`--device` begins a request; `--count`, `--min`, `--where` and `--capacity` refine the latest."""

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        requests: list[DeviceFlags] = args.devices
        if flag == "--device":
            args.devices = [*requests, DeviceFlags(values)]
            return
        if not requests:
            parser.error(f"{flag} belongs to a device: put it after --device CLASS")
        request = requests[-1]
        try:
            _refine(request, str(flag), values)
        except ValueError as error:
            parser.error(f"{flag} {values}: {error}")


def _refine(request: DeviceFlags, flag: str, value: str) -> None:
    if flag == "--count":
        if value != "all" and not re.fullmatch(r"[1-9][0-9]{0,5}", value):
            raise ValueError("must be a number from 1, or all")
        request.count = 0 if value == "all" else int(value)
    elif flag == "--where":
        request.wheres.append(value)
    else:
        name, equals, amount = value.partition("=")
        if not equals or not name:
            raise ValueError("must be NAME=AMOUNT, for example memory=40Gi")
        try:
            parse_quantity(amount)
        except QuantityError:
            raise ValueError(f"{amount!r} is not a quantity such as 40Gi") from None
        if flag == "--min":
            request.minimums.append((name, amount))
        else:
            request.capacity[name] = amount


def add_device_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ask for devices."""
    add = parser.add_argument
    parser.set_defaults(devices=[])
    add("--device", action=_Device, metavar="CLASS", help="ask for a device of this class; repeatable")
    add("--count", action=_Device, metavar="N", help="how many of that device, or `all` (default: 1)")
    add(
        "--min", action=_Device, metavar="NAME=AMOUNT", help="at least this capacity, for example memory=40Gi"
    )
    add("--where", action=_Device, metavar="CEL", help="a CEL selector that the device must match")
    add(
        "--capacity",
        action=_Device,
        metavar="NAME=AMOUNT",
        help="take only this much of a device that is shared",
    )
    add(
        "--same",
        action="append",
        default=[],
        metavar="ATTRIBUTE",
        help="all devices must have the same value of it, for example pcieRoot; repeatable",
    )


def add_image_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--image`."""
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help=f"container image (default: {DEFAULT_IMAGE}); where nodes run commands as processes, podman, docker or "
        "apptainer of the machine runs it (default there: none)",
    )
    parser.set_defaults(is_engine=False)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add_device_flags(parser)
    add_image_flag(parser)
    add_job_flags(parser)
    add("--name", metavar="NAME", help="name of the pod and of the claim (default: run- and six characters)")
    add(
        "--array",
        type=array_range,
        metavar="FROM-TO",
        help=f"start one job for each number, which it finds in ${ARRAY_VARIABLE}; their output is in `dray logs`",
    )
    add("--after", metavar="JOB", default="", help="begin when this job has ended, however it ended")
    add("--keep", action="store_true", help="do not delete pod and claim at the end")
    add_start_flags(parser)
    add_flags(parser, "--namespace", "--kubeconfig", "--context")
    add("words", nargs="*", metavar="CMD", help="the command, after --")


def run(args: argparse.Namespace) -> int:
    """Run; the exit code is the command's, 124 after a timeout, 127 if it cannot start, 2 for bad input."""
    if not args.words and args.image is None:
        raise CommandError("no command", "put it after --, for example: -- nvidia-smi")
    return start(args)


def start(args: argparse.Namespace) -> int:
    """Start what the flags describe, and see it through."""
    from dray.client import ApiError

    if args.same and not args.devices:
        raise CommandError("--same belongs to devices", "ask for them with --device CLASS")
    if (args.stdin or args.tty) and (args.detach or args.keep or args.array is not None):
        raise CommandError("-i and -t go without --detach, --keep and --array")
    check_terminal(with_tty=args.tty)
    check_wheres(args.devices)
    try:
        return asyncio.run(_run(args))
    except ApiError as error:
        advice = _advice(error)
        if not advice:
            raise
        raise CommandError(f"the server refused: {error}", advice, code=1) from error


def _advice(error: ApiError) -> str:
    """Return what to do about a refusal."""
    text = str(error)
    if "no PriorityClass" in text or "priorityclass" in text.lower():
        return "`dray up` has the classes dray-low and dray-high; on other clusters an administrator creates them"
    if "namespaces" in text and "not found" in text:
        return "kubectl create namespace makes one; -n names another"
    return (
        "may you create pods and claims there? `kubectl auth can-i create pods`"
        if "forbidden" in text
        else ""
    )


def check_wheres(requests: list[DeviceFlags]) -> None:
    """Refuse selectors that do not compile."""
    from dray.api.features import Features
    from dray.workbench.lint.selectors import check_selector

    for request in requests:
        for expression in request.wheres:
            problems, program = check_selector(expression, "--where", Features.default())
            if program is None:
                raise CommandError(f"--where: {problems[0].message}", problems[0].hint)


async def _run(args: argparse.Namespace) -> int:
    from dray.cli.sources import connect

    async with connect(args.kubeconfig, args.context) as client:
        namespace = args.namespace or client.namespace
        drivers = await _drivers(client, args.devices)
        spec = claim_spec(args.devices, drivers, args.same) if args.devices else None
        first = await make_job(client, args, namespace)
        jobs = [first]
        if args.array is not None:
            jobs = [
                replace(
                    first,
                    name=f"{first.name}-{number}",
                    environment={**first.environment, ARRAY_VARIABLE: str(number)},
                )
                for number in args.array
            ]
        if args.dry_run:
            _print_manifests(jobs, spec)
            return 0
        if args.stdin or args.tty:
            return await run_at_terminal(
                client, first, spec, with_stdin=args.stdin, with_tty=args.tty, timeout=args.timeout
            )
        if args.array is None:
            return await _create_and_follow(client, args, jobs[0], spec)
        return await _run_array(client, args, jobs, spec)


async def make_job(client: Client, args: argparse.Namespace, namespace: str) -> Job:
    """Return the job that the flags describe, for the way in which this cluster runs commands."""
    has_processes = await runs_processes(client)
    if args.is_engine and not has_processes:
        raise CommandError(
            "the nodes of this cluster run images, not the container engine of this machine",
            "`dray run --image IMAGE` runs an image there",
        )
    directory = working_directory(args, inherits=has_processes)
    by_engine = has_processes and (args.is_engine or args.image is not None)
    command = tuple(args.words)
    if has_processes and args.image is not None:
        command = _engine_command(args, directory)
    if by_engine:
        command = (sys.executable, "-m", "dray.cli.engine_job", *command)
    return Job(
        name=args.name or f"run-{secrets.token_hex(3)}",
        namespace=namespace,
        image=args.image or DEFAULT_IMAGE,
        command=command,
        environment=environment(args, os.environ, inherits=has_processes),
        working_directory=directory,
        wants_edits=by_engine,
        resources=resources(args),
        seconds=args.time,
        priority=args.priority,
        after=args.after,
        has_private_tmp=args.private_tmp,
        has_devices=bool(args.devices),
    )


def _engine_command(args: argparse.Namespace, directory: str) -> tuple[str, ...]:
    """Return the command of a container engine of this machine that runs the image."""
    program = next((found for name in FOR_IMAGES if (found := shutil.which(name))), None)
    if program is None:
        raise CommandError(
            f"--image {args.image} needs a container engine: the nodes of this machine run commands as processes",
            f"install one of {', '.join(FOR_IMAGES)}, or leave out --image to run the command on the machine itself",
        )
    named = argparse.Namespace(env=args.env, clean_env=True)
    return tuple(
        image_command(
            program,
            args.image,
            args.words,
            uid=os.getuid(),
            gid=os.getgid(),
            directory=directory,
            environment=environment(named, os.environ, inherits=True),
            with_stdin=args.stdin,
            with_tty=args.tty,
            has_crun=shutil.which("crun") is not None,
        )
    )


async def runs_processes(client: Client) -> bool:
    """Return whether the nodes run commands as processes of their machine, without an image."""
    from dray.client import Forbidden
    from dray.client.resources import NODES

    try:
        nodes = (await client.list(NODES)).items
    except Forbidden:
        return False
    runtimes = [
        str(((node.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion", ""))
        for node in nodes
    ]
    return bool(runtimes) and all(runtime.startswith(_PROCESS_RUNTIME) for runtime in runtimes)


def _print_manifests(jobs: Sequence[Job], spec: JsonObject | None) -> None:
    from dray.workbench.conversion.yaml_texts import as_yaml

    made = []
    for job in jobs:
        made += [claim_manifest(job.name, job.namespace, spec)] if spec is not None else []
        made.append(pod_manifest(job))
    print("---\n".join(as_yaml(obj) for obj in made), end="")


async def _drivers(client: Client, requests: list[DeviceFlags]) -> list[str]:
    """Return the driver of each wanted class; a class that does not exist is an error with the nearest name."""
    from dray.client.resources import DEVICE_CLASSES

    if not requests:
        return []
    found = {item["metadata"]["name"]: item for item in (await client.list(DEVICE_CLASSES)).items}
    for request in requests:
        if request.class_name not in found:
            raise CommandError(
                f"there is no device class {request.class_name!r}",
                did_you_mean(request.class_name, found, "classes"),
            )
    return [driver_of(found[request.class_name]) for request in requests]


async def _create_and_follow(
    client: Client, args: argparse.Namespace, job: Job, spec: JsonObject | None
) -> int:
    await create_job(client, job, spec)
    if args.detach:
        say(f"started job {job.namespace}/{job.name}; `dray logs {job.name}`, `dray stop {job.name}`")
        print(job.name)
        return 0
    try:
        return await follow_until_stopped(client, job, args.timeout)
    finally:
        if args.keep:
            say(f"kept job {job.namespace}/{job.name}; `dray stop {job.name}` deletes it and its claim")
        else:
            await delete_job(client, job)


async def _run_array(
    client: Client, args: argparse.Namespace, jobs: Sequence[Job], spec: JsonObject | None
) -> int:
    """Start all, and wait until all have ended; the exit code is the highest. Jobs and their logs are kept."""
    for job in jobs:
        await create_job(client, job, spec)
    say(f"started {plural(len(jobs), 'job')}: {jobs[0].name} to {jobs[-1].name}")
    if args.detach:
        print("\n".join(job.name for job in jobs))
        return 0
    codes = await asyncio.gather(*(_exit_code(client, job) for job in jobs))
    failed = [job.name for job, code in zip(jobs, codes, strict=True) if code]
    if failed:
        say(f"{plural(len(failed), 'job')} failed: {', '.join(failed[:20])}")
    return max(codes)


async def _exit_code(client: Client, job: Job) -> int:
    async for pod in pod_states(client, job.namespace, job.name):
        code = exit_code_of(pod)
        if code is not None:
            return code
    return 1


async def follow_until_stopped(client: Client, job: Job, timeout: float) -> int:
    """Follow a job; Ctrl-C stops it, a second Ctrl-C ends it at once."""
    following = asyncio.create_task(follow(client, job.namespace, job.name, timeout))
    stopping: list[asyncio.Task[None]] = []

    def stop() -> None:
        if stopping:
            say("ending it at once")
        else:
            say("stopping the job; Ctrl-C again ends it at once")
        stopping.append(asyncio.create_task(delete_job(client, job, _AT_ONCE if stopping else None)))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        code = await following
    except CommandError:
        if not stopping:
            raise
        code = INTERRUPTED  # it is gone, as was asked for
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        await asyncio.gather(*stopping)
    return INTERRUPTED if stopping else code
