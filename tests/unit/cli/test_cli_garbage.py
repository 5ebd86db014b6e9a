"""Whatever people feed to a command: one line on stderr, a small exit code, never a trace."""

import json
import os

import pytest

from dray.cli.main import COMMANDS, main

FILES = {
    "binary": bytes(range(256)),
    "broken": b"a: [1",
    "empty": b"",
    "number": b"42",
    "list": b'[1, 2, "x"]',
    "kubeconfig": b'{"kind": "Config", "clusters": 5, "current-context": "x"}',
    "snapshot": json.dumps(
        {
            "kind": "DraySnapshot",
            "items": [{"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": 5}],
        }
    ).encode(),
    "version": b'{"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v9", "metadata": {"name": "x"}}',
    "kind": b'{"kind": ["Pod"], "apiVersion": {"a": 1}}',
    "pod": b'{"kind": "Pod", "apiVersion": "v1", "spec": {"containers": "x"}, "metadata": {"name": ["a"]}}',
    "workload": b'{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {}, "spec": {"replicas": "many"}}',
    "containers": b'{"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [5, {"resources": 7}]}}',
}

# Every way in which a command reads a file (F); those that would start something get a cluster that is none.
USES = [
    "get devices --against F",
    "get claims --kubeconfig F",
    "map --against F",
    "top --once --against F",
    "top --once --kubeconfig F",
    "explain pod x --against F",
    "explain claim x -f F --against cpu-numa",
    "check F",
    "check F --against F",
    "check F --against cpu-numa",
    "convert F",
    "convert F --against F",
    "whatif F --add-node cpu-numa",
    "whatif F --against F",
    "snapshot F",
    "snapshot NEW --against F",
    "plan F",
    "cel true --device F",
    "cel true --against F",
    "cel --jsonl F",
    "run --kubeconfig F --device x -- y",
    "scheduler --kubeconfig F",
    "controllers --kubeconfig F",
    "node --kubeconfig F --root NEW",
    "kubeconfig --data F --user x",
    "status --data F",
    "down --data F",
    "fault --data F",
    "fault --data F node device clear",
]


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    mask = os.umask(0o022)
    yield
    os.umask(mask)  # node agents close their files to others, for the whole process


def outcome(arguments, capsys):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("use", USES)
def test_garbage_in_files_never_ends_in_a_trace(use, tmp_path, capsys):
    for name, content in FILES.items():
        path = tmp_path / name
        path.write_bytes(content)
        words = [str(path) if w == "F" else str(tmp_path / "new") if w == "NEW" else w for w in use.split()]
        code, out, err = outcome(words, capsys)
        (tmp_path / "new").unlink(missing_ok=True)
        assert code in (0, 1, 2), (name, code)
        assert "Traceback" not in out + err
        assert code == 0 or out or err, "a failure says why"


@pytest.mark.parametrize("use", USES)
def test_files_that_are_not_there_are_named(use, tmp_path, capsys):
    absent = str(tmp_path / "absent")
    words = [absent if w == "F" else str(tmp_path / "new") if w == "NEW" else w for w in use.split()]
    code, _, err = outcome(words, capsys)
    assert code in (1, 2)
    assert "absent" in err or "dray" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_unknown_flags_and_knows_help(name, capsys):
    code, _, err = outcome([name, "--no-such-flag"], capsys)
    assert code == 2
    assert "--no-such-flag" in err or "required" in err
    code, out, _ = outcome([name, "--help"], capsys)
    assert code == 0
    assert f"usage: dray {name}" in out


def test_an_unknown_command_lists_the_known_ones(capsys):
    code, _, err = outcome(["frobnicate"], capsys)
    assert code == 2
    assert "explain" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("up --sim nonsense", "nonsense"),
        ("whatif --add-node nonsense --drain x", "nonsense"),
        ("whatif", "nothing to try"),
        ("run", "no command"),
        ("run --device x", "no command"),
        ("run --count 3 -- x", "--device"),
        ("run --device x --count none -- y", "a number from 1"),
        ("run --device x --min memory -- y", "NAME=AMOUNT"),
        ("run --device x --min memory=lots -- y", "not a quantity"),
        ("run --device x --where device.x -- y", "does not compile"),
        ("top --once --interval 0", "number of seconds"),
        ("completion tcsh", "invalid choice"),
        ("fault", "no system runs"),
        ("status", "no system runs"),
        ("get devices", "kubeconfig"),
        ("run --device x -- y", "kubeconfig"),
        ("explain pod x --against cpu-numa", "there is no pod default/x"),
        ("get devices nowhere --against cpu-numa", "nowhere"),
    ],
)
def test_bad_usage_says_what_is_wrong(arguments, words, capsys):
    code, _, err = outcome(arguments.split(), capsys)
    assert code in (1, 2)
    assert words in err
    assert "Traceback" not in err


def test_a_file_that_may_not_be_read_is_named(tmp_path, capsys):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "secret.yaml"
    path.write_text("")
    path.chmod(0)
    assert outcome(["check", str(path)], capsys)[0] == 2


def test_autoscale_names_a_catalogue_that_is_not_there_before_it_touches_the_system(tmp_path, capsys):
    (tmp_path / "admin.kubeconfig").write_text("")
    code, _, err = outcome(
        ["autoscale", "--data", str(tmp_path), "--catalogue", str(tmp_path / "absent")], capsys
    )
    assert code == 2
    assert "absent" in err
    assert not (tmp_path / "autoscaled").exists()
