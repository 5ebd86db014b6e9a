"""The package: one version, a name that is ours, hints that install the right thing, a README for an index."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import dray

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://forge.example/team/dray"
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TEXTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "deploy/**/*", "src/**/*.py", ".github/**/*")
    for path in ROOT.glob(pattern)
    if path.is_file()
]


def metadata(monkeypatch, repository=""):
    """Return the core metadata that a build would write."""
    monkeypatch.setenv("DRAY_REPOSITORY_URL", repository)
    return ProjectMetadata(str(ROOT), PluginManager()).core


def links_of(readme):
    code = re.sub(r"^```.*?^```$|`[^`\n]*`", "", readme, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", code)


# --- the name and the version ----------------------------------------------------------


def test_the_version_is_written_once(monkeypatch):
    assert "version" in DECLARED["project"]["dynamic"]
    assert ProjectMetadata(str(ROOT), PluginManager()).version == dray.__version__


def test_the_distribution_is_not_called_like_the_other_project_on_the_index(monkeypatch):
    core = metadata(monkeypatch)
    assert core.name == "dray-dra"
    # `kubectl dray …` is `dray …`: kubectl runs programs called kubectl-*.
    assert core.scripts == {"dray": "dray.cli:main", "kubectl-dray": "dray.cli:main"}


def install_commands(text):
    """Return what `pip install` commands and hints in a text install by a name that begins with dray."""
    for line in text.splitlines():
        for _, words in re.findall(r"\b(pip3?|pipx|uv tool|uv pip) install\b([^\n;&|`)]*)", line):
            yield from re.findall(r"(?:^|[\s'\"])(dray[\w-]*)(\[[\w,]+\])?", words)


def test_install_hints_name_the_distribution_and_extras_that_exist():
    extras = set(DECLARED["project"]["optional-dependencies"])
    wrong, seen = [], 0
    for path in TEXTS:
        for name, wanted in install_commands(path.read_text("utf-8", "replace")):
            seen += 1
            if name != "dray-dra" or not set(re.findall(r"\w+", wanted)) <= extras:
                wrong.append((str(path.relative_to(ROOT)), name + wanted))
    assert wrong == []
    assert seen > 5


def test_wrong_install_hints_are_recognised():
    text = "run pip install 'dray[png]', or\npip install --no-index --find-links /wheels dray"
    assert list(install_commands(text)) == [("dray", "[png]"), ("dray", "")]


# --- what an index shows ----------------------------------------------------------------


def test_links_of_the_published_readme_lead_to_the_repository_at_this_version(monkeypatch):
    links = links_of(metadata(monkeypatch, f"{REPOSITORY}/").readme)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"{REPOSITORY}/blob/v{dray.__version__}/docs/tutorial.md" in links
    assert f"{REPOSITORY}/raw/v{dray.__version__}/docs/images/session.svg" in links


def test_a_build_that_knows_no_repository_has_no_dead_links_and_no_addresses(monkeypatch):
    core = metadata(monkeypatch)
    assert [link for link in links_of(core.readme) if not link.startswith("https://")] == []
    assert core.urls == {}
    assert "Tutorial" in core.readme  # the words stay


def test_code_in_the_readme_is_not_taken_for_links(monkeypatch):
    source = (ROOT / "README.md").read_text("utf-8")
    for block in re.findall(r"^```.*?^```$", source, re.MULTILINE | re.DOTALL):
        assert block in metadata(monkeypatch, REPOSITORY).readme


def test_addresses_come_from_the_repository_that_publishes(monkeypatch):
    urls = metadata(monkeypatch, REPOSITORY).urls
    assert {"Source", "Documentation", "Changelog", "Issues"} == set(urls)
    assert all(url.startswith(REPOSITORY) for url in urls.values())


def test_the_versions_of_python_that_are_promised_are_the_ones_that_ci_tests():
    classifiers = DECLARED["project"]["classifiers"]
    promised = [each.rpartition(" ")[2] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert promised == ["3.11", "3.12", "3.13", "3.14"]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert all(f'"{version}"' in workflow for version in promised)


# --- tools/install ----------------------------------------------------------------------


def install(tmp_path, broken):
    """Run tools/install with a Python that fails where `broken` says; returns its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in {broken}) echo "no route" >&2; exit 2;; esac\n'
    )
    python.chmod(0o755)
    command = [str(ROOT / "tools/install"), str(python), "dev"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    return done, (tmp_path / "calls").read_text().splitlines()


def test_uv_installs_where_it_can(tmp_path):
    done, calls = install(tmp_path, "never")
    assert (done.returncode, done.stderr) == (0, "")
    assert calls[-1] == "-m uv pip install --quiet --group dev -e ."


@pytest.mark.parametrize("broken", ['"-m uv "*', '*"install --quiet uv"*'], ids=["no-index", "no-uv"])
def test_pip_installs_where_uv_cannot(tmp_path, broken):
    done, calls = install(tmp_path, broken)
    assert done.returncode == 0
    assert "no route" in done.stderr
    assert calls[-1] == "-m pip install --quiet --group dev -e ."


def test_it_fails_where_both_fail(tmp_path):
    done, _ = install(tmp_path, '*"--group dev"*')
    assert done.returncode != 0
