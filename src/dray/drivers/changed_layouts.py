"""Layouts of simulated GPUs that were changed while the driver ran, in a file that outlives it.

The file says for each GPU (by its UUID) which partitions it has and for which claim it was changed. A claim that is
prepared once more finds its layout there and changes nothing: the devices that it was given do not exist any more.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import msgspec

from dray.api.parsing import load_json
from dray.drivers.hardware import PoolModel
from dray.drivers.hardware.mig_layouts import (
    LayoutError,
    Placement,
    devices_of_layout,
    parse_layout,
    published_gpus,
)
from dray.host.files import write_atomically

log = logging.getLogger("dray.drivers")

LAYOUTS_FILE = "layouts.json"


class ChangedLayout(msgspec.Struct, frozen=True):
    """What became of one GPU."""

    partitions: tuple[str, ...]  # PROFILE@START; empty means: whole
    claim: str  # uid


class ChangedLayouts:
    """The layouts by GPU, kept in memory and, with a folder, on disk."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / LAYOUTS_FILE
        self._by_uuid: dict[str, ChangedLayout] = {}
        if self._path is None:
            return
        try:
            self._by_uuid = load_json(self._path.read_bytes(), dict[str, ChangedLayout])
        except FileNotFoundError:
            pass
        except ValueError as error:
            log.error("%s: %s; the GPUs have the layouts of their profile", self._path, error)

    def of_claim(self, uid: str) -> tuple[str, ...] | None:
        """Return the partitions that were made for a claim; None when nothing was."""
        found = (each.partitions for each in self._by_uuid.values() if each.claim == uid)
        return next(found, None)

    def record(self, uuid: str, layout: tuple[Placement, ...], claim: str) -> None:
        """Remember the layout of a GPU, on disk before this returns."""
        self._by_uuid[uuid] = ChangedLayout(tuple(map(str, layout)), claim)
        if self._path is not None:
            write_atomically(self._path, msgspec.json.encode(self._by_uuid))

    def applied(self, model: PoolModel) -> PoolModel:
        """Return the pool with the layouts that were changed; one that its hardware cannot have is left out."""
        devices = list(model.devices)
        for gpu in published_gpus(model.devices):
            changed = self._by_uuid.get(gpu.uuid)
            if changed is None or gpu.fixed_because or gpu.model is None:
                continue
            try:
                layout = parse_layout(gpu.model, changed.partitions)
            except LayoutError as error:
                log.error("GPU %s keeps the layout of its profile: %s", gpu.uuid, error)
                continue
            of_gpu = {device.name for device in gpu.devices}
            devices = [device for device in devices if device.name not in of_gpu]
            devices += devices_of_layout(gpu, layout)
        return replace(model, devices=tuple(sorted(devices, key=lambda device: device.name)))
