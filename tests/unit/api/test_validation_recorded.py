"""Replays the recorded answers of the reference through the validators, without a server.

Every POST, PUT and merge patch of an object in the corpus is defaulted, converted to the stored
shape and judged; reasons and fields must equal those of the recorded causes. Requests that the reference refused
for other reasons (strict decoding, conflicts, authorisation) are left out, and so are causes that come from
compiling CEL: that is the business of another room.
"""

import json
import re
from collections import Counter
from datetime import UTC, datetime

from shared_data import shared

from dray.api.codec import decode_body, encode
from dray.api.conversion import convert, convert_event
from dray.api.defaults import apply_defaults
from dray.api.features import Features
from dray.api.schema import schema_of
from dray.api.validation import (
    ValidationContext,
    allows_unconditional_update,
    check_admin_access,
    check_admin_access_of_status,
    kind_key,
    missing_resource_version,
    validate_create,
    validate_status_update,
    validate_update,
)

FEATURES = Features.everything().switched(off=["DRAFractionalCapacityRange", "DRAWorkloadResourceClaims"])
KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "namespaces": "Namespace",
    "events": "Event",
    "leases": "Lease",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "resourceslices": "ResourceSlice",
    "deviceclasses": "DeviceClass",
    "devicetaintrules": "DeviceTaintRule",
    "resourcepoolstatusrequests": "ResourcePoolStatusRequest",
}
PATH = re.compile(
    r"/api(s/(?P<group>[^/]+))?/(?P<version>v\w+)(/namespaces/(?P<namespace>[^/]+))?/(?P<resource>\w+)"
    r"(/(?P<name>[^/?]+))?(?P<status>/status)?(\?.*)?$"
)
MERGE = "application/merge-patch+json"


def stories():
    corpus = [
        json.loads(line) for line in shared("vectors/api/corpus/visible.jsonl").read_text().splitlines()
    ]
    recorded = {}
    for line in shared("vectors/api/recorded/visible.jsonl").read_text().splitlines():
        entry = json.loads(line)
        recorded[entry["story"]] = entry["answers"]
    return [(story, recorded[story["story"]]) for story in corpus]


# --- the part of a server that stands between the wire and the validators ----------------------------------------


def stored_shape(kind, found, body):
    """Decode, default and convert a body, as a server does; None if it is not even decodable."""
    group, version = found["group"] or "", found["version"]
    schema = schema_of(group, version, kind)
    try:
        obj, _ = decode_body(schema, encode(body))
    except ValueError:
        return None
    apply_defaults(group, version, kind, obj, datetime(2026, 1, 1, tzinfo=UTC))
    if group == "events.k8s.io":
        return convert_event(obj, "")
    return restored(kind, convert(group, kind, obj, version, "v1"), body)


def restored(kind, obj, body):
    """Put back what canonical form drops although the reference still judges it: [] and an explicit 0."""
    spec = body.get("spec") or {}
    if kind == "ResourceSlice":
        obj["spec"].update({name: [] for name in ("devices", "sharedCounters") if spec.get(name) == []})
    if kind == "ResourcePoolStatusRequest" and spec.get("limit") is not None:
        obj["spec"]["limit"] = spec["limit"]
    return obj


