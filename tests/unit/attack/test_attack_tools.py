"""The adversary itself: what it sends is valid where it says so, repeats by seed, and is judged rightly."""

import random

import pytest
from server_cluster import running_cluster

from attack.bombs import bombs
from attack.findings import Findings, cause_of, expected_failure, tracebacks_of
from attack.fuzzing import Judge
from attack.monitoring import held
from attack.mutation import Mutator
from attack.protobuf import encode_object
from attack.replaying import _smaller
from attack.requests import Generator, difference
from attack.species import setup_requests, species_of
from attack.templates import templates
from attack.verdict import verdicts
from attack.webhooks import BODIES
from attack.wire import Answer, Request, request_of, take_answer
from dray.api.kinds import KINDS
from dray.server.requests.protobuf_bodies import decode_object


def test_there_is_a_template_of_every_kind_in_every_version():
    covered = {(each.kind.group, each.kind.kind, each.version) for each in templates()}
    served = {(kind.group, kind.kind, version) for kind in KINDS for version in kind.versions}
    assert served <= covered


async def test_every_template_is_accepted_by_the_server():
    async with running_cluster() as client:
        for request in setup_requests(species_of(templates()), "w0"):
            answer = await client.call(request.method, request.target, request.body)
            assert answer.code in (201, 409), (request.target, answer.body)
            if answer.code == 409:
                assert "already exists" in answer.json["message"]


async def test_most_generated_requests_come_past_the_parser():
    async with running_cluster() as client:
        species = species_of(templates())
        for request in setup_requests(species, "w0"):
            await client.call(request.method, request.target, request.body)
        generator = Generator("1", species, "w0")
        past = total = 0
        for _ in range(400):
            request = generator.next()
            answer = await client.call(
                request.method,
                request.target,
                request.body or None,
                content=request.headers.get("Content-Type", ""),
            )
            total += 1
            past += request.deep and answer.code in (200, 201, 202, 403, 404, 409, 422)
        assert past > total / 3


def test_what_judges_requests_of_others_is_only_tried():
    generator = Generator("1", species_of(templates()), "w0")
    tried = [
        each for each in (generator.next() for _ in range(4_000)) if "admissionregistration" in each.target
    ]
    assert {each.method for each in tried} >= {"GET", "POST", "PUT", "PATCH", "DELETE"}
    assert all(each.method == "GET" or "dryRun=All" in each.target for each in tried)


@pytest.mark.parametrize("name", BODIES)
def test_what_hostile_webhooks_answer_is_bytes(name):
    assert isinstance(BODIES[name]("uid"), bytes)


def test_one_seed_makes_one_sequence_of_requests():
    def first(seed):
        generator = Generator(seed, species_of(templates()), "w0")
        return [generator.next().encode() for _ in range(300)]

    assert first("a") == first("a")
    assert first("a") != first("b")


def test_a_mutation_changes_one_place_and_leaves_the_base_alone():
    chance = random.Random(3)
    for species in species_of(templates()):
        mutator = Mutator(chance)
        base = species.bodies[0]
        before = repr(base)
        for _ in range(20):
            changed = mutator.mutate(species.schema, base)
            assert set(changed) - set(base) == set() or len(set(changed) - set(base)) == 1
        assert repr(base) == before


def test_bombs_have_names_of_their_own_():
    names = [name for name, _ in bombs()]
    assert len(names) == len(set(names)) > 400


def test_objects_written_as_protobuf_are_read_back():
    for species in species_of(templates()):
        if species.schema is not None and species.kind.kind != "CustomResourceDefinition":
            value = {"apiVersion": "v", "kind": "k", **species.bodies[0]}
            found = decode_object(species.schema, encode_object(species.schema, value))
            assert found.get("metadata", {}).get("labels") == value.get("metadata", {}).get("labels")
            if species.kind.group == "admissionregistration.k8s.io":  # with messages inlined in inlined ones
                assert {name: found[name] for name in ("webhooks", "spec") if name in value} == {
                    name: value[name] for name in ("webhooks", "spec") if name in value
                }


