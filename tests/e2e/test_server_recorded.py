"""Our own request sequences on `dray server`, compared with the recorded answers of kube-apiserver."""

import json

import pytest
from api_sequences import GATES, SEQUENCES, play, sequences
from recordings import recorded
from server_process import serving

FLAGS = (
    "--in-memory",
    "--disable-admission-plugins",
    "ServiceAccount",
    "--feature-gates",
    ",".join(f"{gate}=true" for gate in GATES),
)


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("recorded"), *FLAGS) as server:
        yield server.kubeconfig


# Answers whose code, reason and causes are kube-apiserver's but whose text is not, by place in the sequence.
OTHER_WORDS = {
    "claims": {
        38: "no warning about fields of a body that is refused for its version",
        39: "a Go source file is named",
    },
    "slices": {20: "null and an empty list", 31: "the object is printed with Go's field names"},
    "patches": {
        17: "which parser refused the text",
        19: "the whole object is printed",
    },
    "applying": {9: "an object without kind", 10: "a path of a field that is not declared"},
    "options": {
        16: "a token that is not ours",
        30: "protobuf is not read for this kind",
        31: "the list of media types that dray writes",
    },
    "resizing": {24: "a diff of Go structs follows the text"},
    "pods": {
        3: "the object is printed with Go's field names",
        4: "the object is printed with Go's field names",
        13: "a diff of Go structs follows the text",
    },
}


def without_words(answer):
    """Return an answer without the texts of its errors."""
    body = answer["body"]
    if not isinstance(body, dict) or body.get("kind") != "Status":
        return answer
    details = dict(body.get("details") or {})
    details["causes"] = [{**cause, "message": ""} for cause in details.get("causes") or ()]
    return {**answer, "body": {**body, "message": "", "details": details}, "warnings": None}


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_answers_are_those_of_kube_apiserver(kubeconfig, name):
    steps = dict(sequences())[name]
    expected = recorded(f"api/{name}.jsonl")
    assert [row["do"] for row in expected] == [step["do"] for step in steps], "run `make record`"
    others = OTHER_WORDS.get(name, {})
    different = []
    for place, (row, got) in enumerate(zip(expected, play(kubeconfig, steps), strict=True)):
        if place in others:
            assert row != got, f"step {place} has upstream's words by now: take it from the list"
            row, got = without_words(row), without_words(got)
        if row != got:
            sent = json.dumps(steps[place].get("body"))[:300]
            different.append(
                f"{place}: {row['do']}\n  sent:     {sent}\n  recorded: {json.dumps(row)}\n  answered: {json.dumps(got)}"
            )
    assert not different, "\n".join([f"{len(different)} of {len(steps)} differ", *different[:5]])
