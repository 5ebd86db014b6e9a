"""`dray server`: the embedded Kubernetes API over HTTPS.

Flags carry kube-apiserver's names where kube-apiserver has them. The process
prints one line to stdout once it answers requests, and stops cleanly on SIGTERM
or SIGINT: watches end, queued writes are finished, the store is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dray.cli.arguments import DEFAULT_DATA, add_flags, parse_gates, whole_number
from dray.cli.output import CommandError
from dray.cli.services import log_to_stderr, on_stop
from dray.host.clock import utc_now
from dray.host.garbage import collect_in_small_steps
from dray.host.heap import keep_heap_compact

if TYPE_CHECKING:
    import ssl

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from dray.server import Settings
    from dray.server.audit import AuditFile, AuditPolicy
    from dray.server.auth.pki import Pki


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dray server`."""
    add = parser.add_argument
    add_flags(parser, "--data", default=DEFAULT_DATA, help="folder of objects, certificates and keys")
    add(
        "--in-memory",
        action="store_true",
        help="keep objects in memory only; they are lost when the server stops",
    )
    add(
        "--bind-address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1)",
    )
    add_flags(
        parser, "--secure-port", default=6443, help="port to listen on (default: 6443; 0: any free port)"
    )
    add(
        "--advertise-address",
        default="",
        metavar="HOST",
        help="name or address at which clients reach the server",
    )
    add(
        "--unix-socket",
        type=Path,
        metavar="PATH",
        help="also listen on a Unix socket; the kernel says which user is calling",
    )
    add(
        "--unix-socket-group",
        default="",
        metavar="GROUP",
        help="let only this Unix group connect to --unix-socket (default: everybody, if the server is root)",
    )
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="write an administrator's kubeconfig to this file (default: DIR/admin.kubeconfig)",
    )
    add(
        "--token-auth-file",
        type=Path,
        metavar="FILE",
        help='static tokens: token,user,uid,"group1,group2" per line',
    )
    add(
        "--client-ca-file",
        type=Path,
        metavar="FILE",
        help="also accept client certificates signed by this CA",
    )
    add(
        "--tls-cert-file",
        type=Path,
        metavar="FILE",
        help="serve with this certificate (default: one of its own)",
    )
    add("--tls-private-key-file", type=Path, metavar="FILE", help="the key of --tls-cert-file")
    add_flags(parser, "--feature-gates")
    add(
        "--disable-admission-plugins",
        action="append",
        default=[],
        metavar="A,B",
        help="leave out admission plugins",
    )
    add(
        "--enable-admission-plugins",
        action="append",
        default=[],
        metavar="A,B",
        help="accepted without effect: all known plugins are on",
    )
    add(
        "--runtime-config",
        action="append",
        default=[],
        metavar="KEY=BOOL",
        help="switch API versions on or off: api/all, api/beta, group/version or group/version/resource (default: all on)",
    )
    add(
        "--authorization-mode",
        action="append",
        default=[],
        metavar="MODE",
        help="Node,RBAC (default) or AlwaysAllow",
    )
    add(
        "--anonymous-auth",
        default="true",
        choices=["true", "false"],
        help="whether requests without credentials count as system:anonymous (default: true)",
    )
    add(
        "--max-requests-inflight",
        type=whole_number(1, 1_000_000),
        default=400,
        metavar="N",
        help="reading requests handled at once; more get 429 (default: 400)",
    )
    add(
        "--max-mutating-requests-inflight",
        type=whole_number(1, 1_000_000),
        default=200,
        metavar="N",
        help="writing requests handled at once; more get 429 (default: 200)",
    )
    _add_audit_flags(parser)
    add_flags(parser, "--max-devices", "--log-format", "--verbose")


