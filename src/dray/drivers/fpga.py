"""`fpga.dray.dev`: FPGA cards from sysfs, programmed at prepare with the bitstream a claim names.

Cards are the kernel's FPGA regions (`/sys/class/fpga_region`), each with its
manager. A claim's config for this driver may name a bitstream:

    opaque:
      driver: fpga.dray.dev
      parameters:
        apiVersion: fpga.dray.dev/v1
        kind: FpgaConfig
        bitstream: matmul-v2.bin      # a file in the firmware folder

Programming writes the file's name to the manager's `firmware` attribute and waits
until its state is `operating`; any other end is an error with the kernel's own word
for it. The bitstream stays on the card after unprepare: the next prepare either
wants the same or programs anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.api.resource import Device
from dray.driver import (
    AllocatedDevice,
    ClaimRequest,
    ContainerEdits,
    DeviceNode,
    DriverError,
    Pool,
    PreparedClaim,
    PreparedDevice,
)
from dray.drivers import driver_names
from dray.drivers.hardware.attributes import number, text
from dray.drivers.sysfs import PciPlace, pci_place, read_text

NAME = driver_names.FPGA
API_VERSION = f"{NAME}/v1"
KIND = "FpgaConfig"
PROGRAM_SECONDS = 60.0
# PCI vendor -> a name people know.
VENDORS = {"0x10ee": "Xilinx", "0x8086": "Intel", "0x1172": "Altera"}


@dataclass(frozen=True, slots=True)
class Card:
    """One FPGA region with its manager."""

    index: int
    region: str
    manager: Path  # sysfs folder of the manager
    product: str
    vendor: str
    device_id: str
    state: str
    compat_id: str
    place: PciPlace


def find_cards(sysfs: Path) -> list[Card]:
    """Return the cards in order of their region number."""
    cards = []
    regions = sysfs.glob("class/fpga_region/region[0-9]*")
    for region in sorted(regions, key=lambda path: int(path.name[6:])):
        manager = _manager_of(sysfs, region)
        if manager is None:
            continue
        parent = region / "device"
        vendor = read_text(parent / "vendor") or ""
        cards.append(
            Card(
                index=int(region.name[6:]),
                region=region.name,
                manager=manager,
                product=read_text(manager / "name") or "unknown",
                vendor=VENDORS.get(vendor, vendor or "unknown"),
                device_id=read_text(parent / "device") or "",
                state=read_text(manager / "state") or "unknown",
                compat_id=read_text(region / "compat_id") or "",
                place=pci_place(parent),
            )
        )
    return cards


def _manager_of(sysfs: Path, region: Path) -> Path | None:
    inside = sorted((region / "device").glob("fpga_manager/fpga[0-9]*"))
    if inside:
        return inside[0]
    same_number = sysfs / f"class/fpga_manager/fpga{region.name[6:]}"
    return same_number if same_number.exists() else None


def parse_config(parameters: Any) -> str | None:
    """Return the bitstream that a config names; raises DriverError for anything we do not understand."""
    if not isinstance(parameters, dict):
        raise DriverError("the config must be a JSON object")
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if (version, kind) != (API_VERSION, KIND):
        raise DriverError(f"config is {version}/{kind}; this driver understands {API_VERSION} {KIND}")
    unknown = set(parameters) - {"apiVersion", "kind", "bitstream"}
    if unknown:
        raise DriverError(f"unknown field {sorted(unknown)[0]!r} in {KIND}; known: bitstream")
    bitstream = parameters.get("bitstream")
    if bitstream is not None and (
        not isinstance(bitstream, str) or not bitstream or "/" in bitstream or bitstream.startswith(".")
    ):
        raise DriverError(f"bitstream {bitstream!r} must be the plain name of a file in the firmware folder")
    return bitstream


class FpgaDriver:
    """Hands out FPGA cards and programs them."""

    name = NAME

    def __init__(
        self,
        sysfs: Path = Path("/sys"),
        dev: Path = Path("/dev"),
        firmware: Path = Path("/lib/firmware"),
        *,
        timeout: float = PROGRAM_SECONDS,
    ) -> None:
        self._sysfs = sysfs
        self._dev = dev
        self._firmware = firmware
        self._timeout = timeout

    def discover(self) -> list[Pool]:
        """Return one device per card."""
        devices = []
        for card in find_cards(self._sysfs):
            attributes = {
                "index": number(card.index),
                "productName": text(card.product[:64]),
                "vendor": text(card.vendor),
                "state": text(card.state),
                **card.place.attributes(),
            }
            if card.device_id:
                attributes["deviceID"] = text(card.device_id)
            if card.compat_id:
                attributes["shell"] = text(card.compat_id[:64])
            devices.append(Device(name=f"fpga-{card.index}", attributes=attributes))
        return [Pool(devices)]

    def prepare(self, claim: ClaimRequest) -> list[PreparedDevice]:
        """Program what the claim asks for, and give the card's device nodes."""
        cards = {f"fpga-{card.index}": card for card in find_cards(self._sysfs)}
        # Read every config before touching any card: a claim is prepared as a whole or not at all.
        wanted = [(allocated, self._bitstream_for(allocated)) for allocated in claim.devices]
        prepared = []
        for allocated, bitstream in wanted:
            card = cards.get(allocated.device)
            if card is None:
                raise DriverError(f"FPGA {allocated.device} is not there any more")
            if bitstream is not None:
                self._program(card, bitstream)
            prepared.append(
                PreparedDevice.of(allocated, self._edits(card, bitstream), private={"bitstream": bitstream})
            )
        return prepared

    def _bitstream_for(self, allocated: AllocatedDevice) -> str | None:
        bitstream = None
        for config in allocated.configs:  # later ones override earlier ones
            bitstream = parse_config(config.parameters) or bitstream
        if bitstream is not None and not (self._firmware / bitstream).is_file():
            raise DriverError(f"there is no bitstream {bitstream!r} in {self._firmware}")
        return bitstream

    def _program(self, card: Card, bitstream: str) -> None:
        try:
            (card.manager / "firmware").write_text(bitstream)
        except OSError as error:
            raise DriverError(f"programming {bitstream} on fpga-{card.index} failed: {error}") from error
        deadline = time.monotonic() + self._timeout
        state = read_text(card.manager / "state") or "unknown"
        while state != "operating":
            if "error" in state or time.monotonic() > deadline:
                raise DriverError(f"programming {bitstream} on fpga-{card.index} ended in state {state!r}")
            time.sleep(0.05)
            state = read_text(card.manager / "state") or "unknown"

    def _edits(self, card: Card, bitstream: str | None) -> ContainerEdits:
        nodes = []
        for pattern in (
            f"dfl-port.{card.index}",
            f"fpga{card.index}",
            f"xdma{card.index}_*",
            f"xclmgmt{card.index}",
        ):
            for node in sorted(self._dev.glob(pattern)):
                nodes.append(DeviceNode(path=f"/dev/{node.name}", host_path=str(node)))
        env = [f"FPGA_DEVICE_{card.index}={card.place.address or card.region}"]
        if bitstream is not None:
            env.append(f"FPGA_DEVICE_{card.index}_BITSTREAM={bitstream}")
        return ContainerEdits(env=env, device_nodes=nodes)

    def unprepare(self, claim: PreparedClaim) -> None:
        """Leave the card as it is; the next user programs what it needs."""
