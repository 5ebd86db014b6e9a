"""The workflows: least permissions, pinned actions, targets and files that exist."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
MAY_WRITE = {
    ("release", "index"): {"id-token"},
    ("release", "release"): {"contents"},
    ("release", "image"): {"packages"},
}


def jobs_of(path):
    return yaml.safe_load(path.read_text("utf-8"))["jobs"].items()


def commands_of(path):
    for _, job in jobs_of(path):
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_may_only_read_unless_listed(path):
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {"contents": "read"}
    for name, job in jobs_of(path):
        writes = {what for what, right in job.get("permissions", {}).items() if right != "read"}
        assert writes == MAY_WRITE.get((path.stem, name), set()), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_checkouts_keep_no_credentials(path):
    for name, job in jobs_of(path):
        assert job["timeout-minutes"] <= 120, name
        for step in job["steps"]:
            used = step.get("uses", "x@v1")
            assert re.fullmatch(r"[\w./-]+@(v\d+|release/v\d+)", used), used
            if used.startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_the_workflows_run_exists(path):
    for line in commands_of(path):
        if made := re.match(r"make ([a-z-]+)", line):
            assert made[1] in TARGETS
        for tool in re.findall(r"\btools/[\w./-]+", line):
            assert (ROOT / tool).is_file(), tool


def test_no_expression_is_pasted_into_a_shell():
    """A branch or a title that someone chose must not become a command: values go through the environment."""
    assert [line for path in WORKFLOWS for line in commands_of(path) if "${{" in line] == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.name
)
def test_issue_forms_have_what_the_forge_requires(path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert {"name", "description", "body"} <= set(form)
    ids = [each["id"] for each in form["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0


def test_hooks_of_commits_run_what_exists():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    for hook in hooks:
        for word in hook["entry"].split():
            assert not word.startswith("tools/") or (ROOT / word).is_file()
    assert "make --silent check" in {hook["entry"] for hook in hooks}
