"""The files a prepared claim leaves for the container runtime: CDI specs and device metadata.

One CDI spec per claim holds a device for each prepared device that has edits, of
kind `k8s.<driver>/claim`, named `<claim uid>-<device>`. Metadata (KEP 5304) is one
JSON stream per request that tells the program in the container which devices it
was given; a CDI device of kind `<driver>/metadata` mounts it.

All names derive from the claim's UID, so that writing again overwrites, removing
again is harmless, and nothing is left over when the state file knows the claim.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dray.api.cdi import CdiDevice, CdiSpec, ContainerEdits, Mount, QualifiedName, minimum_version
from dray.driver.state import RecordedClaim, RecordedDevice
from dray.host.files import write_atomically

METADATA_VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")  # newest first
CONTAINER_METADATA_DIR = "/var/run/kubernetes.io/dra-device-attributes"


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """Writes and removes the files of claims of one driver."""

    driver: str
    cdi_dir: Path
    data_dir: Path  # the driver's own directory on the host
    with_metadata: bool = False

    def write(self, claim: RecordedClaim) -> RecordedClaim:
        """Write all files of the claim and return it with the CDI ids that refer to them."""
        own_ids, cdi_devices = self._claim_devices(claim)
        if cdi_devices:
            self._write_spec(self._claim_spec_path(claim.uid), f"k8s.{self.driver}/claim", cdi_devices)
        metadata_ids = self._write_metadata(claim) if self.with_metadata else {}
        devices = [
            msgspec.structs.replace(
                device,
                cdi_device_ids=[
                    *device.given_cdi_device_ids,
                    *([own_id] if own_id else []),
                    *([metadata_ids[device.request]] if device.request in metadata_ids else []),
                ],
            )
            for device, own_id in zip(claim.devices, own_ids, strict=True)
        ]
        return msgspec.structs.replace(claim, devices=devices)

    def are_missing(self, claim: RecordedClaim) -> bool:
        """Return whether somebody removed what `write` wrote (a reboot empties /run)."""
        has_edits = any(device.edits != ContainerEdits() for device in claim.devices)
        return has_edits and not self._claim_spec_path(claim.uid).exists()

    def remove(self, claim: RecordedClaim) -> None:
        """Remove all files of the claim; missing ones are fine."""
        self._claim_spec_path(claim.uid).unlink(missing_ok=True)
        for request in {device.request for device in claim.devices}:
            self._metadata_spec_path(claim.uid, request).unlink(missing_ok=True)
        shutil.rmtree(self._metadata_dir(claim), ignore_errors=True)

    def _claim_devices(self, claim: RecordedClaim) -> tuple[list[str], list[CdiDevice]]:
        """Name a CDI device for each device with edits; the id is empty where there are none."""
        ids: list[str] = []
        devices: list[CdiDevice] = []
        taken: set[str] = set()
        for device in claim.devices:
            if device.edits == ContainerEdits():
                ids.append("")
                continue
            # Device names are unique per pool only, and an admin may hold one twice: number those.
            base = "-".join(filter(None, (claim.uid, device.device, device.share_id)))
            name = base if base not in taken else f"{base}-{len(taken)}"
            taken.add(name)
            devices.append(CdiDevice(name=name, container_edits=device.edits))
            ids.append(str(QualifiedName(f"k8s.{self.driver}", "claim", name)))
        return ids, devices

    def _write_metadata(self, claim: RecordedClaim) -> dict[str, str]:
        ids: dict[str, str] = {}
        for request in dict.fromkeys(device.request for device in claim.devices):
            devices = [device for device in claim.devices if device.request == request]
            host_path = self._metadata_dir(claim) / request / "metadata.json"
            write_atomically(host_path, self._metadata_stream(claim, request, devices), durable=False)
            mount = Mount(
                host_path=str(host_path),
                container_path=self._container_path(claim, request),
                options=["ro", "bind"],
            )
            name = f"{claim.uid}_{request}"
            device = CdiDevice(name=name, container_edits=ContainerEdits(mounts=[mount]))
            self._write_spec(
                self._metadata_spec_path(claim.uid, request), f"{self.driver}/metadata", [device]
            )
            ids[request] = str(QualifiedName(self.driver, "metadata", name))
        return ids

    def _metadata_stream(
        self, claim: RecordedClaim, request: str, devices: Sequence[RecordedDevice]
    ) -> bytes:
        described = [self._described(device) for device in devices]
        # A reader learns which alternative was taken from the name, so it is not stripped here.
        name = devices[0].full_request or request
        documents = []
        for version in METADATA_VERSIONS:
            document: dict[str, Any] = {
                "kind": "DeviceMetadata",
                "apiVersion": version,
                "metadata": {
                    "name": claim.name,
                    "namespace": claim.namespace,
                    "uid": claim.uid,
                    "generation": 1,
                },
                "requests": [{"name": name, "devices": described}],
            }
            if claim.pod_claim_name:
                document["podClaimName"] = claim.pod_claim_name
            documents.append(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return b"\n".join(documents) + b"\n"

    def _described(self, device: RecordedDevice) -> dict[str, Any]:
        described: dict[str, Any] = {"driver": self.driver, "pool": device.pool, "name": device.device}
        if device.attributes:
            described["attributes"] = msgspec.to_builtins(device.attributes)
        if device.status is not None and device.status.network_data is not None:
            described["networkData"] = msgspec.to_builtins(device.status.network_data)
        return described

    def _write_spec(self, path: Path, kind: str, devices: list[CdiDevice]) -> None:
        spec = CdiSpec(kind=kind, devices=devices)
        spec = msgspec.structs.replace(spec, cdi_version=minimum_version(spec))
        plain = {key: value for key, value in msgspec.to_builtins(spec).items() if value}
        # /var/run is lost at reboot anyway, so these need to survive a kill only.
        write_atomically(path, msgspec.json.format(msgspec.json.encode(plain), indent=2), durable=False)

    def _claim_spec_path(self, uid: str) -> Path:
        return self.cdi_dir / f"k8s.{self.driver}-claim_{uid}.json"

    def _metadata_spec_path(self, uid: str, request: str) -> Path:
        return self.cdi_dir / f"{self.driver}_metadata_{uid}_{request}.json"

    def _metadata_dir(self, claim: RecordedClaim) -> Path:
        return self.data_dir / "dra-device-metadata" / f"{claim.namespace}_{claim.name}"

    def _container_path(self, claim: RecordedClaim, request: str) -> str:
        collection, name = (
            ("resourceclaimtemplates", claim.pod_claim_name)
            if claim.pod_claim_name
            else ("resourceclaims", claim.name)
        )
        return f"{CONTAINER_METADATA_DIR}/{collection}/{name}/{request}/{self.driver}-metadata.json"


class UnwrittenFiles(ClaimFiles):
    """The same CDI names without the files: for simulated nodes where no runtime reads them."""

    def __init__(self, driver: str) -> None:
        super().__init__(driver, Path(), Path())

    def are_missing(self, claim: RecordedClaim) -> bool:
        """Nothing is missing, since nothing was written."""
        return False

    def remove(self, claim: RecordedClaim) -> None:
        """There is nothing to remove."""

    def _write_spec(self, path: Path, kind: str, devices: list[CdiDevice]) -> None:
        """Write nothing."""
