"""The examples and guides print what they show: every command of every page runs on a real system (tools/replay.py).

Pages that use the same system run one after the other on one; `python tools/replay.py --write PAGE` renews a page.
"""

import importlib.util
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("replay", ROOT / "tools" / "replay.py")
replay = importlib.util.module_from_spec(SPEC)
sys.modules["replay"] = replay
SPEC.loader.exec_module(replay)

PAGES = [
    *sorted(ROOT.glob("examples/*/README.md")),
    *sorted(ROOT.glob("docs/guides/*.md")),
    ROOT / "docs/tutorial.md",
]
PLAYED = [
    pytest.param(page, arguments, id=str(page.relative_to(ROOT)))
    for arguments, pages in replay.by_system(PAGES).items()
    for page in pages
]


@pytest.fixture(scope="module")
def cluster_of():
    """Return a function that gives the system of a page; only one runs at a time."""
    running = {}

    def get(arguments):
        if arguments not in running:
            close()
            running[arguments] = replay.Cluster(arguments)
        return running[arguments]

    def close():
        for cluster in running.values():
            cluster.close()
        running.clear()

    yield get
    close()


@pytest.mark.kubernetes
@pytest.mark.parametrize(("page", "arguments"), PLAYED)
def test_the_page_shows_what_its_commands_print(cluster_of, page, arguments):
    found = replay.differences(page, cluster_of(arguments))
    assert not found, "\n\n".join(found)


NOT_PLAYED = {
    "docs/guides/README.md",  # the list of guides
    "docs/guides/install-in-a-cluster.md",  # tests/cluster follows it on real kubelets
    "docs/guides/running-pods.md",  # moves an interface of the machine: test_node_runc_drivers.py and test_running_pods.py
}


def test_every_example_and_every_guide_is_played():
    played = {str(each.values[0].relative_to(ROOT)) for each in PLAYED}
    assert {str(page.relative_to(ROOT)) for page in PAGES} - played == NOT_PLAYED


# --- comparing, without a system --------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "verdict"),
    [
        (["a  b"], ["a b"], True),
        (["pod/x 3s"], ["pod/x 2m10s"], True),
        (["pod/x 3s"], ["pod/y 3s"], False),
        (["gpu-claim-frf8g"], ["gpu-claim-x7k2p"], True),
        (["legacy-extended-resources-frf8g"], ["legacy-extended-resources-74e6cf45a7"], False),
        (["server-cwmcx4dxnf-kk2l9"], ["server-fpcbfwqmkc-jdnxv"], True),
        (["a", "b"], ["b", "a"], True),
        (["gpu (second,first)"], ["gpu (first,second)"], True),
        (["a"], ["a", "b"], False),
        (["a", "b"], ["a"], False),
        (["…", "done"], ["one", "two", "done"], True),
        (["…", "done"], ["one", "two"], False),
        ([], ["x"], False),
        (["waiting for 1 more pods"], ["only 1 of the 2 pods fit"], False),
        (["allx net"], ["all net"], False),
    ],
)
def test_what_differs_from_run_to_run_is_not_compared(shown, printed, verdict):
    assert replay.agrees(shown, printed) is verdict


def test_commands_and_outputs_are_read_from_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "ROOT", tmp_path)
    page = tmp_path / "examples" / "01" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "# x\n\nA cluster: `dray up --no-host --sim workstation` (then)\n\n```console\n$ one\nout\n\nmore\n"
        "$ two \\\n    --flag\n$ three <<EOF\n> a: b\n> EOF\n> greater\n```\n\n```yaml\n$ not: this\n```\n"
    )
    steps = replay.steps_of(page)
    assert [(step.command, step.shown) for step in steps] == [
        ("one", ["out", "", "more"]),
        ("two --flag", []),
        ("three <<EOF\na: b\nEOF\ngreater", []),
    ]
    assert replay.system_of(page.read_text()) == "--no-host --sim workstation"


def test_a_page_without_a_system_is_refused(tmp_path):
    with pytest.raises(replay.ReplayError):
        replay.system_of("# no cluster here")


def test_a_shell_keeps_variables_and_ends_its_background_processes():
    shell = replay.Shell({"PATH": "/usr/bin:/bin"})
    assert shell.run("X=1; sleep 600 & echo $!")[0].isdigit()
    assert shell.run("echo $X; echo wrong >&2") == ["1", "wrong"]
    (number,) = shell.run("jobs -p")
    shell.close()
    deadline = time.monotonic() + 10  # a process that was killed is still there for a moment
    while is_running(number):
        assert time.monotonic() < deadline, f"process {number} outlives its shell"
        time.sleep(0.01)


def is_running(number):
    """Return whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_does_not_end_is_an_error():
    shell = replay.Shell({"PATH": "/usr/bin:/bin"})
    try:
        with pytest.raises(replay.ReplayError):
            shell.run("sleep 600", seconds=0.2)
    finally:
        shell.close()
