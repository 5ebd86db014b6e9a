"""Logs of the parts: bounded, and their writers never notice."""

import errno
import os

from dray.local import log_files
from dray.local.log_files import rotate
from dray.local.system import keep_port


def test_a_log_that_grows_for_ever_takes_bounded_space_and_keeps_the_newest(tmp_path):
    path = tmp_path / "part.log"
    with path.open("ab", buffering=0) as writer:
        for number in range(1_000):
            writer.write(b"line %04d\n" % number)
            rotate(path, largest=500, copies=3)
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["part.log", "part.log.1", "part.log.2", "part.log.3"]
    assert sum(each.stat().st_size for each in files) <= 4 * 520
    order = [*reversed(files[1:]), files[0]]
    lines = b"".join(each.read_bytes() for each in order).splitlines()
    assert lines[-1] == b"line 0999"
    assert lines == sorted(lines), "no hole and no repetition"


def test_a_small_log_and_one_that_is_not_there_are_left_alone(tmp_path):
    path = tmp_path / "part.log"
    assert not rotate(path, largest=10)
    path.write_bytes(b"0123456789")
    assert not rotate(path, largest=10)
    assert [each.name for each in tmp_path.iterdir()] == ["part.log"]


def test_on_a_full_disk_a_log_is_emptied_without_a_copy(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log_files.shutil, "copyfile", full)
    path = tmp_path / "part.log"
    path.write_bytes(b"x" * 100)
    assert rotate(path, largest=10)
    assert path.stat().st_size == 0
    assert "No space left" in caplog.text


def test_only_a_server_remembers_its_port():
    command = ["dray", "scheduler", "--name", "x"]
    keep_port(command, "dray scheduler ready at https://127.0.0.1:40123")
    assert command == ["dray", "scheduler", "--name", "x"]
    command = ["dray", "server", "--secure-port", "0", "--kubeconfig", "k"]
    keep_port(command, "dray server ready at https://[::1]:40123 (kubeconfig k)\n")
    assert command[3] == "40123"
