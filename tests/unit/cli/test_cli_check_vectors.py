"""`dray check` against what kube-apiserver said: it refuses what the server refused, and nothing else.

The recorded stories create objects of all kinds, good and bad. Checking is stricter than a
server in two ways (unknown fields are errors, not dropped; a file must say its apiVersion, which
a server takes from the path of the request) and knows less in another (the labels of a namespace
that is not among the files).
"""

import json

import pytest
from shared_data import shared

from dray.api.features import Features
from dray.workbench.lint import lint

# The gates of the recording.
GATES = Features.everything().switched(off=["DRAFractionalCapacityRange", "DRAWorkloadResourceClaims"])
STRICTER = {
    "unknown-field",
    "unknown-version",
    "duplicate-field",
    "old-shape",
    "new-shape",
    "not-an-object",
    "no-api-version",
}


def creations():
    """Yield (story, object, status code, message) of every creation that was accepted or found invalid."""
    stories = shared("vectors/api/corpus/visible.jsonl").read_text("utf-8").splitlines()
    recorded = shared("vectors/api/recorded/visible.jsonl").read_text("utf-8").splitlines()
    answers = {entry["story"]: entry["answers"] for entry in map(json.loads, recorded)}
    for story in map(json.loads, stories):
        for step, answer in zip(story["steps"], answers[story["story"]], strict=False):
            body = step.get("json")
            if step.get("verb") != "POST" or not isinstance(body, dict) or not body.get("kind"):
                continue
            if body["kind"].endswith("Review"):
                continue  # a question, not an object that anybody keeps in a file
            if answer.get("code") in (201, 422):
                said = answer.get("body")
                message = said.get("message") if isinstance(said, dict) else ""
                yield story["story"], body, answer["code"], message or ""


def errors_of(body):
    text = json.dumps(body).replace("@ns@", "some-namespace").replace("@id@", "zqmask-123456")
    report = lint({"x": text.encode()}, features=GATES, namespace="some-namespace")
    return [finding for finding in report.findings if finding.severity == "error"]


@pytest.fixture(scope="module")
def judged():
    return [(story, code, message, errors_of(body)) for story, body, code, message in creations()]


def test_there_is_enough_to_compare(judged):
    assert sum(code == 201 for _, code, _, _ in judged) > 200
    assert sum(code == 422 for _, code, _, _ in judged) > 500


def test_nothing_is_refused_that_the_server_accepts(judged):
    wrong = [
        (story, [finding.text() for finding in found])
        for story, code, _, found in judged
        if code == 201 and any(finding.code not in STRICTER for finding in found)
    ]
    assert wrong == []


def test_everything_is_refused_that_the_server_refuses(judged):
    missed = [
        (story, message[:200])
        for story, code, message, found in judged
        if code == 422
        and not found
        and "admin access to devices requires" not in message
        and not message.startswith("CreateOptions")  # the request was wrong, not the object
    ]
    assert missed == []
