"""`dray scheduler --added-affinity`: a good file is read, a bad one is refused in one line with a hint."""

import pytest

from dray.cli.added_affinity import load_added_affinity
from dray.cli.output import CommandError

GOOD = """
requiredDuringSchedulingIgnoredDuringExecution:
  nodeSelectorTerms:
  - matchExpressions: [{key: team, operator: In, values: [ml]}]
"""


def test_a_file_with_node_affinity_is_read(tmp_path):
    file = tmp_path / "affinity.yaml"
    file.write_text(GOOD)
    found = load_added_affinity(str(file))
    required = found.required_during_scheduling_ignored_during_execution
    assert required.node_selector_terms[0].match_expressions[0].values == ["ml"]
    assert load_added_affinity(None) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "says nothing"),
        ("- a list", "object"),
        ("{", "expected node content"),
        ("wrong: 1", 'unknown field "wrong"'),
        (GOOD.replace("In", "Near"), "Near"),
        ("requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}", "at least one"),
        ("preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {}}]", "1-100"),
    ],
)
def test_a_bad_file_is_refused_with_a_hint(tmp_path, text, problem):
    file = tmp_path / "affinity.yaml"
    file.write_text(text)
    with pytest.raises(CommandError, match=problem) as caught:
        load_added_affinity(str(file))
    assert "nodeAffinity" in caught.value.hint


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CommandError, match="none.yaml"):
        load_added_affinity(str(tmp_path / "none.yaml"))
