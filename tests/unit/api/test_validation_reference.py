"""Compares the validators with a running kube-apiserver on randomly broken objects.

Every kind starts from a good object; a few of its fields are replaced by odd values, the result is sent as a
dry-run POST, and the causes of the answer must be those that the validators find. The seed is fixed, so that a
difference can be looked at again. CEL expressions are left out: compiling belongs to another room.
"""

import copy
import http.client
import json
import random
import ssl
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from test_validation_kinds import GOOD
from validation_cases import (
    CLAIM,
    CLASS,
    POOL,
    RULE,
    SLICE,
    TEMPLATE,
    claim,
    counter_slice,
    device_class,
    pod,
    pool_request,
    resource_slice,
    taint_rule,
    template,
)

from dray.api.codec import decode_body, encode
from dray.api.conversion import convert, convert_event
from dray.api.defaults import apply_defaults
from dray.api.features import Features
from dray.api.kinds import kind_of
from dray.api.schema import schema_of
from dray.api.validation import ValidationContext, check_admin_access, validate_create

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "e2e"))
import peers

pytestmark = [pytest.mark.kubernetes, pytest.mark.heavy]

ALPHA = (
    "DRAListTypeAttributes",
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAOptionalNodeOperations",
    "DRANodeAllocatableResources",
    "DRAResourcePoolStatus",
    "DRAPartitionableDevicesType",
    "GenericWorkload",
    "DRAWorkloadResourceClaims",
)
FEATURES = Features.default().switched(on=ALPHA)
NAMESPACE = "default"
MUTATIONS = 150

TEXTS = [
    "",
    "a",
    "A",
    "a_b",
    "a.b",
    "-a",
    "a/b",
    "a/b/c",
    "a.test/x",
    "A.test/x",
    "l" * 33,
    "l" * 63,
    "l" * 64,
]
TEXTS += [
    "l" * 254,
    "ü",
    "a b",
    "1",
    "gpu",
    "req",
    "All",
    "Exists",
    "None",
    "1.2.3",
    "kubernetes.io/x",
    "cpu",
    "*",
]
AMOUNTS = ["-1", "0", "1", "500m", "10Gi", "9E", "20E"]
NUMBERS = [-1, 0, 1, 2, 3, 17, 1001, 2**31 - 1]
COUNTS = [3, 5, 9, 11, 17, 33, 49, 65]

# The reference gives a name to a limit range that has none, which is not the business of validation.
LEFT_OUT = {"LimitRange"}
BASES = {kind: base for kind, base in GOOD.items() if kind not in LEFT_OUT}
BASES |= {CLAIM: claim(), TEMPLATE: template(), CLASS: device_class(), SLICE: resource_slice()}
BASES |= {RULE: taint_rule(), POOL: pool_request(), "Pod": pod()}
# The reference makes selector and labels of a job itself.
BASES["Job.batch"] = copy.deepcopy(BASES["Job.batch"])
del BASES["Job.batch"]["spec"]["selector"]
CASES = [(kind, None, base) for kind, base in sorted(BASES.items())]
CASES += [(SLICE, None, counter_slice()), (CLAIM, "v1beta1", claim()), (SLICE, "v1beta1", resource_slice())]