def _add_audit_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--audit-log-path",
        "--audit-log",
        type=Path,
        metavar="FILE",
        help="write who did what to this file, as audit.k8s.io/v1 events (default: nothing is recorded)",
    )
    add(
        "--audit-policy-file",
        "--audit-policy",
        type=Path,
        metavar="FILE",
        help="an audit.k8s.io/v1 Policy: what is recorded (default: writes, commands run in pods, reading secrets)",
    )
    add(
        "--audit-log-maxsize",
        type=whole_number(1, 1_000_000),
        default=100,
        metavar="MEGABYTES",
        help="size at which the audit log begins a new file (default: 100)",
    )
    add(
        "--audit-log-maxbackup",
        type=whole_number(0, 1_000),
        default=10,
        metavar="N",
        help="older files of the audit log that are kept (default: 10)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; returns the exit code."""
    log_to_stderr(args)
    logging.raiseExceptions = False  # a full disk must not turn each line of the log into a traceback
    _raise_file_limit()
    keep_heap_compact()
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(args))
    except OSError as problem:
        raise _explained(problem, args) from problem


def _raise_file_limit() -> None:
    """Allow as many open files, which means connections, as the system lets this process have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(args: argparse.Namespace) -> int:
    from dray.server import Cluster, Front
    from dray.server.auth.login import Login
    from dray.server.auth.pki import node_client_tls, prepare, server_tls
    from dray.server.http.unix_access import unix_socket
    from dray.server.store import MemoryStore, SqliteStore

    stop = asyncio.Event()
    on_stop(stop.set)
    with contextlib.ExitStack() as cleanup:
        if args.in_memory:
            directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="dray-server-")))
        else:
            directory = args.data.expanduser()
        # Where certificates are, a cluster was before.
        has_cluster = (directory / "pki").is_dir()
        store = MemoryStore() if args.in_memory else SqliteStore(directory, expects_content=has_cluster)
        cleanup.callback(store.close)
        host = args.advertise_address or _reachable(args.bind_address)
        pki = prepare(directory / "pki", [host, args.bind_address], utc_now())
        certificate = args.tls_cert_file or pki.serving_certificate_file
        key = args.tls_private_key_file or pki.serving_key_file
        tls = server_tls(
            certificate, key, [pki.ca_file, *([args.client_ca_file] if args.client_ca_file else [])]
        )
        node_client = node_client_tls(directory / "pki", pki.ca, utc_now())
        settings = _settings(args, pki.token_key, node_client)
        settings.login = login = Login(pki.ca)
        try:
            cluster = Cluster(store, settings)
        except ValueError as problem:
            raise CommandError(f"--disable-admission-plugins: {problem}") from problem
        if args.max_devices:
            from dray.workbench.server_metrics import server_device_metrics

            cluster.metrics.more = server_device_metrics(cluster, args.max_devices).text
        await cluster.start()
        # What was loaded stays; what requests leave behind is mostly freed without the collector.
        gc.freeze()
        collect_in_small_steps()
        # When the store's thread writes, it needs the interpreter for moments only, but each write waits for them.
        sys.setswitchinterval(0.0005)
        unix = unix_socket(args.unix_socket, args.unix_socket_group) if args.unix_socket else None
        front = Front(cluster.server, args.bind_address, args.secure_port, tls, unix_socket=unix)
        await front.start()
        url = f"https://{f'[{host}]' if ':' in host else host}:{front.port}"
        login.url = settings.sessions.url = url
        written = _write_kubeconfigs(args, directory, pki, url)
        print(f"dray server ready at {url} (kubeconfig {written})", flush=True)
        await stop.wait()
        await cluster.stop()
        await front.stop()
    return 0


def _settings(
    args: argparse.Namespace, token_key: EllipticCurvePrivateKey, node_client: ssl.SSLContext
) -> Settings:
    from dray.api.runtime_config import RuntimeConfigError, parse_runtime_config
    from dray.server import Settings
    from dray.server.auth.authentication import parse_token_file
    from dray.server.http.flow_control import Limits

    tokens = {}
    if args.token_auth_file is not None:
        tokens = parse_token_file(args.token_auth_file.read_text())
    modes = {mode for text in args.authorization_mode for mode in text.split(",") if mode}
    unknown = modes - {"Node", "RBAC", "AlwaysAllow"}
    if unknown:
        raise CommandError(
            f"--authorization-mode: unknown mode {', '.join(sorted(unknown))}", "use Node,RBAC or AlwaysAllow"
        )
    try:
        runtime_config = parse_runtime_config(args.runtime_config)
    except RuntimeConfigError as problem:
        raise CommandError(
            f"--runtime-config: {problem}", "for example --runtime-config=resource.k8s.io/v1beta1=false"
        ) from problem
    audit_policy, audit_file = _audit(args)
    disabled = frozenset(name for text in args.disable_admission_plugins for name in text.split(",") if name)
    return Settings(
        features=parse_gates(args.feature_gates),
        runtime_config=runtime_config,
        static_tokens=tokens,
        anonymous=args.anonymous_auth == "true",
        allow_everything="AlwaysAllow" in modes,
        disabled_admission=disabled,
        limits=Limits(args.max_requests_inflight, args.max_mutating_requests_inflight),
        token_key=token_key,
        node_client=node_client,
        audit_policy=audit_policy,
        audit_file=audit_file,
    )


def _audit(args: argparse.Namespace) -> tuple[AuditPolicy | None, AuditFile | None]:
    from dray.client.bounded_files import read_file
    from dray.server.audit import AuditFile, PolicyError, parse_policy

    policy = None
    if args.audit_policy_file is not None:
        if args.audit_log_path is None:
            raise CommandError("--audit-policy-file has no effect without --audit-log-path")
        try:
            policy = parse_policy(read_file(args.audit_policy_file))
        except PolicyError as problem:
            raise CommandError(
                f"{args.audit_policy_file}: {problem}", "docs/server.md has an example of a policy"
            ) from problem
    if args.audit_log_path is None:
        return policy, None
    try:
        file = AuditFile(args.audit_log_path, args.audit_log_maxsize * 1_000_000, args.audit_log_maxbackup)
    except OSError as problem:
        raise CommandError(
            f"--audit-log-path: cannot write to {args.audit_log_path}: {problem.strerror}",
            "name a file in a folder that exists and that the server may write to",
            code=1,
        ) from problem
    return policy, file


def _write_kubeconfigs(args: argparse.Namespace, directory: Path, pki: Pki, url: str) -> Path:
    from dray.server.auth.pki import ADMIN, CONTROLLERS, SCHEDULER

    now = utc_now()
    for name, (user, groups) in {"admin": ADMIN, "scheduler": SCHEDULER, "controllers": CONTROLLERS}.items():
        pki.refresh_kubeconfig(directory / f"{name}.kubeconfig", url, user, groups, now)
    if args.kubeconfig is None:
        return directory / "admin.kubeconfig"
    target: Path = args.kubeconfig
    pki.refresh_kubeconfig(target, url, ADMIN[0], ADMIN[1], now)
    return target


def _reachable(address: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)


def _explained(problem: OSError, args: argparse.Namespace) -> Exception:
    """Return the error of the system with what to do about it."""
    import errno

    from dray.host.sockets import SocketTakenError
    from dray.server.http.unix_access import SocketPlaceError

    if isinstance(problem, SocketPlaceError | SocketTakenError):
        return CommandError(f"--unix-socket: {problem}", "choose another path with --unix-socket", code=1)
    other_folder = "choose another folder with --data"
    match problem.errno:
        case errno.EADDRINUSE:
            message = f"port {args.secure_port} on {args.bind_address} is in use"
            return CommandError(message, "choose another with --secure-port (0: any free port)", code=1)
        case errno.EADDRNOTAVAIL:
            message = f"{args.bind_address} is not an address of this machine"
            return CommandError(message, "choose another with --bind-address")
        case errno.EACCES:
            message = f"not permitted: {problem.filename or args.secure_port}"
            return CommandError(message, f"{other_folder}, or a port above 1023", code=1)
        case errno.ENOENT | errno.ENOTDIR | errno.EEXIST | errno.EROFS | errno.ENOSPC:
            where = problem.filename or args.data
            return CommandError(f"cannot write to {where}: {problem.strerror}", other_folder, code=1)
    return problem
