"""Shared by all tests: makes `tests/` importable so that builders and reference data are found."""

import os
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent))

# No test may find the system that people of this machine share.
os.environ["DRAY_SOCKET"] = ""

# How long one example takes says something about the machine, nothing about a law. The rest stays as
# hypothesis has it, which in CI is another default: there the examples are always the same.
settings.register_profile("dray", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dray")