@pytest.fixture(scope="module")
def ask():
    """Return a function that posts to the reference and returns code and body."""
    gates = ",".join(f"{gate}=true" for gate in ALPHA)
    with peers.kubernetes(gates=gates) as peer:
        port = int(peer.kubeconfig.read_text().split("https://127.0.0.1:")[1].split('"')[0])
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=ssl._create_unverified_context())

        def post(path, body):
            headers = {"Authorization": "Bearer admintoken", "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

        yield post


def places(value, way=()):
    if way:
        yield way
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in children:
        yield from places(inner, (*way, key))


def odd(value, chance):
    if isinstance(value, bool):
        return chance.choice([True, False, None])
    if isinstance(value, int):
        return chance.choice([*NUMBERS, None])
    if isinstance(value, str):
        return chance.choice([*TEXTS, *AMOUNTS, None])
    if isinstance(value, list) and value:
        many = [numbered(value[0], number) for number in range(chance.choice(COUNTS))]
        return chance.choice([[], None, [*value, copy.deepcopy(value[0])], value[:-1], many])
    if isinstance(value, dict) and value:
        lost = chance.choice(sorted(value))
        less = {key: inner for key, inner in value.items() if key != lost}
        return chance.choice([{}, None, less, {**value, chance.choice(TEXTS): copy.deepcopy(value[lost])}])
    return None


def numbered(item, number):
    if isinstance(item, str):
        return f"n{number}"
    keys = ("name", "counterSet", "uid", "type")
    return {**item, **{key: f"n{number}" for key in keys if key in item}} if isinstance(item, dict) else item


def broken(base, chance):
    result = copy.deepcopy(base)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        # A job's name goes into labels that the reference generates.
        choices = [way for way in places(result) if "completionMode" not in str(base) or way[0] != "metadata"]
        *way, last = chance.choice(choices)
        place = result
        for key in way:
            place = place[key]
        place[last] = odd(place[last], chance)
    return result


def found(group, version, kind, namespaced, body):
    """Return what our side says, or None where the body does not decode."""
    try:
        obj, _ = decode_body(schema_of(group, version, kind), encode(body))
    except ValueError:
        return None
    apply_defaults(group, version, kind, obj, datetime(2026, 1, 1, tzinfo=UTC))
    obj = convert_event(obj, "") if group == "events.k8s.io" else convert(group, kind, obj, version, "v1")
    sent = body.get("spec") or {}
    if kind == "ResourceSlice":
        obj["spec"].update({name: [] for name in ("devices", "sharedCounters") if sent.get(name) == []})
        restore_empty_values(obj["spec"].get("devices") or [], sent.get("devices") or [])
    if kind == "ResourcePoolStatusRequest" and sent.get("limit") is not None:
        obj["spec"]["limit"] = sent["limit"]
    metadata = obj["metadata"]
    if namespaced:
        metadata["namespace"] = metadata.get("namespace") or NAMESPACE
    if kind == "Namespace":
        metadata["labels"] = {
            **(metadata.get("labels") or {}),
            "kubernetes.io/metadata.name": metadata.get("name"),
        }
    context = ValidationContext(features=FEATURES, version=version)
    group_kind = f"{kind}.{group}" if group else kind
    errors = validate_create(group_kind, obj, context)
    if kind in ("ResourceClaim", "ResourceClaimTemplate"):
        errors += check_admin_access({"kind": kind, **obj}, {})
    return about((error.kind.value, error.field) for error in errors)


def restore_empty_values(devices, sent):
    """Put back empty lists of attributes, which canonical form drops although the reference judges them."""
    for device, original in zip(devices, sent, strict=True):
        attributes = (
            (original or {}).get("attributes")
            or ((original or {}).get("basic") or {}).get("attributes")
            or {}
        )
        for name, value in attributes.items():
            if isinstance(value, dict) and [] in value.values():
                inner = device.setdefault("attributes", {}).setdefault(name, {})
                inner.update({key: [] for key, entry in value.items() if entry == []})


def about(causes):
    return Counter(cause for cause in causes if not cause[1].endswith("expression"))


@pytest.mark.parametrize(
    ("kind", "version", "base"), CASES, ids=[f"{kind}-{version or 'v1'}" for kind, version, _ in CASES]
)
def test_broken_objects_are_judged_as_the_reference_judges_them(ask, kind, version, base):
    name, _, group = kind.partition(".")
    row = kind_of(group, name)
    version = version or row.versions[0]
    base = copy.deepcopy(base)
    base["metadata"].pop("namespace", None)
    if group == "events.k8s.io":
        base = convert_event({**base, "metadata": base["metadata"]}, group)
    if version == "v1beta1":
        base = convert(group, name, base, "v1", version)
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    where = f"{root}/namespaces/{NAMESPACE}" if row.namespaced else root
    chance = random.Random(f"{kind} {version}")
    compared, differences = 0, []
    for number in range(MUTATIONS):
        body = json.loads(json.dumps(broken(base, chance) if number else base))
        code, answer = ask(
            f"{where}/{row.plural}?dryRun=All", {**body, "apiVersion": root.split("/", 2)[2], "kind": name}
        )
        causes = (answer.get("details") or {}).get("causes") or []
        if code != 201 and not (code == 422 and causes):
            continue  # not decodable, or refused by admission
        ours = found(group, version, name, row.namespaced, body)
        if ours is None:
            continue
        wanted = about((cause["reason"], cause.get("field", "")) for cause in causes)
        compared += 1
        if wanted != ours:
            differences.append(
                f"missing {wanted - ours}, superfluous {ours - wanted}: {json.dumps(body)[:600]}"
            )
    assert compared > MUTATIONS // 3
    assert not differences, "\n".join(differences)
