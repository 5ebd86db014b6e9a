"""Shared by all tests: makes `tests/` importable so that builders and reference data are found."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
