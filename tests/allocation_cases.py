"""Our own allocation cases (tests/cases/allocation): one file per rule, in a short form of `dray plan`'s format.

`pools: {name: [device, …]}` makes one local slice per pool on node-1; claims are written without metadata.
"""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent / "cases" / "allocation"


def allocation_cases() -> list[tuple[str, dict[str, Any]]]:
    """Return (name, document) of all cases."""
    return [
        (f"{path.stem}: {document['name']}", document)
        for path in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


def expanded(document: dict[str, Any]) -> dict[str, Any]:
    """Write the short forms out."""
    data = {key: value for key, value in document.items() if key not in ("pools", "expect", "rule")}
    data.setdefault("node", "node-1")
    data.setdefault("classes", [{"metadata": {"name": "any"}}])
    slices = list(data.get("slices", []))
    for pool, devices in document.get("pools", {}).items():
        driver, _, name = pool.rpartition("/")
        slices.append(
            {
                "metadata": {"name": f"slice-{name}"},
                "spec": {
                    "driver": driver or "d.example.com",
                    "nodeName": "node-1",
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": d} if isinstance(d, str) else d for d in devices],
                },
            }
        )
    data["slices"] = slices
    data["claims"] = [
        {"metadata": {"name": f"claim-{i}"}, "spec": {"devices": claim}}
        for i, claim in enumerate(document["claims"])
    ]
    return data
