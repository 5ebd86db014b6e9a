"""What the package exports: complete, and cheap to import."""

import subprocess
import sys

import pytest

import dray.api


def test_every_name_behind_the_door_exists():
    for name in dray.api.__all__:
        assert getattr(dray.api, name) is not None
    assert set(dray.api._HOME_OF) == set(dray.api.__all__)
    assert dir(dray.api) == sorted(dray.api.__all__)


def test_other_names_do_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dray.api.nothing


def test_importing_the_door_loads_nothing_else():
    code = "import sys, dray.api; print([name for name in sys.modules if name.startswith(('dray.api.', 'msgspec', 'yaml'))])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
