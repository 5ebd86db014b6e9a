"""Where the server is and who we are: kubeconfig files and the in-cluster files.

The rules are client-go's. `--kubeconfig` names one file. `$KUBECONFIG` names several: of
clusters, users and contexts with one name the first file's counts, whole; so does the
first current-context; files that do not exist are left out. Relative paths are relative to the
file in which they stand. Credentials are not sent to a server without TLS.

What cannot be used is an error that names it, with the next step: silence would mean other
credentials, another server or another identity than the user believes.

Why our own loader: docs/adr/0016-own-kubeconfig-loader.md. `make kubernetes` compares it
with kubectl (tests/unit/client/test_client_kubeconfig_kubectl.py).
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from dray.api.parsing import ParseError, load_yaml
from dray.api.well_known import SERVICE_ACCOUNT_FOLDER
from dray.client.bounded_files import read_file
from dray.client.credentials import (
    EXEC_VERSIONS,
    INTERACTIVE_MODES,
    ExecCredentials,
    FileCredentials,
    basic,
    bearer,
    read_pem,
)
from dray.client.decoding import without_nulls
from dray.client.endpoint import (
    Credentials,
    Endpoint,
    NoCredentials,
    Secret,
    Trust,
    impersonation_headers,
    socket_path,
)
from dray.client.errors import KubeconfigError
from dray.client.proxies import environment_proxy, parse_proxy

__all__ = ["Endpoint", "load_endpoint", "load_in_cluster", "load_kubeconfig", "merged_config"]

IN_CLUSTER = Path(SERVICE_ACCOUNT_FOLDER)
_MOST_BYTES = 16 << 20  # of a kubeconfig
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


# --- the file's shape ---------------------------------------------------------


class _Extension(msgspec.Struct):
    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    proxy_url: str = ""
    extensions: list[_Extension] = []


class _EnvVar(msgspec.Struct):
    name: str = ""
    value: str = ""


class _Exec(msgspec.Struct, rename="camel"):
    command: str = ""
    args: list[str] = []
    env: list[_EnvVar] = []
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    username: str = ""
    password: str = ""
    auth_provider: dict[str, Any] | None = None
    exec: _Exec | None = None


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(msgspec.Struct):
    name: str = ""
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class _NamedUser(msgspec.Struct):
    name: str = ""
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(msgspec.Struct):
    name: str = ""
    context: _Context = msgspec.field(default_factory=_Context)


class _Config(msgspec.Struct, rename="kebab"):
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


class MergedConfig(msgspec.Struct):
    """Several kubeconfig files as one; each entry with the file it comes from."""

    files: list[Path]
    clusters: dict[str, tuple[_Cluster, Path]] = {}
    users: dict[str, tuple[_User, Path]] = {}
    contexts: dict[str, tuple[_Context, Path]] = {}
    current_context: str = ""

    def __str__(self) -> str:
        return "kubeconfig " + ":".join(map(str, self.files))


# --- reading ------------------------------------------------------------------


def load_endpoint(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Endpoint:
    """Find the endpoint: the given file, else $KUBECONFIG, else in-cluster, else ~/.kube/config.

    Raises KubeconfigError, as the other functions here do.
    """
    if kubeconfig is not None:
        return load_kubeconfig(kubeconfig, context)
    names = list(dict.fromkeys(part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part))
    if names:
        present = [name for name in names if os.path.exists(name)]
        return load_kubeconfig(present or names, context)
    if os.environ.get("KUBERNETES_SERVICE_HOST") and (IN_CLUSTER / "token").exists():
        return load_in_cluster()
    return load_kubeconfig(Path.home() / ".kube" / "config", context)


def load_in_cluster(folder: Path = IN_CLUSTER) -> Endpoint:
    """Read the service account that a pod is given."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST is not set: not in a pod? Give --kubeconfig FILE.")
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    _check_address(server, "KUBERNETES_SERVICE_HOST")
    trust = Trust(read_pem(folder / "ca.crt", "the cluster's CA"))
    trust.context()
    namespace = "default"
    if (folder / "namespace").exists():
        namespace = read_pem(folder / "namespace", "the namespace file").decode("utf-8", "replace").strip()
    return Endpoint(
        server,
        trust,
        FileCredentials(token=folder / "token"),
        proxy=environment_proxy(server, os.environ),
        namespace=namespace,
        user="the pod's service account",
        origin=str(folder),
    )


