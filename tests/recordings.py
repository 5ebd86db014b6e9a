"""Find the recordings of upstream's answers. They are part of the project: absence is a failure, never a skip."""

import json
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).resolve().parent / "recordings"


def recorded(path: str) -> list[dict[str, Any]]:
    """Return the rows of a recording."""
    file = RECORDINGS / path
    assert file.exists(), f"{file} is missing: `make record` makes it"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert rows, f"{file} is empty"
    return rows
