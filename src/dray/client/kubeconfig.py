"""Where the server is and who we are: kubeconfig files and the in-cluster files.

Our own small loader: clusters, users and contexts; certificates inline or by
path (relative to the file), bearer tokens inline or by path, basic auth, exec
plugins. What it cannot use it names, with the next step.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.parsing import ParseError, load_json, load_yaml
from dray.client.errors import KubeconfigError

IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and our credentials for it."""

    server: str
    tls: ssl.SSLContext | None = None
    token: str | None = None
    basic: str | None = None  # user:password, base64
    namespace: str = "default"
    token_file: Path | None = None  # where the token is renewed; it must be read again and again

    @property
    def headers(self) -> dict[str, str]:
        """The Authorization header, if credentials travel that way."""
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if self.basic:
            return {"Authorization": f"Basic {self.basic}"}
        return {}


def load_endpoint(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Endpoint:
    """Find the endpoint: the given file, else $KUBECONFIG, else in-cluster, else ~/.kube/config."""
    if kubeconfig is None:
        kubeconfig = next((part for part in os.environ.get("KUBECONFIG", "").split(":") if part), None)
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST") and (IN_CLUSTER / "token").exists():
        return load_in_cluster()
    return load_kubeconfig(
        kubeconfig if kubeconfig is not None else Path.home() / ".kube" / "config", context
    )


def load_in_cluster(folder: Path = IN_CLUSTER) -> Endpoint:
    """Read the service account that a pod is given."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST is not set: not in a pod? Give --kubeconfig FILE.")
    try:
        token = (folder / "token").read_text().strip()
        namespace = (
            (folder / "namespace").read_text().strip() if (folder / "namespace").exists() else "default"
        )
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except OSError as error:
        raise KubeconfigError(f"cannot read the service account in {folder}: {error}") from error
    address = f"[{host}]" if ":" in host else host
    return Endpoint(f"https://{address}:{port}", tls, token, namespace=namespace, token_file=folder / "token")


def load_kubeconfig(path: str | os.PathLike[str], context: str | None = None) -> Endpoint:
    """Read one context of a kubeconfig file (the current one, unless another is named)."""
    path = Path(path).expanduser()
    try:
        config = load_yaml(path.read_bytes())
    except OSError as error:
        raise KubeconfigError(
            f"cannot read kubeconfig {path}: {error.strerror}. Give --kubeconfig FILE."
        ) from error
    except ParseError as error:
        raise KubeconfigError(f"kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise KubeconfigError(f"kubeconfig {path} is empty")
    name = context or config.get("current-context")
    if not name:
        raise KubeconfigError(f"kubeconfig {path} has no current-context; name one with --context")
    chosen = _entry(config, "contexts", name, path)["context"]
    cluster = _entry(config, "clusters", chosen.get("cluster", ""), path)["cluster"]
    user = _entry(config, "users", chosen["user"], path)["user"] or {} if chosen.get("user") else {}
    if not cluster.get("server"):
        raise KubeconfigError(f"cluster {chosen.get('cluster')!r} in {path} has no server address")
    if "exec" in user:
        user = {**user, **_run_exec_plugin(user["exec"], path)}
    return _endpoint(cluster, user, chosen.get("namespace") or "default", path)


def _entry(config: Mapping[str, Any], kind: str, name: str, path: Path) -> Any:
    entries = config.get(kind) or []
    for entry in entries:
        if entry.get("name") == name:
            return entry
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise KubeconfigError(f"kubeconfig {path}: no entry {name!r} in {kind} (there: {known})")


def _endpoint(cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str, path: Path) -> Endpoint:
    server = str(cluster["server"])
    token = user.get("token")
    token_file = path.parent / str(user["tokenFile"]) if not token and user.get("tokenFile") else None
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise KubeconfigError(f"kubeconfig {path}: cannot read tokenFile: {error}") from error
    basic = None
    if user.get("username") is not None and user.get("password") is not None:
        basic = base64.b64encode(f"{user['username']}:{user['password']}".encode()).decode()
    tls = _tls_context(cluster, user, path) if server.startswith("https:") else None
    return Endpoint(server, tls, token, basic, namespace, token_file)


def _tls_context(cluster: Mapping[str, Any], user: Mapping[str, Any], path: Path) -> ssl.SSLContext:
    try:
        authority = _material(cluster, "certificate-authority", path)
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _material(user, "client-certificate", path), _material(user, "client-key", path)
        if certificate and key:
            _load_pair(context, certificate, key)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise KubeconfigError(f"kubeconfig {path}: certificates cannot be used: {error}") from error
    return context


def _material(section: Mapping[str, Any], key: str, path: Path) -> bytes | None:
    """Read PEM that is given inline as base64, or by path relative to the kubeconfig."""
    if section.get(key + "-data"):
        return base64.b64decode(section[key + "-data"])
    if section.get(key):
        return (path.parent / str(section[key])).read_bytes()
    return None


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module reads pairs only from files; the folder is private and gone at once.
    with tempfile.TemporaryDirectory(prefix="dray-tls-") as folder:
        certificate_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate_file.write_bytes(certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        context.load_cert_chain(certificate_file, key_file)


def _run_exec_plugin(plugin: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Ask an exec plugin for credentials, once; long-lived processes restart when they expire."""
    command = [plugin["command"], *(plugin.get("args") or [])]
    environment = {**os.environ, **{pair["name"]: pair["value"] for pair in plugin.get("env") or []}}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(
        {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    )
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, check=True, timeout=60, cwd=path.parent
        )
        status = load_json(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        hint = plugin.get("installHint") or "is it installed and on PATH?"
        raise KubeconfigError(f"exec plugin {command[0]!r} gave no credentials: {error} ({hint})") from error
    found: dict[str, Any] = {}
    if status.get("token"):
        found["token"] = status["token"]
    for source, target in (("clientCertificateData", "client-certificate"), ("clientKeyData", "client-key")):
        if status.get(source):
            found[target + "-data"] = base64.b64encode(status[source].encode()).decode()
    return found
