"""docs/scheduler-features.md is true: no feature is left out, every case exists and runs where it says."""

import ast
import re
from pathlib import Path

import pytest
from shared_data import shared

from dray.client.resources import POD_GROUPS, TAINT_RULES, versions_of
from dray.workbench.doctor.cluster import OLDEST_MINOR_WITH_V1

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scheduler-features.md"
PEERS_BUILD = ROOT / "tools" / "peers" / "build"
BOTH, KUBERNETES = frozenset({"dray", "kubernetes"}), frozenset({"kubernetes"})
SERVERS = {  # fixture -> where a test that takes it runs
    **dict.fromkeys(("peer", "controlled", "gated", "untended"), BOTH),
    **dict.fromkeys(("kubernetes_peer", "deployed"), KUBERNETES),
}
CASE = re.compile(r"`(test_\w+)::(test_\w+)`")


def tables():
    """Return the tables of the page, as lists of rows of cells."""
    found, rows = [], []
    for line in [*PAGE.read_text("utf-8").splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def cases_by_name():
    """Return (module, test) -> names of its arguments."""
    found = {}
    for path in (ROOT / "tests").glob("**/test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[path.stem, node.name] = {each.arg for each in node.args.args}
    return found


FEATURES, VOLUMES, FAULTS = tables()
ROWS = [*FEATURES, *VOLUMES, *FAULTS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_the_cases_of_a_row_exist_and_run_where_it_says(row):
    known, cases = cases_by_name(), CASE.findall(row[-2])
    assert cases, "a row without a case proves nothing"
    for case in cases:
        assert case in known, f"there is no {case}"
        servers = set().union(*(SERVERS.get(name, set()) for name in known[case]))
        said = {"both": BOTH, "–": set(), "dray": set(), "kubernetes": KUBERNETES}[row[-1]]
        assert servers == said, f"{case} runs on {servers}"


def test_features_without_scheduling_say_why():
    for name, scheduling, _cases, servers in FEATURES:
        assert (servers == "–") == scheduling.startswith("none: "), name


def test_no_feature_is_left_out():
    text = shared("spec/dra-1.37.md").read_text("utf-8")
    section = text.partition("\n## 9.")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    wanted = [row[0].strip() for row in rows[2:]]
    assert len(wanted) > 20
    assert [row[0] for row in FEATURES] == wanted


def test_the_table_of_kubernetes_versions_has_what_the_code_reads():
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    rows = re.findall(r"^\| (1\.\d\d(?:, 1\.\d\d)*) \| (v\w+)", text, re.MULTILINE)
    assert [version for _, version in rows] == [each.version for each in versions_of(TAINT_RULES)]
    minors = {int(minor) for names, _ in rows for minor in re.findall(r"1\.(\d\d)", names)}
    assert min(minors) == OLDEST_MINOR_WITH_V1 and f"v1.{max(minors)}." in PEERS_BUILD.read_text("utf-8")
    assert f"| {POD_GROUPS.version}, with the gate" in text
