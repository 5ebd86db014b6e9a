"""`import dray`: the documented names are there, and importing costs nothing."""

import subprocess
import sys

import pytest

import dray


@pytest.mark.parametrize("name", dray.__all__)
def test_every_name_of_the_door_opens(name):
    assert getattr(dray, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Wrold'"):
        dray.Wrold  # noqa: B018


def test_importing_the_door_loads_no_room():
    script = "import sys, dray; print([name for name in sys.modules if name.startswith('dray.')])"
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
