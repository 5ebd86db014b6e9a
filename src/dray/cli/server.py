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
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from dray.server.assembly import Settings
    from dray.server.pki import Pki

DEFAULT_DATA = Path("~/.local/share/dray").expanduser()
DEFAULT_PORT = 6443


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dray server`."""
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_DATA,
        metavar="DIR",
        help="where objects, certificates and keys live",
    )
    parser.add_argument(
        "--in-memory",
        action="store_true",
        help="keep objects in memory only: all is gone when the server stops",
    )
    parser.add_argument("--bind-address", default="127.0.0.1", metavar="ADDR", help="address to listen on")
    parser.add_argument(
        "--secure-port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help="port to listen on; 0 picks a free one",
    )
    parser.add_argument(
        "--advertise-address",
        default="",
        metavar="HOST",
        help="name or address under which clients reach the server",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="write an administrator's kubeconfig here (default: DIR/admin.kubeconfig)",
    )
    parser.add_argument(
        "--token-auth-file",
        type=Path,
        metavar="FILE",
        help='static tokens: token,user,uid,"group1,group2" a line',
    )
    parser.add_argument(
        "--client-ca-file", type=Path, metavar="FILE", help="also accept client certificates of this CA"
    )
    parser.add_argument(
        "--tls-cert-file", type=Path, metavar="FILE", help="serve with this certificate instead of an own one"
    )
    parser.add_argument(
        "--tls-private-key-file", type=Path, metavar="FILE", help="the key of --tls-cert-file"
    )
    parser.add_argument(
        "--feature-gates", action="append", default=[], metavar="A=true,B=false", help="switch feature gates"
    )
    parser.add_argument(
        "--disable-admission-plugins",
        action="append",
        default=[],
        metavar="A,B",
        help="leave out admission plugins",
    )
    parser.add_argument(
        "--enable-admission-plugins",
        action="append",
        default=[],
        metavar="A,B",
        help="accepted; all known plugins are on",
    )
    parser.add_argument(
        "--runtime-config",
        action="append",
        default=[],
        metavar="api/all=true",
        help="accepted; all versions are served",
    )
    parser.add_argument(
        "--authorization-mode",
        action="append",
        default=[],
        metavar="MODE",
        help="Node,RBAC (default) or AlwaysAllow",
    )
    parser.add_argument(
        "--anonymous-auth",
        default="true",
        choices=["true", "false"],
        help="whether requests without credentials count as system:anonymous",
    )
    parser.add_argument(
        "--max-requests-inflight",
        type=int,
        default=400,
        metavar="N",
        help="reading requests handled at once; more get 429",
    )
    parser.add_argument(
        "--max-mutating-requests-inflight",
        type=int,
        default=200,
        metavar="N",
        help="writing requests handled at once; more get 429",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every request")


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; returns the exit code."""
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    from dray.server.authn import TokenFileError
    from dray.server.pki import PkiError
    from dray.server.store import StoreError

    logging.raiseExceptions = False  # a full disk must not turn each line of the log into a traceback
    _raise_file_limit()
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(args))
    except (StoreError, PkiError, TokenFileError, FlagError) as problem:
        print(f"dray server: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"dray server: {_explain(problem, args)}", file=sys.stderr)
        return 1


def _raise_file_limit() -> None:
    """Allow as many open files, which means connections, as the system lets this process have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class FlagError(ValueError):
    """A flag's value that cannot be used."""


async def _serve(args: argparse.Namespace) -> int:
    from dray.server.assembly import Cluster
    from dray.server.front import Front
    from dray.server.pki import node_client_tls, prepare, server_tls
    from dray.server.store import MemoryStore, SqliteStore

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
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
        pki = prepare(directory / "pki", [host, args.bind_address], datetime.now(UTC))
        certificate = args.tls_cert_file or pki.serving_certificate_file
        key = args.tls_private_key_file or pki.serving_key_file
        tls = server_tls(
            certificate, key, [pki.ca_file, *([args.client_ca_file] if args.client_ca_file else [])]
        )
        node_client = node_client_tls(directory / "pki", pki.ca, datetime.now(UTC))
        settings = _settings(args, pki.token_key, node_client)
        try:
            cluster = Cluster(store, settings)
        except ValueError as problem:
            raise FlagError(f"--disable-admission-plugins: {problem}") from problem
        await cluster.start()
        # What was loaded stays; what requests leave behind is mostly freed without the collector.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        # When the store's thread writes, it needs the interpreter for moments only, but each write waits for them.
        sys.setswitchinterval(0.0005)
        front = Front(cluster.server, args.bind_address, args.secure_port, tls)
        await front.start()
        url = f"https://{f'[{host}]' if ':' in host else host}:{front.port}"
        written = _write_kubeconfigs(args, directory, pki, url)
        print(f"dray server ready at {url} (kubeconfig {written})", flush=True)
        await stop.wait()
        await cluster.stop()
        await front.stop()
    return 0


def _settings(
    args: argparse.Namespace, token_key: EllipticCurvePrivateKey, node_client: ssl.SSLContext
) -> Settings:
    from dray.api.features import KNOWN_GATES, Features
    from dray.server.assembly import Settings
    from dray.server.authn import parse_token_file
    from dray.server.flow import Limits

    features = Features.default()
    for text in args.feature_gates:
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if value.lower() not in ("true", "false"):
                raise FlagError(f"--feature-gates: {part!r} is not of the form NAME=true or NAME=false")
            if name in ("AllAlpha", "AllBeta"):
                continue
            if name not in KNOWN_GATES:
                raise FlagError(
                    f"--feature-gates: unknown gate {name}; known: {', '.join(sorted(KNOWN_GATES))}"
                )
            features = (
                features.switched(on=[name]) if value.lower() == "true" else features.switched(off=[name])
            )
    tokens = {}
    if args.token_auth_file is not None:
        tokens = parse_token_file(args.token_auth_file.read_text())
    modes = {mode for text in args.authorization_mode for mode in text.split(",") if mode}
    unknown = modes - {"Node", "RBAC", "AlwaysAllow"}
    if unknown:
        raise FlagError(
            f"--authorization-mode: unknown mode {', '.join(sorted(unknown))}; use Node,RBAC or AlwaysAllow"
        )
    disabled = frozenset(name for text in args.disable_admission_plugins for name in text.split(",") if name)
    return Settings(
        features=features,
        static_tokens=tokens,
        anonymous=args.anonymous_auth == "true",
        allow_everything="AlwaysAllow" in modes,
        disabled_admission=disabled,
        limits=Limits(args.max_requests_inflight, args.max_mutating_requests_inflight),
        token_key=token_key,
        node_client=node_client,
    )


def _write_kubeconfigs(args: argparse.Namespace, directory: Path, pki: Pki, url: str) -> Path:
    from dray.server.pki import ADMIN, CONTROLLERS, SCHEDULER

    now = datetime.now(UTC)
    for name, (user, groups) in {"admin": ADMIN, "scheduler": SCHEDULER, "controllers": CONTROLLERS}.items():
        pki.refresh_kubeconfig(directory / f"{name}.kubeconfig", url, user, groups, now)
    if args.kubeconfig is None:
        return directory / "admin.kubeconfig"
    target: Path = args.kubeconfig
    pki.refresh_kubeconfig(target, url, ADMIN[0], ADMIN[1], now)
    return target


def _reachable(address: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(address, address)


def _explain(problem: OSError, args: argparse.Namespace) -> str:
    import errno

    if problem.errno == errno.EADDRINUSE:
        return f"port {args.secure_port} on {args.bind_address} is in use; choose another with --secure-port (0 picks a free one)"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"{args.bind_address} is no address of this machine; choose another with --bind-address"
    if problem.errno == errno.EACCES:
        return f"not permitted: {problem.filename or args.secure_port}; choose another --data directory or a port above 1023"
    if problem.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ENOSPC):
        where = problem.filename or args.data
        return f"cannot keep anything in {where}: {problem.strerror}; choose another --data directory"
    return str(problem)
