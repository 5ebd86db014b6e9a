"""`dray guard`: an admission webhook that keeps any two schedulers from giving one device twice."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import re
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

from dray.cli.arguments import add_flags, seconds, whole_number
from dray.cli.output import CommandError, say
from dray.cli.services import log_to_stderr, make_election, until_stopped
from dray.client import Client, LeaderElection, NotFound
from dray.client.resources import LEASES
from dray.control.guarding import (
    CONFIGURATION,
    Guard,
    GuardOptions,
    Identity,
    Target,
    configuration,
    load_identity,
    make_identity,
    serve,
    unregister,
)
from dray.host.clock import utc_now

_LONGEST_ANSWER = 30  # seconds; the API allows no longer timeout of a webhook
_SHORTEST_LEASE = 3
_RENEW_EVERY = 60.0  # seconds between looks at the certificate files


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add_flags(parser, "--kubeconfig", "--context")
    add(
        "--listen",
        default="127.0.0.1:0",
        metavar="ADDRESS:PORT",
        help="where to listen for API servers, with TLS (default: 127.0.0.1:0, any free port)",
    )
    add("--url", metavar="URL", help="how API servers reach it (default: https://ADDRESS:PORT of --listen)")
    add("--service", metavar="NAMESPACE/NAME", help="how API servers reach it: a Service, port 443")
    add(
        "--no-register",
        action="store_true",
        help=f"do not write the ValidatingWebhookConfiguration {CONFIGURATION}; needs --cert and --key",
    )
    add("--unregister", action="store_true", help="remove the webhook configuration and exit")
    add("--print-configuration", action="store_true", help="print the webhook configuration as JSON and exit")
    add("--cert", type=Path, metavar="FILE", help="serving certificate, PEM (default: made at every start)")
    add("--key", type=Path, metavar="FILE", help="its private key, PEM")
    add("--ca", type=Path, metavar="FILE", help="CA that API servers check --cert with, PEM")
    add(
        "--lease",
        type=whole_number(_SHORTEST_LEASE, 3600),
        default=9,
        metavar="SECONDS",
        help="another guard takes over after this time; a third of it is the webhook's timeout (default: 9)",
    )
    add_flags(parser, "--leader-namespace")
    add(
        "--settle",
        type=seconds(),
        default=5.0,
        metavar="SECONDS",
        help="time for all API servers to follow a new webhook configuration (default: 5)",
    )
    add(
        "--fence-after",
        type=seconds(),
        default=2.0,
        metavar="SECONDS",
        help="give up an admitted write that does not show up for so long (default: 2)",
    )
    add("-o", "--output", choices=("text", "json"), default="text", help="output format (default: text)")
    add_flags(parser, "--log-format", "--verbose")


def run(args: argparse.Namespace) -> int:
    """Run until interrupted."""
    import uvloop

    log_to_stderr(args, logging.WARNING)
    try:
        if args.unregister:
            return asyncio.run(_unregister(args))
        _check(args)
        with _listener(args.listen) as listener:
            target = _target(args, listener)
            identity = _identity(args, target)
            wanted = configuration(target, identity.ca, _answer_timeout(args))
            if args.print_configuration:
                print(json.dumps(wanted, indent=2))
                return 0
            options = GuardOptions(wanted, not args.no_register, args.settle, args.fence_after)
            return uvloop.run(_serve(args, options, listener, identity))
    except NotFound as error:
        raise CommandError(
            str(error),
            "a server with admission webhooks and resource.k8s.io/v1 is needed: Kubernetes 1.34 or newer;"
            " dray's own server has no webhooks, and dray's schedulers yield to each other there",
            code=1,
        ) from error
    except ValueError as error:
        raise CommandError(str(error)) from error


def _check(args: argparse.Namespace) -> None:
    if args.url and args.service:
        raise ValueError("--url and --service exclude each other: API servers know one way to the guard")
    if bool(args.cert) != bool(args.key):
        raise ValueError("--cert and --key go together")
    if args.no_register and not args.cert:
        raise ValueError(
            "--no-register needs --cert and --key: nobody else knows the CA of a certificate made here"
        )


def _listener(text: str) -> socket.socket:
    address, _, port = text.rpartition(":")
    if not address or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"cannot read --listen {text!r}; write ADDRESS:PORT, for example 0.0.0.0:8443")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address.strip("[]"), int(port)), family=family)


def _target(args: argparse.Namespace, listener: socket.socket) -> Target:
    if args.service:
        namespace, _, name = args.service.partition("/")
        if not namespace or not name:
            raise ValueError(f"cannot read --service {args.service!r}; write NAMESPACE/NAME")
        return Target(namespace=namespace, service=name)
    if args.url:
        if urlsplit(args.url).scheme != "https" or not urlsplit(args.url).hostname:
            raise ValueError(f"--url {args.url!r}: API servers call webhooks at https://HOST[:PORT] only")
        return Target(url=args.url)
    address, port = listener.getsockname()[:2]
    if address in ("0.0.0.0", "::"):
        raise ValueError(f"--listen {args.listen}: say how API servers reach it, with --url or --service")
    return Target(url=f"https://{f'[{address}]' if ':' in address else address}:{port}")


def _identity(args: argparse.Namespace, target: Target) -> Identity:
    if args.cert:
        return load_identity(args.cert, args.key, args.ca)
    host = urlsplit(target.url).hostname if target.url else f"{target.service}.{target.namespace}.svc"
    return make_identity([host or ""], utc_now())


async def _unregister(args: argparse.Namespace) -> int:
    async with Client.connect(args.kubeconfig, args.context, user_agent="dray-guard") as client:
        is_removed = await unregister(client)
    if args.output == "json":
        print(json.dumps({"removed": is_removed}))
    elif is_removed:
        print(f"{CONFIGURATION} removed: allocations are no longer guarded")
    else:
        print(f"there is no {CONFIGURATION}")
    return 0


async def _serve(
    args: argparse.Namespace, options: GuardOptions, listener: socket.socket, identity: Identity
) -> int:
    async with Client.connect(args.kubeconfig, args.context, user_agent="dray-guard") as client:
        # A candidate waits patiently for a lease that it may not read; say so instead.
        with contextlib.suppress(NotFound):
            await client.get(LEASES, CONFIGURATION, args.leader_namespace)
        election = _election(args, client)
        guard = Guard(client, options, may_judge=lambda: election.is_certain)
        runner = await serve(guard, listener, identity)
        beside = [
            asyncio.create_task(_announce(args, guard, listener)),
            asyncio.create_task(_renew(identity)),
        ]
        try:
            await until_stopped(_lead(election, guard))
            if not args.no_register:
                say(
                    "hint: the webhook stays in force, and nothing is allocated without a guard;"
                    " `dray guard --unregister` removes it"
                )
            return 0
        finally:
            for task in beside:
                task.cancel()
            await runner.cleanup()


async def _lead(election: LeaderElection, guard: Guard) -> None:
    """Judge whenever the lease is ours; each time begins with an empty record, and with fences."""

    async def lead() -> None:
        if election.is_new:
            # The first guard ever, or somebody deleted the lease of one that has not noticed yet.
            await asyncio.sleep(election.lease_duration)
        await guard.run()

    while True:
        await election.run(lead)
        logging.getLogger("dray.guard").warning("the lease could not be renewed in time: standing by")


def _election(args: argparse.Namespace, client: Client) -> LeaderElection:
    # An answer is taken for at most `timeout` by API servers, and not given later than `renew_deadline`
    # after the last renewal: together no longer than the lease.
    timeout = _answer_timeout(args)
    return make_election(
        client,
        CONFIGURATION,
        args.leader_namespace,
        lease_duration=args.lease,
        renew_deadline=args.lease - timeout,
        retry_period=min(2.0, args.lease / 6),
        clock=_seconds_since_boot,
    )


def _seconds_since_boot() -> float:
    """Unlike the monotonic clock this one goes on while the machine sleeps, where there is one."""
    which = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if which is None else time.clock_gettime(which)


async def _renew(identity: Identity) -> None:
    """Follow certificate files that somebody renews."""
    while True:
        await asyncio.sleep(_RENEW_EVERY)
        try:
            identity.renew()
        except (OSError, ssl.SSLError) as error:
            # Half written: the old certificate is good for a while, and the next look will be better.
            logging.getLogger("dray.guard").warning("cannot read the certificate again: %s", error)


async def _announce(args: argparse.Namespace, guard: Guard, listener: socket.socket) -> None:
    """Say on stdout what the guard is doing, whenever that changes."""
    address = "{}:{}".format(*listener.getsockname()[:2])
    last = None
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            if guard.phase is not last:
                last = guard.phase
                is_ready = guard.is_judging.is_set()
                if args.output == "json":  # one line each, for programs that follow
                    report = {"phase": last.name.lower(), "address": address, "is_ready": is_ready}
                    print(json.dumps(report), flush=True)
                else:
                    print(f"ready: judging at {address}" if is_ready else str(last), flush=True)
            await asyncio.sleep(0.05)


def _answer_timeout(args: argparse.Namespace) -> int:
    """Return how long API servers wait for an answer, in seconds."""
    return min(int(args.lease) // 3, _LONGEST_ANSWER)
