"""The claim records, its checkpoint in kubelet's format, logs, environment, health."""

import asyncio
import json
import os
import zlib

import msgspec
import pytest
from small_api import SmallApi

from dray.api.podspec import RunContainer, RunPod
from dray.api.rpc.generated import health_v1_pb2
from dray.devices import DeviceId
from dray.node import checkpoint
from dray.node.claims import ClaimFacts, ClaimInfo, ClaimKey, ClaimRecords, ClaimRefused, HeldDevice
from dray.node.environment import PodEnvironment, expand
from dray.node.health import DeviceHealthBoard
from dray.node.logs import LogFile, LogPump, LogQuery, log_time, read_log
from dray.node.runtime import StartError

KEY = ClaimKey("default", "light")
FACTS = ClaimFacts(KEY, "uid", ["lamp.example.com"])


# --- records -----------------------------------------------------------------------


def test_a_claim_is_prepared_for_the_first_pod_and_ready_for_the_second():
    records = ClaimRecords()
    assert records.reserve("pod-1", [FACTS]) == [FACTS]
    records.record(KEY, "lamp.example.com", [HeldDevice("pool", "lamp-0")])
    records.mark_prepared(KEY)
    assert records.reserve("pod-2", [FACTS]) == []
    assert records.release("pod-1") == []
    (last,) = records.release("pod-2")
    assert last.key == KEY


def test_reserving_is_all_or_nothing():
    records = ClaimRecords()
    records.reserve("pod-1", [FACTS])
    other = ClaimFacts(ClaimKey("default", "other"), "x", [])
    with pytest.raises(ClaimRefused, match="older claim of that name"):
        records.reserve("pod-2", [other, ClaimFacts(KEY, "another-uid", [])])
    assert list(records.infos) == [KEY]
    assert records.infos[KEY].pod_uids == {"pod-1"}


def test_a_claim_that_is_being_unprepared_cannot_be_reserved():
    records = ClaimRecords()
    records.reserve("pod-1", [FACTS])
    records.release("pod-1")
    with pytest.raises(ClaimRefused, match="being unprepared"):
        records.reserve("pod-2", [FACTS])
    records.give_up_unpreparing(KEY)
    assert records.reserve("pod-2", [FACTS]) == [
        FACTS
    ]  # prepared anew, since somebody may have half undone it


def test_devices_are_chosen_by_request():
    records = ClaimRecords()
    records.reserve("pod", [FACTS])
    devices = [
        HeldDevice("p", "a", requests=("left",), cdi_device_ids=("v/c=a",)),
        HeldDevice("p", "b", requests=("right",), cdi_device_ids=("v/c=b",)),
        HeldDevice("p", "c", requests=(), cdi_device_ids=("v/c=c",)),
    ]
    records.record(KEY, "lamp.example.com", devices)
    assert records.cdi_ids([(KEY, "left")]) == ["v/c=a", "v/c=c"]
    assert records.cdi_ids([(KEY, "right"), (KEY, "left")]) == ["v/c=b", "v/c=c", "v/c=a"]
    assert records.cdi_ids([(KEY, "")]) == ["v/c=a", "v/c=b", "v/c=c"]
    assert records.cdi_ids([(ClaimKey("default", "unknown"), "")]) == []


# --- checkpoint -----------------------------------------------------------------

INFO = ClaimInfo(
    KEY,
    "uid",
    {"pod-2", "pod-1"},
    {
        "lamp.example.com": [HeldDevice("pool", "lamp-0", "share", ("req",), ("v/c=d",))],
        "other.example.com": [],
    },
)


def test_the_checkpoint_is_read_back():
    (info,) = checkpoint.decode(checkpoint.encode([INFO]))
    assert info == INFO


def test_the_checkpoint_is_spelled_as_kubelet_spells_it():
    outer = json.loads(checkpoint.encode([INFO]))
    assert set(outer) == {"Data", "Checksum"}
    assert outer["Checksum"] == zlib.crc32(outer["Data"].encode())
    inner = json.loads(outer["Data"])
    assert (inner["kind"], inner["apiVersion"]) == ("DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1")
    (entry,) = inner["ClaimInfoStateList"]
    assert entry["PodUIDs"] == {"pod-1": {}, "pod-2": {}}
    assert entry["DriverState"]["lamp.example.com"]["Devices"] == [
        {
            "PoolName": "pool",
            "DeviceName": "lamp-0",
            "ShareID": "share",
            "RequestNames": ["req"],
            "CDIDeviceIDs": ["v/c=d"],
        }
    ]
    assert json.loads(json.loads(checkpoint.encode([]))["Data"])["ClaimInfoStateList"] is None


