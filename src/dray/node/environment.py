"""A container's environment from its spec: variables, command line, volumes.

Values come from the spec itself, from the pod (downward API), and from ConfigMaps
and Secrets, which are read when the container starts. `$(NAME)` in values, command
and arguments is replaced by variables that are defined before; `$$(NAME)` is not.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dray.api.podspec import EnvVarSource, KeyToPath, RunContainer, RunPod, Volume
from dray.api.quantity import parse_quantity
from dray.client import Client, NotFound
from dray.client.resources import CONFIG_MAPS, SECRETS, Resource
from dray.host.files import PRIVATE_FILE, write_atomically
from dray.host.private_files import make_private_folder
from dray.node.runtime import BindMount, StartError

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_KEYED_FIELD = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]\Z")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; unknown names stay as they are.

    >>> expand("$(A) $$(A) $(B)", {"A": "1"})
    '1 $(A) $(B)'
    """

    def replacement(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        return values.get(match.group(1), match.group(0))

    return _REFERENCE.sub(replacement, text)


def pod_field(pod: RunPod, path: str, node_ip: str) -> str:
    """Return a field of the pod as the downward API shows it; raise StartError for one that it does not have."""
    meta = pod.metadata
    keyed = _KEYED_FIELD.match(path)
    if keyed:
        values = meta.labels if keyed.group(1) == "labels" else meta.annotations
        return (values or {}).get(keyed.group(2), "")
    known = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": node_ip,
        "status.podIPs": node_ip,
        "status.hostIP": node_ip,
        "status.hostIPs": node_ip,
    }
    for name, mapping in (("metadata.labels", meta.labels), ("metadata.annotations", meta.annotations)):
        known[name] = "\n".join(f'{key}="{value}"' for key, value in sorted((mapping or {}).items()))
    if path not in known:
        raise StartError(
            "CreateContainerConfigError", f"field {path!r} of the pod cannot be given to a container"
        )
    return known[path]


class PodEnvironment:
    """Builds environments and volumes; holds the client for ConfigMaps and Secrets."""

    def __init__(self, client: Client, root: Path, node_ip: str) -> None:
        self._client = client
        self._root = root / "pods"
        self._node_ip = node_ip

    async def environment(self, pod: RunPod, container: RunContainer) -> dict[str, str]:
        """Return the variables of a container, in order of definition."""
        values: dict[str, str] = {"HOSTNAME": pod.spec.hostname or pod.metadata.name}
        for source in container.env_from:
            for ref, resource in ((source.config_map_ref, CONFIG_MAPS), (source.secret_ref, SECRETS)):
                if ref is not None:
                    data = await self._data(resource, pod.metadata.namespace, ref.name, bool(ref.optional))
                    values |= {f"{source.prefix}{key}": value.decode() for key, value in data.items()}
        for variable in container.env:
            if variable.value_from is None:
                values[variable.name] = expand(variable.value, values)
                continue
            value = await self._value_from(pod, container, variable.value_from)
            if value is not None:
                values[variable.name] = value
        return values

    async def _value_from(self, pod: RunPod, container: RunContainer, source: EnvVarSource) -> str | None:
        if source.field_ref is not None:
            return pod_field(pod, source.field_ref.field_path, self._node_ip)
        if source.resource_field_ref is not None:
            return _resource_field(pod, container, source.resource_field_ref)
        for ref, resource in ((source.config_map_key_ref, CONFIG_MAPS), (source.secret_key_ref, SECRETS)):
            if ref is None:
                continue
            data = await self._data(resource, pod.metadata.namespace, ref.name, bool(ref.optional))
            if ref.key in data:
                return data[ref.key].decode()
            if not ref.optional:
                raise StartError(
                    "CreateContainerConfigError", f"{resource.kind} {ref.name} has no key {ref.key!r}"
                )
        return None

    async def _data(
        self, resource: Resource, namespace: str, name: str, is_optional: bool
    ) -> dict[str, bytes]:
        try:
            found = await self._client.get(resource, name, namespace)
        except NotFound as error:
            if is_optional:
                return {}
            raise StartError(
                "CreateContainerConfigError", f"{resource.kind} {name!r} does not exist"
            ) from error
        if resource is SECRETS:
            return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
        data = {key: str(value).encode() for key, value in (found.get("data") or {}).items()}
        binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
        return data | binary

    def command_line(self, container: RunContainer, values: Mapping[str, str]) -> list[str]:
        """Return command and arguments with variables expanded."""
        return [expand(word, values) for word in (*container.command, *container.args)]

    # --- volumes ----------------------------------------------------------------

    def volume_dir(self, pod_uid: str) -> Path:
        """Return where the volumes of a pod are made."""
        return self._root / pod_uid / "volumes"

    async def mounts(self, pod: RunPod, container: RunContainer) -> list[BindMount]:
        """Make the volumes that a container mounts, if they are not there yet, and say where they go."""
        volumes = {volume.name: volume for volume in pod.spec.volumes}
        made = []
        for mount in container.volume_mounts:
            volume = volumes.get(mount.name)
            if volume is None:
                raise StartError("CreateContainerConfigError", f"volume {mount.name!r} is not in the pod")
            path = await self._make(pod, volume)
            if path is not None:
                host_path = path / mount.sub_path if mount.sub_path else path
                made.append(BindMount(host_path, mount.mount_path, mount.read_only))
        return made

    async def _make(self, pod: RunPod, volume: Volume) -> Path | None:
        if volume.host_path is not None:
            path = Path(volume.host_path.path)
            if volume.host_path.type.endswith("OrCreate"):
                path.mkdir(parents=True, exist_ok=True)
            return path
        folder = self.volume_dir(pod.metadata.uid) / volume.name
        if volume.projected is not None:
            # Service account tokens: nothing here needs them yet, and a pod without one still runs.
            return None
        make_private_folder(folder)
        for source, resource in ((volume.config_map, CONFIG_MAPS), (volume.secret, SECRETS)):
            if source is not None:
                name = source.name
                data = await self._data(resource, pod.metadata.namespace, name, bool(source.optional))
                _write_files(folder, data, source.items)
        if volume.downward_api is not None:
            items = volume.downward_api.get("items", ())
            for item in items:
                text = pod_field(pod, item.get("fieldRef", {}).get("fieldPath", ""), self._node_ip)
                write_atomically(folder / item["path"], text.encode(), PRIVATE_FILE, durable=False)
        return folder

    def forget(self, pod_uid: str) -> None:
        """Remove the volumes of a pod."""
        shutil.rmtree(self._root / pod_uid, ignore_errors=True)


def _write_files(folder: Path, data: Mapping[str, bytes], items: Sequence[KeyToPath]) -> None:
    chosen = {item.path: data[item.key] for item in items if item.key in data} if items else data
    for name, content in chosen.items():
        write_atomically(folder / name, content, PRIVATE_FILE, durable=False)


def _resource_field(pod: RunPod, container: RunContainer, selector: Any) -> str:
    name = selector.container_name or container.name
    target = next((c for c in (*pod.spec.init_containers, *pod.spec.containers) if c.name == name), container)
    kind, _, resource = selector.resource.partition(".")
    amounts = (target.resources.limits if kind == "limits" else target.resources.requests) or {}
    if resource not in amounts:
        return "0"
    amount = parse_quantity(amounts[resource])
    divisor = parse_quantity(selector.divisor) if str(selector.divisor) != "0" else parse_quantity("1")
    # Milli arithmetic: exact for what cpu and memory need; always rounded up, as kubelet does.
    return str(-(-amount.milli_value() // max(divisor.milli_value(), 1)))
