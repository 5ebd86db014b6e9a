"""tools/changelog.py: fragments become the newest section; version, changelog and tag agree."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("changelog", ROOT / "tools" / "changelog.py")
changelog = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(changelog)

TEXT = """# Changelog

Words.

## 0.2.0 (unreleased)

### Added
- One thing.

### Fixed
- A bug.

## 0.1.0 (2026-01-31)

First version.
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "src" / "dray").mkdir(parents=True)
    (tmp_path / "src" / "dray" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("# How\n")
    (tmp_path / "CHANGELOG.md").write_text(TEXT)
    return tmp_path


def fragment(project, name, text="It works."):
    (project / "changelog.d" / name).write_text(text)


def test_this_project_is_in_order():
    changelog.verify(ROOT)


def test_fragments_join_the_entries_of_their_kind(project):
    fragment(project, "b-thing.added.md", "Another\nthing.\n")
    fragment(project, "a-bug.fixed.md", "`dray up` " + "really " * 30 + "works.")
    fragment(project, "old.removed.md", "An old flag.")
    assert changelog.main(["collect"], project) == 0
    text = (project / "CHANGELOG.md").read_text()
    assert "- One thing.\n- Another thing.\n\n### Fixed\n- A bug.\n- `dray up` really" in text
    assert "### Removed\n- An old flag.\n\n## 0.1.0 (2026-01-31)" in text
    assert max(len(line) for line in text.splitlines()) <= changelog.WIDTH
    assert [path.name for path in (project / "changelog.d").iterdir()] == ["README.md"]


def test_a_release_dates_the_section_and_the_next_begins_a_new_one(project):
    fragment(project, "thing.changed.md")
    assert changelog.main(["release", "0.2.0", "2026-02-01"], project) == 0
    changelog.verify(project, "v0.2.0")
    assert changelog.notes(project).startswith("### Added\n- One thing.")
    assert "First version" not in changelog.notes(project)
    assert changelog.main(["start", "0.3.0"], project) == 0
    assert changelog.version_of(project) == "0.3.0"
    changelog.verify(project)
    fragment(project, "new.added.md", "New.")
    changelog.collect(project)
    assert (
        "## 0.3.0 (unreleased)\n\n### Added\n- New.\n\n## 0.2.0 (2026-02-01)"
        in (project / "CHANGELOG.md").read_text()
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("thing.md", "x"),
        ("Thing.added.md", "x"),
        ("thing.new.md", "x"),
        ("thing.added.md", " \n"),
        ("a.fixed.md", "- x"),
    ],
)
def test_malformed_fragments_are_refused_by_name(project, name, text, capsys):
    fragment(project, name, text)
    assert changelog.main(["verify"], project) == 1
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.1.9", "0.3.0"])
def test_a_version_that_the_changelog_does_not_head_is_refused(project, version, capsys):
    (project / "src/dray/__init__.py").write_text(f'__version__ = "{version}"\n')
    assert changelog.main(["verify"], project) == 1
    assert version in capsys.readouterr().err


def test_a_tag_needs_the_version_a_date_and_no_fragment_left(project):
    assert changelog.main(["verify", "--tag", "v0.2.0"], project) == 1  # not dated
    changelog.release(project, "0.2.0", "2026-02-01")
    assert changelog.main(["verify", "--tag", "v0.2.1"], project) == 1
    assert changelog.main(["verify", "--tag", "v0.2.0"], project) == 0
    fragment(project, "late.fixed.md")
    assert changelog.main(["verify", "--tag", "v0.2.0"], project) == 1


def test_fragments_do_not_change_a_section_that_is_released(project):
    changelog.release(project, "0.2.0", "2026-02-01")
    fragment(project, "late.fixed.md")
    assert changelog.main(["collect"], project) == 1
    assert (project / "changelog.d" / "late.fixed.md").exists()