def test_a_checkpoint_written_by_kubelet_is_read():
    data = (
        '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"c",'
        '"ClaimName":"n","Namespace":"s","PodUIDs":{"p":{}},"DriverState":{"d":{"Devices":[{"PoolName":"w","DeviceName":"x",'
        '"ShareID":null,"RequestNames":null,"CDIDeviceIDs":["v/c=i"]}]},"e":{"Devices":null}}}]}'
    )
    (info,) = checkpoint.decode(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode())
    assert info.devices_by_driver == {"d": [HeldDevice("w", "x", None, (), ("v/c=i",))], "e": []}


def sealed(data):
    """A checkpoint whose checksum is right, whatever it holds."""
    return json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}).encode()


def claims(text):
    return sealed(
        f'{{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":{text}}}'
    )


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b'{"Data":"{}","Checksum":0}', b'{"Data":"x","Checksum":2363233923}', b"[]", b"null", b"5", b"\xff\xfe",
        b"[" * 100_000, sealed("[" * 100_000), sealed("[]"), sealed("null"), b'{"Data":5,"Checksum":0}',
        b'{"Data":"{}","Checksum":"x"}', claims("5"), claims("[5]"), claims("[{}]"), claims("[null]"),
        claims('[{"ClaimUID":5,"ClaimName":"n","Namespace":"s"}]'),
        claims('[{"ClaimUID":"u","ClaimName":"n","Namespace":"s","PodUIDs":["p"]}]'),
        claims('[{"ClaimUID":"u","ClaimName":"n","Namespace":"s","DriverState":{"d":5}}]'),
        claims('[{"ClaimUID":"u","ClaimName":"n","Namespace":"s","DriverState":{"d":{"Devices":[{"CDIDeviceIDs":"x"}]}}}]'),
        claims('[{"ClaimUID":"u","ClaimName":"n","Namespace":"s","DriverState":{"d":{"Devices":' + "[" * 5000 + "]" * 5000 + "}}}]"),
    ],
)  # fmt: skip
async def test_a_damaged_checkpoint_is_set_aside(tmp_path, text):
    path = tmp_path / "dra_manager_state"
    path.write_bytes(text)
    file = checkpoint.CheckpointFile(path, list)
    with pytest.raises(checkpoint.CorruptCheckpointError, match="moved to"):
        file.load()
    assert file.load() == []


async def test_a_checkpoint_beyond_the_bound_is_set_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_BYTES", 100)
    path = tmp_path / "dra_manager_state"
    path.write_bytes(claims("[]") + b" " * 100)
    with pytest.raises(checkpoint.CorruptCheckpointError, match="moved to"):
        checkpoint.CheckpointFile(path, list).load()


async def test_many_commits_share_writes(tmp_path, monkeypatch):
    writes = []
    monkeypatch.setattr(checkpoint, "write_atomically", lambda *args: writes.append(args))
    file = checkpoint.CheckpointFile(tmp_path / "x", list)
    await asyncio.gather(*(file.commit() for _ in range(100)))
    assert len(writes) <= 2


# --- logs -----------------------------------------------------------------------


async def collect(path, **query):
    return b"".join([piece async for piece in read_log(path, LogQuery(**query))])


async def test_lines_get_their_time_and_come_back_without(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "0.log"
    log = LogFile(path)
    pump = LogPump(tmp_path / "pipe", "stdout", log)
    with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
        pipe.write(b"one\ntwo\nunfini")
        await asyncio.sleep(0.01)
        pipe.write(b"shed")
    pump.finish()
    log.close()
    lines = path.read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "stdout F one",
        "stdout F two",
        "stdout F unfinished",
    ]
    assert await collect(path) == b"one\ntwo\nunfinished\n"
    assert await collect(path, tail_lines=1) == b"unfinished\n"
    assert await collect(path, tail_lines=0) == b""
    assert await collect(path, limit_bytes=5) == b"one\nt"
    assert (await collect(path, timestamps=True)).splitlines()[0].endswith(b"Z one")
    assert await collect(path, since=4_000_000_000.0) == b""


def test_lines_that_are_too_long_are_cut_and_joined_again(tmp_path):
    path = tmp_path / "0.log"
    log = LogFile(path)
    long = b"x" * 40000

    async def story():
        os.mkfifo(tmp_path / "pipe")
        pump = LogPump(tmp_path / "pipe", "stderr", log)
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
            pipe.write(long + b"\n")
        pump.finish()
        return await collect(path)

    assert asyncio.run(story()) == long + b"\n"
    assert [line.split(" ")[2] for line in path.read_text().splitlines()] == ["P", "P", "F"]


async def test_a_log_at_its_limit_is_rotated_and_read_as_one(tmp_path):
    log = LogFile(tmp_path / "0.log", max_bytes=100)
    for number in range(3):
        log.write("stdout", [(b"line %d" % number, True)])
    log.close()
    assert (tmp_path / "0.log.1").exists()
    assert await collect(tmp_path / "0.log") == b"line 0\nline 1\nline 2\n"