def load_kubeconfig(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], context: str | None = None
) -> Endpoint:
    """Read one context (the current one, unless another is named) of one or more kubeconfig files."""
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    config = merged_config([Path(path).expanduser() for path in several])
    name = context or config.current_context
    if not name:
        raise KubeconfigError(f"{config} has no current-context; name one with --context")
    chosen, _ = _entry(config.contexts, "contexts", name, config)
    cluster, cluster_file = _entry(config.clusters, "clusters", chosen.cluster, config)
    if not cluster.server:
        raise KubeconfigError(f"{config}: cluster {chosen.cluster!r} has no server address")
    user, user_file = _entry(config.users, "users", chosen.user, config) if chosen.user else (_User(), Path())
    try:
        return _endpoint(cluster, cluster_file.parent, user, user_file.parent, chosen, config)
    except KubeconfigError as error:
        raise KubeconfigError(f"{config}, context {name!r}: {error}") from error


def merged_config(paths: Sequence[Path]) -> MergedConfig:
    """Read kubeconfig files and merge them; the first that names something wins."""
    merged = MergedConfig(list(paths), {}, {}, {})
    for path in paths:
        config = _read(path)
        origin = Path(os.path.abspath(path))
        kinds: list[tuple[str, dict[str, Any], list[tuple[str, Any]]]] = [
            ("clusters", merged.clusters, [(entry.name, entry.cluster) for entry in config.clusters]),
            ("users", merged.users, [(entry.name, entry.user) for entry in config.users]),
            ("contexts", merged.contexts, [(entry.name, entry.context) for entry in config.contexts]),
        ]
        for kind, target, entries in kinds:
            seen: set[str] = set()
            for name, value in entries:
                if name in seen:
                    raise KubeconfigError(f"kubeconfig {path}: the name {name!r} is in {kind} twice")
                seen.add(name)
                target.setdefault(name, (value, origin))
        merged.current_context = merged.current_context or config.current_context
    return merged


def _read(path: Path) -> _Config:
    try:
        document = load_yaml(read_file(path, _MOST_BYTES))
    except OSError as error:
        raise KubeconfigError(
            f"cannot read kubeconfig {path}: {error.strerror}. Give --kubeconfig FILE."
        ) from error
    except ParseError as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return _Config()
    if not isinstance(document, dict):
        raise KubeconfigError(
            f"kubeconfig {path} is not a kubeconfig: it has no clusters, users and contexts"
        )
    try:
        return msgspec.convert(without_nulls(document), _Config)
    except msgspec.ValidationError as error:
        raise KubeconfigError(f"kubeconfig {path}: {error}") from None


_Entry = TypeVar("_Entry")


def _entry(
    entries: dict[str, tuple[_Entry, Path]], kind: str, name: str, config: MergedConfig
) -> tuple[_Entry, Path]:
    if name in entries:
        return entries[name]
    known = ", ".join(entries) or "none"
    raise KubeconfigError(f"{config}: no entry {name!r} in {kind} (there: {known})")


# --- what it comes down to ----------------------------------------------------


def _endpoint(
    cluster: _Cluster, cluster_folder: Path, user: _User, user_folder: Path, chosen: _Context, config: MergedConfig
) -> Endpoint:  # fmt: skip
    scheme = _check_address(cluster.server, f"cluster {chosen.cluster!r}: server")
    authority = _pem(cluster, "certificate_authority", cluster_folder)
    trust = Trust(authority or None, cluster.insecure_skip_tls_verify)
    credentials: Credentials = NoCredentials()
    if scheme == "https":
        trust.context()
        credentials = _credentials(user, user_folder, f"user {chosen.user!r}", cluster, authority)
        trust.context(credentials.secret)
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.as_:
        raise KubeconfigError(f"user {chosen.user!r}: as-uid, as-groups and as-user-extra need `as`")
    extra = [(key, value) for key, values in user.as_user_extra.items() for value in values]
    return Endpoint(
        cluster.server,
        trust,
        credentials,
        cluster.tls_server_name or None,
        parse_proxy(cluster.proxy_url, "proxy-url")
        if cluster.proxy_url
        else None
        if scheme == "unix"
        else environment_proxy(cluster.server, os.environ),
        impersonation_headers(user.as_, user.as_uid, user.as_groups, extra),
        chosen.namespace or "default",
        user.as_ or chosen.user,
        str(config),
    )