def merged(old, patch):
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Replay:
    """Judges the steps of one story against a small memory of what the reference stored."""

    def __init__(self, story):
        self.story, self.objects = story, {}
        self.labels = story.get("ns_labels", {})

    def fill(self, value):
        text = json.dumps(value).replace("@id@", "zqmask-abcdef").replace("@ns@", "ns-zqmask")
        return json.loads(re.sub(r"@[a-z][a-z0-9_]*@", "7", text))

    def judge(self, step, answer):
        """Return the errors, or None where the step is not about validation."""
        found = PATH.match(self.fill(step["path"]))
        if not found or found["resource"] not in KINDS or "json" not in step or "=" in step["path"]:
            return None  # query parameters are judged by the server
        kind = KINDS[found["resource"]]
        context = ValidationContext(features=FEATURES, version=found["version"])
        group_kind = kind_key(found["group"] or "", kind)
        key = (kind, found["name"])
        body = self.fill(step["json"])
        if not isinstance(body, dict):
            return None
        if step["verb"] == "POST":
            return self.create(group_kind, kind, body, found, context)
        old = self.objects.get(key)
        if old is None:
            return None
        if step["verb"] == "PATCH":
            if (step.get("headers") or {}).get("Content-Type") != MERGE or found["version"] == "v1beta1":
                return None
            body = merged(old, body)
        elif step["verb"] != "PUT" or kind == "Pod":
            return None  # a PUT of a pod needs all its defaults
        return self.update(group_kind, kind, body, old, found, context)

    def create(self, group_kind, kind, body, found, context):
        obj = stored_shape(kind, found, body)
        if obj is None:
            return None
        metadata = obj.setdefault("metadata", {})
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = f"{metadata['generateName'][:58]}abcde"
        metadata["namespace"] = metadata.get("namespace") or found["namespace"]
        errors = []
        if kind in ("ResourceClaim", "ResourceClaimTemplate"):
            errors += check_admin_access({"kind": kind, **obj}, self.labels)
        if kind == "Namespace":
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata.get("name")
        return errors + validate_create(group_kind, obj, context)

    def update(self, group_kind, kind, body, old, found, context):
        new = stored_shape(kind, found, body)
        if new is None:
            return None
        metadata, old_metadata = dict(new.get("metadata") or {}), old["metadata"]
        if metadata.get("resourceVersion") in (None, "0") and not allows_unconditional_update(
            group_kind, found["version"]
        ):
            return [missing_resource_version()]
        for name in (
            "namespace",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ):
            metadata[name] = old_metadata.get(name)
        metadata["uid"] = metadata.get("uid") or old_metadata["uid"]
        metadata["resourceVersion"] = "7"
        metadata.pop("managedFields", None)
        new["metadata"] = metadata
        if not found["status"]:
            new["status"] = old.get("status")
            return validate_update(group_kind, new, old, context)
        new["spec"] = old.get("spec")
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            metadata[name] = old_metadata.get(name)
        status, old_status = new.get("status") or {}, old.get("status") or {}
        if kind == "ResourceClaim" and not status.get("allocation") and old_status.get("allocation"):
            status.pop("devices", None)
        errors = []
        if kind == "ResourceClaim":
            errors += check_admin_access_of_status(new, old, self.labels)
        return errors + validate_status_update(group_kind, new, old, context)

    def remember(self, step, answer):
        if step["path"] == "/api/v1/namespaces/@ns@" and step["verb"] == "PATCH" and answer["code"] == 200:
            self.labels = merged(self.labels, step["json"]["metadata"]["labels"])
        found = PATH.match(self.fill(step["path"]))
        body = answer.get("body")
        if (
            not found
            or found["resource"] not in KINDS
            or answer["code"] not in (200, 201)
            or "dryRun" in step["path"]
        ):
            return
        if isinstance(body, dict) and body.get("kind") == KINDS[found["resource"]]:
            # Masks such as <now> are no times; any time will do.
            text = re.sub(r'"<(now|time)[^"]*>"', '"2026-01-01T00:00:00Z"', json.dumps(body))
            text = text.replace("zqmask-" + body_id(body), "zqmask-abcdef")
            obj = stored_shape(body["kind"], found, json.loads(text))
            self.objects[(body["kind"], found["name"] or obj["metadata"]["name"])] = obj


def body_id(body):
    found = re.search(r"zqmask-([0-9a-f]{6})", json.dumps(body))
    return found[1] if found else "none"


def is_judged(answer):
    """Tell whether validation decided: accepted, or refused with causes of its own."""
    if answer["code"] in (200, 201):
        return True
    decoder_refused = any(cause.get("field") == "patch" for cause in causes_of(answer))
    return answer["code"] == 422 and bool(causes_of(answer)) and not decoder_refused


def causes_of(answer):
    body = answer.get("body")
    details = body.get("details") if isinstance(body, dict) else None
    return (details or {}).get("causes") or []


def about(causes):
    relevant = [(reason, field) for reason, field in causes if not field.endswith("expression")]
    return Counter(relevant)


def replay_all():
    agreed, differing = 0, []
    for story, answers in stories():
        replay = Replay(story)
        for number, (step, answer) in enumerate(zip(story["steps"], answers, strict=True)):
            if is_judged(answer):
                errors = replay.judge(step, answer)
                if errors is not None:
                    wanted = about((cause["reason"], cause["field"]) for cause in causes_of(answer))
                    found = about((error.kind.value, error.field) for error in errors)
                    if wanted == found:
                        agreed += 1
                    else:
                        label = f"{story['story']}[{number}] {step.get('label', '')}"
                        differing.append(f"{label}: missing {wanted - found}, superfluous {found - wanted}")
            replay.remember(step, answer)
    return agreed, differing


def test_every_recorded_answer_about_objects_is_reproduced():
    agreed, differing = replay_all()
    assert agreed > 1100
    assert not differing, "\n".join(differing)


def test_a_changed_answer_would_be_noticed():
    recorded = [("FieldValueInvalid", "spec.x")]
    assert about(recorded) != about([])
    assert about(recorded) != about([("FieldValueRequired", "spec.x")])
