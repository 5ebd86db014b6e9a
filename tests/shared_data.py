"""Find the reference data that lies beside the checkout, or skip loudly where it is absent."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def shared(path: str) -> Path:
    """Return the path of a reference file; skip the calling test (or module) when there is none."""
    found = SHARED / path
    if not found.exists():
        pytest.skip(
            f"reference data {path} is not beside this checkout (expected {found})", allow_module_level=True
        )
    return found
