"""Validate devices on a cluster: plan the probes, run them, judge each device. Used by `fleet check` and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dray.client import Client
from dray.workbench.fleet.probing import ProbeOptions, run_probes
from dray.workbench.fleet.validation import (
    DeviceReport,
    Expected,
    Result,
    judge_probe,
    judge_published,
    plan_probes,
)
from dray.workbench.inventory import DeviceRow, Inventory


async def validate(
    client: Client,
    inventory: Inventory,
    rows: Sequence[DeviceRow],
    expected: Expected,
    options: ProbeOptions,
    report: Callable[[str], None],
) -> list[DeviceReport]:
    """Return what is known of each device after its probe; the namespace of the options must exist."""
    probes, reasons = plan_probes(inventory.snapshot, inventory.pools, rows)
    done = 0

    def count(_probe: object) -> None:
        nonlocal done
        done += 1
        report(f"{done} of {len(probes)} probes have ended")

    report(f"running {len(probes)} probes")
    outcomes = await run_probes(client, probes, options, count)
    found = {
        f"{probe.driver}/{probe.pool}/{device}": judge_probe(device, outcome)
        for probe, outcome in zip(probes, outcomes, strict=True)
        for device in probe.devices
    }
    pools = {(pool.driver, pool.pool): pool for pool in inventory.pools}
    reports = []
    for row in rows:
        key = str(row.key)
        judged = found.get(key) or [Result("probe", "skipped", reasons.get(key, ""))]
        published = judge_published(row, pools[row.driver, row.pool], expected)
        reports.append(DeviceReport(row.node, row.driver, row.pool, row.device.name, [*published, *judged]))
    return reports
