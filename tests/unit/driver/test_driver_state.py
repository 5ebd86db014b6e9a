"""The record of prepared claims survives everything but tells of damage."""

import asyncio
import os

import pytest

from dray.driver.state import (
    CorruptStateError,
    RecordedClaim,
    RecordedDevice,
    StateError,
    StateFile,
)
from dray.host.files import write_atomically

CLAIM = RecordedClaim(
    "default", "light", "uid-1", [RecordedDevice("lamp", "worker", "lamp-0", private={"a": 1})], True
)


def test_what_was_recorded_is_read_back(tmp_path):
    state = StateFile(tmp_path / "state.json", "boot")
    state.load()
    state.record(CLAIM)
    again = StateFile(tmp_path / "state.json", "boot")
    again.load()
    assert again.claims_by_uid == {"uid-1": CLAIM}
    again.forget("uid-1")
    state.load()
    assert state.claims_by_uid == {}


def test_after_a_reboot_completed_claims_count_as_started(tmp_path):
    state = StateFile(tmp_path / "state.json", "boot-1")
    state.record(CLAIM)
    after = StateFile(tmp_path / "state.json", "boot-2")
    after.load()
    assert after.claims_by_uid["uid-1"].is_complete is False


@pytest.mark.parametrize("damage", [b"", b"{", b'{"book":{},"checksum":1}', b"\x00" * 100])
def test_a_damaged_file_is_set_aside_with_a_clear_error(tmp_path, damage):
    path = tmp_path / "state.json"
    path.write_bytes(damage)
    state = StateFile(path)
    with pytest.raises(CorruptStateError, match="moved to"):
        state.load()
    assert path.with_name("state.json.corrupt").read_bytes() == damage
    state.load()
    assert state.claims_by_uid == {}


def test_every_flipped_byte_of_the_book_is_noticed(tmp_path):
    path = tmp_path / "state.json"
    StateFile(path).record(CLAIM)
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x01]) + good[position + 1 :])
        with pytest.raises(CorruptStateError):
            StateFile(path).load()


def test_a_failed_write_changes_neither_disk_nor_memory(tmp_path, monkeypatch):
    state = StateFile(tmp_path / "state.json")
    state.record(CLAIM)
    before = state.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(StateError, match="No space left"):
        state.forget("uid-1")
    assert state.claims_by_uid == {"uid-1": CLAIM}
    assert state.path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_an_atomic_write_replaces_the_whole_content(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"long content")
    write_atomically(path, b"short", durable=False)
    assert path.read_bytes() == b"short"


async def test_waiting_for_the_disk_is_shared(tmp_path, monkeypatch):
    syncs = []
    monkeypatch.setattr("dray.driver.state._sync_file", syncs.append)
    state = StateFile(tmp_path / "state.json")
    await state.sync()
    assert syncs == []  # nothing was written
    state.record(CLAIM)
    await asyncio.gather(*(state.sync() for _ in range(50)))
    assert len(syncs) == 1
    state.forget("uid-1")
    await state.sync()
    assert len(syncs) == 2


async def test_a_disk_that_fails_is_an_error_and_tried_again(tmp_path, monkeypatch):
    state = StateFile(tmp_path / "state.json")
    state.record(CLAIM)
    real = os.fsync

    def broken(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(StateError, match="Input/output error"):
        await state.sync()
    monkeypatch.setattr("os.fsync", real)
    await state.sync()
