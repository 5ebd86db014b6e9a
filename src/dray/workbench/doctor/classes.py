"""Do the DeviceClasses of a cluster select what its drivers publish?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dray.api.wording import join_names
from dray.cel import CompileError, Program, compile_selector
from dray.sim.snapshot import Snapshot
from dray.workbench.doctor.findings import Finding
from dray.workbench.lint.fitting import Devices


def check_classes(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the classes; without published devices only whether they compile."""
    devices = Devices(snapshot)
    if devices.names and not snapshot.classes and "deviceclasses" not in snapshot.forbidden:
        yield Finding(
            "no-classes",
            "cluster",
            f"{len(devices.names)} devices are published (such as {devices.names[0]}), but there is no DeviceClass",
            "create one: the installation of a driver brings its classes, see docs/drivers.md",
        )
        return
    selected: set[str] = set()  # drivers some class selects
    for device_class in snapshot.classes:
        name = device_class.metadata.name
        programs: list[Program] = []
        for selector in device_class.spec.selectors:
            if selector.cel is None:
                continue
            try:
                programs.append(
                    compile_selector(selector.cel.expression, features=snapshot.features, stored=True)
                )
            except CompileError as error:
                yield Finding(
                    "class-does-not-compile",
                    f"class {name}",
                    f"{selector.cel.expression[:200]}: {' '.join(str(error).split())[:300]}",
                    "correct the expression: claims of this class cannot be allocated",
                )
                break
        else:
            matching = devices.matching(programs)
            selected.update(devices.inputs[index].driver for index in matching)
            if devices.names and not matching:
                yield Finding(
                    "class-selects-nothing",
                    f"class {name}",
                    f"none of the {len(devices.names)} published devices satisfies its selectors",
                    "is its driver installed, and is the name of the driver in the selector right?",
                )
    for driver in sorted({each.driver for each in devices.inputs} - selected):
        yield Finding(
            "driver-without-class",
            f"driver {driver}",
            "it publishes devices, but no DeviceClass selects them",
            f'create a DeviceClass with the selector device.driver == "{driver}"',
        )
    yield from _extended_resources(snapshot)


def _extended_resources(snapshot: Snapshot) -> Iterator[Finding]:
    classes_by_resource: dict[str, list[str]] = defaultdict(list)
    for device_class in snapshot.classes:
        if device_class.spec.extended_resource_name:
            classes_by_resource[device_class.spec.extended_resource_name].append(device_class.metadata.name)
    for resource, classes in classes_by_resource.items():
        if len(classes) > 1:
            yield Finding(
                "extended-resource-twice",
                f"classes {join_names(sorted(classes))}",
                f"all of them have extendedResourceName {resource}",
                "keep it on one: the scheduler takes the class that was created last",
            )
