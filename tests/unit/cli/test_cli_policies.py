"""`--policy`: known names, and policies of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from dray.allocator import POLICIES as KNOWN
from dray.cli.arguments import POLICIES, policy_name
from dray.cli.policies import load_policy
from dray.scheduler.policies import NodePolicy

OWN = """
from dray.scheduler.policies import NodePolicy

class LeastCpu(NodePolicy):
    def score(self, pod, before, after):
        return -after.cpu

class Needy(LeastCpu):
    def __init__(self, weight):
        self.weight = weight

other = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies.py").write_text(OWN)
    (tmp_path / "broken_policies.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_policies"


def test_the_flag_knows_the_policies_of_the_scheduler() -> None:
    assert set(POLICIES) == set(KNOWN)


@pytest.mark.parametrize("name", ["", *POLICIES])
def test_known_names_stay_names(name: str) -> None:
    assert load_policy(policy_name(name)) == name


def test_a_class_of_ones_own_is_loaded_and_named(module: str) -> None:
    policy = load_policy(policy_name(f"{module}:LeastCpu"))
    assert isinstance(policy, NodePolicy)
    assert policy.name == "LeastCpu"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent_module:Policy", "cannot import absent_module.*PYTHONPATH"),
        ("broken_policies:Policy", "cannot import broken_policies: division by zero"),
        ("my_policies:Absent", "Absent is not a subclass of dray.scheduler.policies.NodePolicy"),
        ("my_policies:other", "other is not a subclass"),
        ("my_policies:Needy", "cannot be made without arguments"),
    ],
)
def test_what_cannot_be_loaded_says_why(module: str, name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_policy(policy_name(name))


@pytest.mark.parametrize("name", ["best", "a:b:c", "../x:Y", ":Y", "x:"])
def test_other_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="choose from first-fit, .*module:Class"):
        policy_name(name)
