"""Commands that run in the test's process find no system that the user has started on this machine."""

import pytest

from dray.host import private_files


@pytest.fixture(autouse=True)
def _no_system_of_this_user(tmp_path, monkeypatch):
    monkeypatch.setattr(private_files, "temporary_folder", lambda: tmp_path / "temporary")