def test_a_merge_patch_is_the_difference():
    assert difference({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": 1, "d": 3}, "e": 0}) == {
        "a": None,
        "b": {"d": 3},
        "e": 0,
    }
    assert difference({"a": 1}, {"a": True}) == {"a": True}


def test_answers_are_taken_off_whole_or_not_at_all():
    buffer = bytearray(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    )
    assert take_answer(buffer).body == b"ok"
    assert take_answer(buffer) is None
    buffer += b"0\r\n\r\n"
    assert take_answer(buffer).body == b"abc"
    assert not buffer


def test_a_recorded_request_is_the_same_request():
    for body in (b"{}", b"\xff\x00"):
        request = Request("PATCH", "/x?y=z", {"Content-Type": "a"}, body, "t")
        assert request_of(request.record()).encode() == request.encode()


def test_a_failure_that_kubernetes_does_not_know_is_a_finding():
    judge = Judge("1")
    judge.see(Request("GET", "/x", shape="get"), Answer(500, b"", b"oops 17"))
    judge.see(Request("GET", "/x", shape="get"), Answer(500, b"", b"oops 18"))
    judge.see(Request("GET", "/x", shape="get"), Answer(0))
    judge.see(Request("GET", "/x", shape="get"), Answer(200))
    assert [(each["sort"], each["count"]) for each in judge.findings.records()] == [
        ("status", 2),
        ("silence", 1),
    ]


@pytest.mark.parametrize(("status", "message", "known"), [
    (500, "failed to create typed patch object: .spec: x", True),
    (500, "Internal error occurred: the request could not be handled; the server's log says why", False),
    (503, "failed to create typed patch object", False),
])  # fmt: skip
def test_expected_failures_are_told_from_others(status, message, known):
    assert (expected_failure(status, message) is not None) is known


def test_tracebacks_are_told_apart_by_error_and_place():
    log = (
        "ERROR dray.server: GET /a failed\nTraceback (most recent call last):\n"
        '  File "/x/src/dray/server/a.py", line 3, in one\n    boom\nValueError: bad 17\nINFO next\n'
        "ERROR x\nTraceback (most recent call last):\n  File \"/x/src/dray/server/b.py\", line 9, in two\n    x\nKeyError: 'k'\n"
    )
    assert [cause for cause, _ in tracebacks_of(log)] == [
        "ValueError: bad _ at dray/server/a.py:one",
        "KeyError: _ at dray/server/b.py:two",
    ]


def test_findings_of_workers_are_added_up():
    findings, other = Findings(), Findings()
    for number in range(5):
        other.add("status", "x", {"n": number})
    findings.merge(other.records())
    findings.merge(other.records())
    assert [(each["count"], len(each["examples"])) for each in findings.records()] == [(10, 3)]


def test_causes_leave_out_names_and_numbers():
    request = Request("GET", "/x", shape="get")
    assert cause_of(request, Answer(500, b"", b'a "b" 17')) == cause_of(
        request, Answer(500, b"", b'a "c" 18')
    )


def test_shrinking_tries_every_part():
    assert {"a": [1]} in _smaller({"a": [1, 2]})
    assert {} in _smaller({"a": 1})


REPORT = {
    "requests": 1_000, "findings": [], "heartbeat": {"worst": 90.0, "worst_raw": 400.0, "place": "fuzz", "limit": 250.0},
    "figures": {"fuzz figures": {"requests": 1_200, "memory growth MB": 3.0, "valid share": 0.9}},
}  # fmt: skip


def failing(**changes):
    return [each.name for each in verdicts({**REPORT, **changes}) if not each.holds]


def with_fuzzing(**figures):
    return {"fuzz figures": {**REPORT["figures"]["fuzz figures"], **figures}}


def test_a_run_within_all_limits_passes():
    assert failing() == []
    assert len(verdicts(REPORT)) == 9


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"findings": [{"sort": "death", "count": 1}]}, ["process deaths"]),
        ({"findings": [{"sort": "traceback", "count": 1}]}, ["tracebacks"]),
        ({"findings": [{"sort": "status", "count": 2}]}, ["5xx that kube-apiserver would not give"]),
        ({"findings": [{"sort": "silence", "count": 2}]}, ["requests without an answer"]),
        ({"findings": [{"sort": "hang", "count": 2}]}, ["other findings"]),
        ({"heartbeat": {**REPORT["heartbeat"], "worst": 251.0}}, ["longest heartbeat"]),
        ({"figures": with_fuzzing(requests=999)}, ["requests sent"]),
        ({"figures": with_fuzzing(**{"memory growth MB": 64.1})}, ["memory growth"]),
        ({"figures": with_fuzzing(**{"valid share": 0.33})}, ["valid up to the last field"]),
    ],
)
def test_each_limit_of_a_run_fails_on_its_own(changes, names):
    assert failing(**changes) == names


def test_waiting_for_a_processor_is_not_the_servers_fault_but_computing_is():
    assert held(took=0.5, ran=0.01, waited=0.45) == pytest.approx(0.05)
    assert held(took=0.5, ran=0.4, waited=0.9) == pytest.approx(0.4)
    assert held(took=0.5, ran=0.0, waited=0.0) == pytest.approx(0.5)  # blocked, for example by the disk
    assert held(took=0.5, ran=0.9, waited=0.0) == pytest.approx(0.5)  # two threads at once