async def test_following_ends_when_the_container_has(tmp_path):
    log = LogFile(tmp_path / "0.log")
    over = asyncio.Event()
    log.write("stdout", [(b"first", True)])
    found = []

    async def follow():
        async for piece in read_log(tmp_path / "0.log", LogQuery(follow=True), over):
            found.append(piece)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    log.write("stdout", [(b"second", True)])
    over.set()
    await asyncio.wait_for(task, 60)
    assert b"".join(found) == b"first\nsecond\n"
    log.close()


def test_log_times_have_nanoseconds():
    assert log_time(1.25) == "1970-01-01T00:00:01.250000000Z"


# --- environment ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$", "$"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text, result):
    assert expand(text, {"A": "1"}) == result


POD = msgspec.convert(
    {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "labels": {"app": "x"}},
        "spec": {
            "nodeName": "worker",
            "volumes": [{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "key"}}],
        },
    },
    RunPod,
)


def box(**fields):
    return msgspec.convert({"name": "main", **fields}, RunContainer)


async def test_variables_come_from_everywhere(tmp_path):
    api = SmallApi()
    api.put("/api/v1/namespaces/default/configmaps/settings", {"data": {"level": "high"}})
    api.put("/api/v1/namespaces/default/secrets/key", {"data": {"token": "aGVsbG8="}})
    environment = PodEnvironment(api.client(), tmp_path, "10.0.0.1")
    container = box(
        resources={"limits": {"memory": "1Gi", "cpu": "1500m"}},
        envFrom=[
            {"prefix": "CFG_", "configMapRef": {"name": "settings"}},
            {"secretRef": {"name": "none", "optional": True}},
        ],
        env=[
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(CFG_level)"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}},
            {
                "name": "MEM",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    )
    values = await environment.environment(POD, container)
    assert values == {
        "HOSTNAME": "p", "CFG_level": "high", "A": "1", "B": "1-high", "NODE": "worker", "APP": "x",
        "TOKEN": "hello", "MEM": "1024", "CPU": "2",
    }  # fmt: skip
    assert environment.command_line(box(command=["echo", "$(B)"]), values) == ["echo", "1-high"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, "does not exist"),
        ({"secretKeyRef": {"name": "key", "key": "k"}}, "no key"),
        ({"fieldRef": {"fieldPath": "spec.secretPlans"}}, "secretPlans"),
    ],
)
async def test_a_source_that_is_missing_is_explained(tmp_path, source, message):
    api = SmallApi()
    api.put("/api/v1/namespaces/default/secrets/key", {"data": {}})
    environment = PodEnvironment(api.client(), tmp_path, "10.0.0.1")
    with pytest.raises(StartError, match=message):
        await environment.environment(POD, box(env=[{"name": "A", "valueFrom": source}]))


async def test_volumes_are_made_and_forgotten(tmp_path):
    api = SmallApi()
    api.put("/api/v1/namespaces/default/secrets/key", {"data": {"token": "aGVsbG8="}})
    environment = PodEnvironment(api.client(), tmp_path, "10.0.0.1")
    container = box(
        volumeMounts=[
            {"name": "e", "mountPath": "/empty"},
            {"name": "s", "mountPath": "/secret", "readOnly": True},
        ]
    )
    empty, secret = await environment.mounts(POD, container)
    assert (secret.host_path / "token").read_text() == "hello"
    assert (empty.container_path, secret.is_read_only) == ("/empty", True)
    (empty.host_path / "file").touch()
    again, _ = await environment.mounts(POD, container)
    assert (again.host_path / "file").exists()  # a restarted container finds what it wrote
    environment.forget("u")
    assert not empty.host_path.exists()


# --- health ---------------------------------------------------------------------


def message(*devices):
    answer = health_v1_pb2.NodeWatchResourcesResponse()
    for name, health, seconds in devices:
        entry = answer.devices.add()
        entry.device.pool_name, entry.device.device_name = "pool", name
        entry.health, entry.health_check_timeout_seconds = health, seconds
    return answer


def test_health_grows_stale_and_changes_are_told_once():
    now = [0.0]
    told = []
    board = DeviceHealthBoard(told.append, clock=lambda: now[0])
    lamp, fan = DeviceId("d", "pool", "lamp"), DeviceId("d", "pool", "fan")
    assert board.of(lamp) is None
    board.take_report("d", message(("lamp", 1, 0), ("fan", 1, 100)))
    board.take_report("d", message(("lamp", 1, 0), ("fan", 1, 100)))
    assert told == [{lamp, fan}]
    now[0] = 31.0
    assert board.of(lamp).health == "Unknown"
    board.expire()
    board.expire()
    assert told[1:] == [{lamp}]
    board.take_report("d", message(("lamp", 2, 0)))
    assert told[2:] == [{lamp, fan}]  # the fan is no longer listed
    assert board.of(fan).health == "Unknown"
    assert board.of(lamp).health == "Unhealthy"