def _check_address(server: str, what: str) -> str:
    """Return the scheme of a server's address; raise KubeconfigError when it is none."""
    if server.startswith("unix:"):
        if socket_path(server) is None:
            raise KubeconfigError(f"{what} {server!r} is not an address of the form unix:///PATH")
        return "unix"
    try:
        parts = urlsplit(server)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_good = False
    if not is_good or not server.isascii() or not server.isprintable() or " " in server:
        raise KubeconfigError(f"{what} {server!r} is not an address of the form https://HOST[:PORT]")
    return parts.scheme


def _credentials(
    user: _User, folder: Path, name: str, cluster: _Cluster, authority: bytes
) -> Credentials:  # fmt: skip
    if user.token and (user.username or user.password):
        raise KubeconfigError(f"{name} has both a token and a password; only one is allowed")
    if user.exec is not None and user.auth_provider is not None:
        raise KubeconfigError(f"{name} has both exec and auth-provider; only one is allowed")
    certificate = _pem(user, "client_certificate", folder)
    key = _pem(user, "client_key", folder)
    if bool(certificate) != bool(key):
        raise KubeconfigError(f"{name} has only one of client-certificate and client-key")
    authorization = ""
    if user.token:
        authorization = bearer(user.token, f"the token of {name}")
    elif user.username or user.password:
        authorization = basic(user.username, user.password)
    if user.exec is not None and not (authorization or certificate or user.token_file):
        return _exec_credentials(user.exec, folder, name, cluster, authority)
    if user.auth_provider is not None and not (authorization or certificate or user.token_file):
        raise KubeconfigError(
            f"{name} uses the auth-provider {user.auth_provider.get('name')!r}, which is not supported"
            " (nor by Kubernetes since v1.26); use an exec plugin or a token"
        )
    return FileCredentials(
        Secret(authorization, certificate, key),
        token=folder / user.token_file if user.token_file else None,
        certificate=_path(user.client_certificate, user.client_certificate_data, folder),
        key=_path(user.client_key, user.client_key_data, folder),
    )


def _exec_credentials(
    plugin: _Exec, folder: Path, name: str, cluster: _Cluster, authority: bytes
) -> ExecCredentials:
    if not plugin.command:
        raise KubeconfigError(f"{name}: exec has no command")
    if plugin.api_version not in EXEC_VERSIONS:
        raise KubeconfigError(
            f"{name}: exec.apiVersion {plugin.api_version!r} is not supported; known: {', '.join(EXEC_VERSIONS)}"
        )
    mode = plugin.interactive_mode
    if not mode and plugin.api_version.endswith("/v1beta1"):
        mode = "IfAvailable"
    if mode not in INTERACTIVE_MODES:
        raise KubeconfigError(
            f"{name}: exec.interactiveMode is {mode!r}; it must be one of {', '.join(INTERACTIVE_MODES)}"
        )
    if any(not pair.name or "=" in pair.name or "\0" in pair.name + pair.value for pair in plugin.env):
        raise KubeconfigError(f"{name}: exec.env has a variable with an empty or impossible name or value")
    # A bare name is searched on PATH; one with a slash is relative to the kubeconfig.
    command = str(folder / plugin.command) if "/" in plugin.command else plugin.command
    return ExecCredentials(
        command,
        plugin.args,
        {pair.name: pair.value for pair in plugin.env},
        plugin.api_version,
        mode,
        plugin.install_hint,
        _cluster_info(cluster, authority) if plugin.provide_cluster_info else None,
    )


def _cluster_info(cluster: _Cluster, authority: bytes) -> dict[str, Any]:
    """Return what a plugin is told of the cluster."""
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode(authority).decode(),
        "proxy-url": cluster.proxy_url,
    }
    found = {key: value for key, value in info.items() if value}
    config = next((each.extension for each in cluster.extensions if each.name == _EXEC_EXTENSION), None)
    return found if config is None else {**found, "config": config}


def _pem(section: _Cluster | _User, field: str, folder: Path) -> bytes:
    """Return PEM that is given inline as base64, or by path; inline goes first, as in client-go."""
    inline, path = getattr(section, f"{field}_data"), getattr(section, field)
    name = field.replace("_", "-")
    if inline:
        try:
            return base64.b64decode(inline.replace("\n", "").replace("\r", ""), validate=True)
        except (binascii.Error, ValueError):
            raise KubeconfigError(f"{name}-data is not base64") from None
    return read_pem(folder / path, name) if path else b""


def _path(path: str, inline: str, folder: Path) -> Path | None:
    return folder / path if path and not inline else None
