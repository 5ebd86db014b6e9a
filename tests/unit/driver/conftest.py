"""Sockets have short paths: tests here get a directory under /tmp with a short name."""

import shutil
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path():
    folder = Path(tempfile.mkdtemp(prefix="dray-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
