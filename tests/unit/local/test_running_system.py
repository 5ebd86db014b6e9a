"""Who may be stopped: only the very process that we started, named in a file that only we can have written."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dray.cli import up
from dray.cli.main import main
from dray.cli.output import CommandError
from dray.host.private_files import NotPrivate, check_private, make_private, read_own, write_private_text
from dray.local import running_system, system
from dray.local.running_system import (
    STATE_FILE,
    ask_to_stop,
    began,
    end_leftovers,
    is_running,
    leftovers,
    process_entry,
    read_state,
    remember,
    remembered,
    why_not_read,
    write_state,
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user whose files all lie in one folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in ("run", "state", "tmp", "data"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def state_of(pid, **more):
    return {**process_entry(pid), "data": "x", "kubeconfig": "x", "parts": {}, **more}


def become_another_user(monkeypatch):
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)


def test_the_process_that_was_written_down_is_stopped(home, sleeper):
    write_state(home / "data", state_of(sleeper.pid))
    state = read_state(home / "data")
    assert is_running(state)
    assert ask_to_stop(state)
    assert sleeper.wait(timeout=30) == -15
    assert not is_running(state)


@pytest.mark.parametrize(
    "change",
    [{"began": ""}, {"began": "boot/1"}, {"began": None}, {"pid": 1}, {"pid": 0}, {"pid": -1}, {"pid": "x"}],
)
def test_a_process_that_is_not_the_one_written_down_is_left_alone(sleeper, change):
    state = {**state_of(sleeper.pid), **change}
    assert not is_running(state)
    assert not ask_to_stop(state)
    time.sleep(0.05)
    assert sleeper.poll() is None


def test_the_parts_of_a_killed_system_are_ended_and_those_of_a_running_one_are_not(sleeper):
    parts = {"server": process_entry(sleeper.pid), "nodes": {"pid": 0, "began": ""}}
    assert leftovers(state_of(os.getpid(), parts=parts)) == {}
    assert end_leftovers(state_of(os.getpid(), parts=parts)) == []
    assert sleeper.poll() is None
    dead = {**state_of(os.getpid()), "began": "boot/1", "parts": parts}
    assert list(leftovers(dead)) == ["server"]
    assert end_leftovers(dead) == ["server"]
    assert sleeper.wait(timeout=30) == -15
    assert end_leftovers(dead) == []


def test_a_part_that_ignores_the_signal_is_killed():
    ignores = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE)
    process.stdout.readline()
    dead = {**state_of(os.getpid()), "began": "boot/1", "parts": {"server": process_entry(process.pid)}}
    assert end_leftovers(dead, grace=0.2) == ["server"]
    assert process.wait(timeout=30) == -9
    process.stdout.close()


def test_a_process_of_somebody_else_is_left_alone(sleeper, monkeypatch):
    state = state_of(sleeper.pid)
    become_another_user(monkeypatch)
    assert not ask_to_stop(state)
    assert sleeper.poll() is None


def test_an_ended_process_does_not_run_even_if_nobody_has_looked(sleeper):
    state = state_of(sleeper.pid)
    sleeper.kill()
    while began(sleeper.pid):
        time.sleep(0.01)
    assert not is_running(state)


def test_a_state_that_somebody_else_wrote_is_not_read(home, sleeper, monkeypatch):
    write_state(home / "data", state_of(sleeper.pid))
    become_another_user(monkeypatch)
    assert read_state(home / "data") is None
    assert "belongs to user" in why_not_read(home / "data")


def test_a_state_that_others_can_write_or_that_is_a_link_is_not_read(home, sleeper):
    data = home / "data"
    write_state(data, state_of(sleeper.pid))
    (data / STATE_FILE).chmod(0o666)
    assert read_state(data) is None
    (data / STATE_FILE).rename(home / "elsewhere")
    (home / "elsewhere").chmod(0o600)
    (data / STATE_FILE).symlink_to(home / "elsewhere")
    assert read_state(data) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parts": 5}', "[" * 100_000, "\udcff"])
def test_a_state_that_makes_no_sense_is_not_read(home, text):
    (home / "data" / STATE_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    (home / "data" / STATE_FILE).chmod(0o600)
    assert read_state(home / "data") is None


def test_the_latest_system_is_remembered_in_a_folder_of_our_own(home):
    remember(home / "data")
    assert remembered() == home / "data"
    folder = home / "run" / "dray"
    assert folder.stat().st_mode & 0o777 == 0o700
    running_system.forget(home / "data")
    assert remembered() is None


def test_a_note_in_a_folder_of_somebody_else_is_not_believed(home, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    remember(home / "data")
    assert remembered() == home / "data"
    become_another_user(monkeypatch)
    theirs = home / "tmp" / f"dray-{os.geteuid()}"
    (home / "tmp" / f"dray-{os.geteuid() - 1}").rename(theirs)
    assert remembered() is None


def test_a_taken_name_in_the_temporary_folder_is_gone_around(home, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    (home / "tmp" / f"dray-{os.geteuid()}").symlink_to(home / "data")
    remember(home / "data")
    assert remembered() == home / "data"
    assert not (home / "data" / "current").exists()


def test_a_note_that_was_left_in_the_temporary_folder_as_before_has_no_effect(home, sleeper, capsys):
    (home / "run" / f"dray-{os.geteuid()}.current").write_text(str(home / "data"))
    (home / "data" / STATE_FILE).write_text(json.dumps({"pid": sleeper.pid, "parts": {}}))
    for words in ([], ["--data", str(home / "data")]):
        assert main(["down", *words]) == 1
    assert "no system runs" in capsys.readouterr().err
    assert sleeper.poll() is None


def test_a_private_folder_is_closed_to_others(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(NotPrivate):
        check_private(folder)
    make_private(folder)
    check_private(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(NotPrivate):
        make_private(tmp_path / "link")
    write_private_text(folder / "note", "x")
    assert (folder / "note").stat().st_mode & 0o777 == 0o600
    assert read_own(folder / "note") == "x"


def test_links_to_folders_lie_where_nobody_else_can_put_another(home):
    system._folder_of_links.cache_clear()
    try:
        folder = home / ("deep" * 10) / "nodes"
        (home / "tmp" / f"dray-{os.geteuid()}").symlink_to(home / "data")
        link = system.short_path(folder)
        assert link.parent.parent == home / "tmp"
        check_private(link.parent)
        assert system.short_path(folder) == link
    finally:
        system._folder_of_links.cache_clear()


@pytest.mark.parametrize("data", ["/proc/foo", "/etc/passwd", "/etc/passwd/x", "/dev/null"])
def test_a_data_folder_that_cannot_be_one_is_said_in_a_line(data, capsys):
    assert main(["up", "--data", data, "--no-host", "--secure-port", "0"]) == 2
    told = capsys.readouterr().err
    assert f"cannot write to {data}" in told
    assert "--data" in told
    with pytest.raises(CommandError):
        up._usable(Path(data))
