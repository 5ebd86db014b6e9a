"""What leaves a cluster in a snapshot: what decides about devices, and nothing that may be secret.

Containers lose their environment, commands, volumes and probes; objects lose annotations (which may repeat a whole
manifest) and managed fields; nodes lose their addresses. `Anonymiser` also replaces names: the same name by the
same other name everywhere, so that references, selectors and topology still hold.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from dray.api.json_types import JsonObject
from dray.api.raw_json import RawJson

_META = ("name", "generateName", "namespace", "labels", "uid", "creationTimestamp", "ownerReferences")
_META_MORE = ("deletionTimestamp", "finalizers", "generation", "resourceVersion")
_POD_SPEC = (
    "nodeName", "nodeSelector", "affinity", "tolerations", "priority", "priorityClassName", "preemptionPolicy",
    "schedulerName", "schedulingGates", "schedulingGroup", "resourceClaims", "resources", "topologySpreadConstraints",
    "overhead", "restartPolicy", "terminationGracePeriodSeconds", "hostNetwork", "os", "runtimeClassName",
)  # fmt: skip
_CONTAINER = ("name", "image", "resources", "ports", "restartPolicy")
_POD_STATUS = (
    "phase", "conditions", "nominatedNodeName", "qosClass", "startTime", "resourceClaimStatuses",
    "extendedResourceClaimStatus", "reason", "message",
)  # fmt: skip
_VOLUMES = ("persistentVolumeClaim", "ephemeral", "csi")  # what the scheduler looks at


def redacted(obj: JsonObject) -> JsonObject:
    """Return an object without what tools do not need and nobody should pass on."""
    obj = copy.deepcopy(obj)
    metadata = obj.get("metadata") or {}
    obj["metadata"] = {key: metadata[key] for key in (*_META, *_META_MORE) if key in metadata}
    if obj.get("kind") == "Pod":
        obj["spec"] = _pod_spec(obj.get("spec") or {})
        status = obj.get("status") or {}
        obj["status"] = {key: status[key] for key in _POD_STATUS if key in status}
    if obj.get("kind") == "Node":
        (obj.get("status") or {}).pop("addresses", None)
        (obj.get("status") or {}).pop("daemonEndpoints", None)
    return obj


def _pod_spec(spec: JsonObject) -> JsonObject:
    kept: JsonObject = {key: spec[key] for key in _POD_SPEC if key in spec}
    for field in ("initContainers", "containers"):
        if spec.get(field):
            kept[field] = [{key: each[key] for key in _CONTAINER if key in each} for each in spec[field]]
    volumes = [
        {key: volume[key] for key in ("name", *_VOLUMES) if key in volume}
        for volume in spec.get("volumes") or []
        if any(key in volume for key in _VOLUMES if key != "csi")
    ]
    if volumes:
        kept["volumes"] = volumes
    return kept


# --- names ----------------------------------------------------------------------------------

# Names that are the same everywhere say nothing about whose cluster it is.
_COMMON = frozenset(["default", "kube-system", "kube-public", "kube-node-lease"])
_NAMED = {
    "Node": "node", "Namespace": "namespace", "Pod": "pod", "PodGroup": "group", "ResourceClaim": "claim",
    "ResourceClaimTemplate": "template", "ResourceQuota": "quota", "DeviceTaintRule": "rule",
}  # fmt: skip
# Labels whose values describe hardware or place, not people; zones and regions are renamed all the same.
_PLAIN_LABELS = re.compile(
    r"((beta\.)?kubernetes\.io/(os|arch)|node(\.kubernetes)?\.io/instance-type|node-role\.kubernetes\.io/.*"
    r"|nvidia\.com/.*|amd\.com/.*|feature\.node\.kubernetes\.io/.*|.*intel\.com/.*|cloud\.google\.com/gke-(tpu|gpu|acc).*)"
)
_PLAIN_VALUE = re.compile(r"|true|false|yes|no|[0-9.]{1,6}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}|[0-9a-fA-F]{0,4}(?:::?[0-9a-fA-F]{1,4}){2,7})"
    r"(?![\w.:])"
)
_PCI = re.compile(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class Anonymiser:
    """Replaces names; one instance for all objects of a cluster.

    Kept: device classes, drivers, attributes and capacities (they are what a copy is for), labels of hardware.
    Replaced: names of nodes, namespaces, pods, claims, templates, quotas and owners; values of other labels;
    UUIDs, addresses, images.
    """

    def __init__(self, objects: Iterable[JsonObject], salt: bytes = b"") -> None:
        self._salt = salt  # unknown to readers: addresses are few enough to be guessed from plain hashes
        self._by_name: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        for obj in objects:
            self._learn(obj)
        nodes = sorted((name for name in self._nodes), key=len, reverse=True)
        # A node's name is also part of the names of its slices and pools.
        pattern = "|".join(re.escape(name) for name in nodes)
        self._node = re.compile(rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])") if nodes else None

    def _learn(self, obj: JsonObject) -> None:
        metadata = obj.get("metadata") or {}
        kind = str(obj.get("kind"))
        if kind in _NAMED:
            self._rename(str(metadata.get("name") or ""), _NAMED[kind])
        self._rename(str(metadata.get("namespace") or ""), "namespace")
        for owner in metadata.get("ownerReferences") or []:
            if owner.get("kind") not in ("Node", "Pod"):
                self._rename(str(owner.get("name") or ""), "owner")
        for label, value in _labels(obj):
            if not _PLAIN_LABELS.fullmatch(label) and not _PLAIN_VALUE.fullmatch(value):
                self._rename(value, "value")

    def _rename(self, name: str, word: str) -> None:
        if name and name not in _COMMON and name not in self._by_name:
            number = self._counts[word] = self._counts.get(word, 0) + 1
            self._by_name[name] = f"{word}-{number}"

    @property
    def _nodes(self) -> list[str]:
        return [name for name, other in self._by_name.items() if re.fullmatch(r"node-\d+", other)]

    def anonymised(self, obj: JsonObject) -> JsonObject:
        """Return an object with other names."""
        kind = str(obj.get("kind"))
        changed: JsonObject = self._changed(obj, "", keep_name=kind in ("DeviceClass", "PriorityClass"))
        if kind == "Node":
            status = changed.get("status") or {}
            status.pop("images", None)
            (status.get("nodeInfo") or {}).clear()
        return changed

    def _changed(self, value: Any, key: str, *, keep_name: bool = False) -> Any:
        if isinstance(value, RawJson):
            return value
        if isinstance(value, dict):
            return {
                name: item
                if (keep_name and name == "metadata") or name in ("apiVersion", "kind", "driver")
                else self._changed(item, str(name))
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._changed(item, key) for item in value]
        return self._text(value, key) if isinstance(value, str) else value

    def _text(self, text: str, key: str) -> str:
        if key == "image":
            return "image"
        if text in self._by_name:
            return self._by_name[text]
        if self._node is not None:
            text = self._node.sub(lambda found: self._by_name[found[0]], text)
        text = _UUID.sub(self._other_uuid, text)
        return text if _PCI.search(text) else _ADDRESS.sub(self._other_address, text)

    def _other_uuid(self, found: re.Match[str]) -> str:
        digest = self._digest(found[0]).hex()
        return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:32]}"

    def _other_address(self, found: re.Match[str]) -> str:
        """Return another address of the same form."""
        digest = self._digest(found[0])
        if "." in found[0]:
            return f"10.{digest[0]}.{digest[1]}.{digest[2]}"
        parts = found[0].split(":")
        return ":".join(
            f"{digest[index % 32]:0{len(part)}x}"[: len(part)] for index, part in enumerate(parts)
        )

    def _digest(self, text: str) -> bytes:
        return hashlib.sha256(self._salt + text.lower().encode()).digest()


def _labels(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the labels of an object and the labels that its selectors name, with their values."""
    if isinstance(value, list):
        for item in value:
            yield from _labels(item)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("key"), str) and isinstance(value.get("values"), list):
        for each in value["values"]:
            yield value["key"], str(each)
    for name, item in value.items():
        if name in ("labels", "nodeSelector", "matchLabels") and isinstance(item, dict):
            for label, each in item.items():
                if isinstance(each, str):
                    yield str(label), each
        yield from _labels(item)
