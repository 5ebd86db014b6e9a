"""Other schedulers that allocate devices of the same classes.

Two schedulers that decide at the same moment may give one device to two claims. `dray guard` makes that
impossible, and it cannot happen where every scheduler has device classes or nodes of its own. Where neither seems to be the
case, people are told: once for each device class, by a WARNING in the log and an event on the class.

What is compared is the device classes that pods of ours and pods of other schedulers ask for, as far as they have been seen
since the start. Nodes are not compared: who keeps nodes apart may ignore the warning, or silence it with --guarded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dray.api.core import Pod
from dray.api.resource import DeviceClass, ResourceClaim
from dray.client import EventRecorder
from dray.client import resources as kinds
from dray.scheduler import NotReady, claim_keys

log = logging.getLogger("dray.scheduler")

_MAX_CLASSES = 1024  # class names come from claims, which tenants write

ClaimOf = Callable[[str], ResourceClaim | None]  # by namespace/name
ClassOf = Callable[[str], DeviceClass | None]  # by name


class OtherSchedulers:
    """Watches which device classes are asked for by whom; see the module docstring."""

    def __init__(self, name: str, recorder: EventRecorder, claim_of: ClaimOf, class_of: ClassOf) -> None:
        self._name = name
        self._recorder = recorder
        self._claim_of = claim_of
        self._class_of = class_of
        self._ours: set[str] = set()  # names of device classes
        self._theirs: dict[str, str] = {}  # name of a device class -> a scheduler that allocates it
        self._warned: set[str] = set()  # names of device classes

    def see(self, pod: Pod) -> None:
        """Take note of a pod; tell people if it asks for a class that another scheduler allocates, too."""
        if not pod.spec.resource_claims:
            return
        is_ours = pod.spec.scheduler_name == self._name
        for name in self._classes_of(pod):
            if is_ours:
                if len(self._ours) < _MAX_CLASSES:
                    self._ours.add(name)
            elif len(self._theirs) < _MAX_CLASSES:
                self._theirs.setdefault(name, pod.spec.scheduler_name or "default-scheduler")
            if name in self._ours and name in self._theirs and name not in self._warned:
                self._warn(name)

    def _classes_of(self, pod: Pod) -> Iterable[str]:
        keys = claim_keys(pod)
        for key in () if isinstance(keys, NotReady) else keys:
            claim = self._claim_of(key)
            for request in claim.spec.devices.requests if claim is not None else ():
                if request.exactly is not None:
                    yield request.exactly.device_class_name
                for subrequest in request.first_available:
                    yield subrequest.device_class_name

    def _warn(self, name: str) -> None:
        device_class = self._class_of(name)
        if device_class is None:
            return
        self._warned.add(name)
        message = (
            f"schedulers {self._name} and {self._theirs[name]} both allocate devices of class {name}: one device may be "
            "allocated twice. Run `dray guard` and start dray scheduler with --guarded, or give each scheduler "
            "device classes or nodes of its own"
        )
        log.warning("%s", message)
        self._recorder.record(
            kinds.DEVICE_CLASSES, device_class.metadata, "Warning", "SharedDeviceClass", message
        )
