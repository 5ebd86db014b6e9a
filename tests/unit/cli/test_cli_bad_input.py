"""Bad input to every command: an error in a line or two, a small exit code, never a trace, never a hang.

The table is uses × files × flags, run in this process; what concerns the process itself (closed and full
standard output, interrupted pipes) runs `python -m dray`.
"""

import errno
import io
import json
import os
import subprocess
import sys
import time

import pytest

from dray.api.parsing import ParseError
from dray.cli.failures import describe
from dray.cli.main import main
from dray.cli.output import CommandError
from dray.client.errors import Forbidden, KubeconfigError, Status, TransportError, Unauthorized
from dray.drivers.hardware import ProfileError

# Every way in which a command takes a file (F) or writes one (NEW).
USES = [
    "get devices --against F",
    "get pools --kubeconfig F",
    "get claims --against F -o json",
    "get nodes --against F -o yaml",
    "map --against F",
    "map --against cpu-numa --svg F/picture",
    "map --against cpu-numa --svg F",
    "top --once --against F",
    "top --once --kubeconfig F",
    "explain pod x --against F",
    "explain claim x -f F --against cpu-numa",
    "check F",
    "check F --against cpu-numa",
    "check cpu.yaml F",
    "convert F",
    "convert F --against F",
    "whatif F --add-node cpu-numa",
    "whatif F --against F",
    "capacity F --catalogue F",
    "capacity --remove --catalogue F --against cpu-numa",
    "snapshot F --against cpu-numa --force",
    "snapshot NEW --against F",
    "plan F",
    "plan F F --explain",
    "cel true --device F",
    "cel true --against F",
    "cel --jsonl F",
    "run --kubeconfig F --device x -- y",
    "scheduler --kubeconfig F",
    "controllers --kubeconfig F",
    "guard --kubeconfig F",
    "guard --cert F --key F",
    "driver new ok.example.com F",
    "driver new ok.example.com F/new",
    "driver check --kubeconfig F --kubelet-dir NEW --timeout 0.1",
    "fault --data F",
]


def _deep_yaml(path):
    path.write_bytes(b"[" * 40_000)


def _deep_json(path):
    path.write_bytes(b'{"kind":' + b'{"a":' * 40_000)


def _huge(path):
    with path.open("wb") as stream:
        stream.truncate(3 << 30)  # sparse: takes no space


def _unreadable(path):
    path.write_text("kind: Pod")
    path.chmod(0)


KINDS = {
    "missing": lambda path: None,
    "directory": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 10),
    "latin-1": lambda path: path.write_bytes("name: Jürgen\n".encode("latin-1")),
    "utf-16": lambda path: path.write_bytes("kind: Pod\n".encode("utf-16")),
    "NULs": lambda path: path.write_bytes(b"\0" * 1000),
    "deep YAML": _deep_yaml,
    "deep JSON": _deep_json,
    "huge": _huge,
    "unreadable": _unreadable,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "endless link": lambda path: path.symlink_to(path),
    "a number": lambda path: path.write_bytes(b"42"),
    "alias bomb": lambda path: path.write_text(
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    ),
    "contexts of text": lambda path: path.write_text(
        'kind: Config\nclusters: []\ncontexts: ["x"]\ncurrent-context: x\n'
    ),
    "a list of nothing": lambda path: path.write_text("kind: List\nitems: [null, 5, [], {}]\n"),
}


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("DRAY_DEBUG", raising=False)


def outcome(arguments, capsys):
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_told(arguments, capsys):
    code, out, err = outcome(arguments, capsys)
    assert code in (0, 1, 2), (arguments, code)
    assert "Traceback" not in out + err, (arguments, err)
    assert "internal error" not in err, (arguments, err)
    assert code == 0 or out or err, (arguments, "a failure says why")
    assert len(err) < 20_000, arguments
    return code, err


def test_the_table_is_large():
    assert len(USES) * len(KINDS) + len(FLAGS) > 500


@pytest.mark.parametrize("use", USES)
def test_bad_files_are_told_in_words(use, tmp_path, capsys):
    for number, (kind, make) in enumerate(KINDS.items()):
        path = tmp_path / f"bad-{number}.yaml"
        make(path)
        words = [word.replace("F", str(path)) if word[0] == "F" else word for word in use.split()]
        words = [str(tmp_path / f"new-{number}") if word == "NEW" else word for word in words]
        began = time.process_time()
        assert_told(words, capsys)
        assert time.process_time() - began < 20, (kind, words)


@pytest.mark.parametrize(
    "path", ["/proc/x", "/proc/x/y", "/proc/self/mem", "/etc/passwd/x", "/dev/null", "a" * 5000, "a\0b", ""]
)
@pytest.mark.parametrize(
    "use",
    ["check F", "plan F", "convert F", "whatif F --add-node cpu-numa", "snapshot F --against cpu-numa --force",
     "map --against cpu-numa --svg F", "driver new ok.example.com F", "get claims --kubeconfig F", "get claims --against F",
     "cel true --device F", "cel --jsonl F", "scheduler --kubeconfig F", "explain pod x -f F --against cpu-numa"],
)  # fmt: skip
def test_strange_paths_are_told_in_words(use, path, capsys):
    assert_told([path if word == "F" else word for word in use.split()], capsys)


FLAGS = [
    # (arguments, words that the user must see)
    ("whatif x --against dgx-h100:99999999999", "more than 10000 nodes"),
    ("whatif x --add-node dgx-h100:99999999999", "more than 10000 nodes"),
    ("whatif x --add-node dgx-h100:" + "9" * 4000, "more than 10000 nodes"),
    ("whatif x --add-node dgx-h100:9999 --add-node dgx-h100:9999", "more than 10000 nodes"),
    ("whatif x --add-node dgx-h100:-1", "dgx-h100:-1"),
    ("whatif x --add-node dgx-h100:²", "dgx-h100:²"),
    ("whatif x --add-node nonsense", "nonsense"),
    ("whatif x --need dgx-h100 --policy x", "unknown policy"),
    ("whatif --drain nowhere --add-node cpu-numa", "nowhere"),
    ("get devices --against dgx-h100:99999999999", "more than 10000 nodes"),
    ("get devices --against dgx-h100:²", "does not exist"),
    ("get nothing", "invalid choice"),
    ("get devices --output xml", "invalid choice"),
    ("map --width 99999999999 --against cpu-numa", "whole number from 0 to 10000"),
    ("map --width -5 --against cpu-numa", "whole number"),
    ("map --width x --against cpu-numa", "whole number"),
    ("map --width " + "9" * 10_000, "whole number"),
    ("top --once --interval nan", "number of seconds"),
    ("top --once --interval inf", "number of seconds"),
    ("top --once --interval -1", "number of seconds"),
    ("run --device x --count 0 -- y", "a number from 1"),
    ("run --device x --count 99999999999 -- y", "a number from 1"),
    ("run --device x --count ² -- y", "a number from 1"),
    ("run --device x --timeout nan -- y", "number of seconds"),
    ("run --device x --min memory=1e99999999 -- y", "quantity"),
    ("run --device x --where [[[ -- y", "does not compile"),
    ("run --device x --where " + "(" * 3000 + " -- y", "does not compile"),
    ("scheduler --commits 0", "whole number from 1 to 1000"),
    ("scheduler --commits 99999999999", "whole number"),
    ("scheduler --probe-port 70000", "whole number"),
    ("scheduler --filter-timeout nan", "number of seconds"),
    ("scheduler --feature-gates Nonsense=true", "--feature-gates"),
    ("scheduler --feature-gates x", "--feature-gates"),
    ("controllers --controllers nonsense", "nonsense"),
    ("guard --lease x", "whole number from 3"),
    ("guard --settle nan", "number of seconds"),
    ("guard --listen x", "ADDRESS:PORT"),
    ("guard --listen 127.0.0.1:99999", "127.0.0.1:99999"),
    ("driver run nonsense", "nonsense"),
    ("driver run sim --profile nonsense", "nonsense"),
    ("driver run sim --metrics-port 70000", "whole number"),
    ("driver check --timeout nan", "number of seconds"),
    ("driver new Not_A_Domain", "Not_A_Domain"),
    ("driver new ../x", "../x"),
    ("driver nonsense", "invalid choice"),
    ("demo --secure-port 70000", "whole number"),
    ("check --codes-of x", "unknown flag --codes-of"),
    ("check --feature-gates x --against cpu-numa x", "--feature-gates"),
    ("check --ignore nonsense x", "nonsense"),
    ("convert --map x x", "RESOURCE=CLASS"),
    ("convert", "nothing to convert"),
    ("cel", "no expression"),
    ("cel true x", "unexpected argument"),
    ("cel true --feature-gates Nonsense=true", "Nonsense"),
    ("cel " + "(" * 5000, "expression"),
    ("cel " + "!" * 20_000, "compilation failed"),
    ("explain pod", "required"),
    ("explain deployment x --against cpu-numa", "invalid choice"),
    ("explain pod ../../x --against cpu-numa", "there is no pod"),
    ("completion nonsense", "invalid choice"),
    ("fault a b nonsense", "invalid choice"),
    ("fault --seconds nan a b slow", "number of seconds"),
    ("snapshot", "required"),
    ("--no-such-flag", "required"),
    ("", "required"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), FLAGS, ids=[text[:50] for text, _ in FLAGS])
def test_bad_flags_are_told_in_words(arguments, words, tmp_path, capsys):
    (tmp_path / "x").write_text(
        "kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"
    )
    began = time.process_time()
    code, err = assert_told(arguments.split(), capsys)
    assert code in (1, 2)
    assert words in err
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "replicas", [99_999_999_999, 1e300, "1e999", "many", -1, True, {"a": 1}, None], ids=str
)
@pytest.mark.parametrize(
    ("kind", "field"), [("Deployment", "replicas"), ("StatefulSet", "replicas"), ("Job", "parallelism")]
)
def test_workloads_of_absurd_sizes_are_refused_before_anything_is_built(
    kind, field, replicas, tmp_path, capsys
):
    workload = {"kind": kind, "apiVersion": "apps/v1", "metadata": {"name": "w"}, "spec": {field: replicas}}
    (tmp_path / "w.json").write_text(json.dumps(workload))
    for words in (["whatif", "w.json", "--add-node", "cpu-numa"], ["check", "w.json", "--against", "cpu-numa"],
                  ["convert", "w.json"]):  # fmt: skip
        assert_told(words, capsys)


@pytest.mark.parametrize(
    "command", ["plan", "plan --explain", "check -", "convert -", "cel --jsonl", "cel true --device -"]
)
@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"{\xff}", b'{"a": "\xff"}\n', b"[" * 40_000, b'{"a":' * 40_000, b"\0", b"\n\n", b"{}\n" * 100]
)  # fmt: skip
def test_bad_standard_input_is_told_in_words(command, content, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    assert_told(command.split(), capsys)


# --- the boundary -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "message", "hint"),
    [
        (CommandError("m", "h", 7), 7, "m", "h"),
        (KubeconfigError("no"), 2, "no", "--kubeconfig"),
        (Unauthorized(401, Status(401, message="Unauthorized")), 1, "credentials", "expired"),
        (Forbidden(403, Status(403, message='User "x" cannot list')), 1, 'User "x" cannot list', "can-i"),
        (TransportError("refused"), 1, "does not answer: refused", "running"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 2, "/x: No such file", ""),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 1, "/x: No space", ""),
        (OSError("odd"), 1, "odd", ""),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "not UTF-8", ""),
        (ParseError("bad\nlines"), 2, "bad lines", ""),
        (ProfileError("no such profile"), 2, "no such profile", ""),
        (ValueError("embedded null byte"), 2, "NUL", ""),
        (MemoryError(), 1, "memory", ""),
        (ExceptionGroup("g", [ExceptionGroup("h", [TransportError("x")])]), 1, "does not answer: x", ""),
        (KeyError("x"), 1, "internal error: KeyError: 'x'", "DRAY_DEBUG=1"),
        (RecursionError("deep"), 1, "internal error", "DRAY_DEBUG=1"),
    ],
)
def test_every_exception_has_words_and_a_code(error, code, message, hint):
    failure = describe(error)
    assert failure.code == code
    assert message in failure.message
    assert hint in failure.hint
    assert "\n" not in failure.message


def test_a_bug_is_one_line_and_the_trace_is_there_for_who_asks(monkeypatch, capsys):
    def broken(_args):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("dray.cli.get.run", broken)
    code, _, err = outcome(["get", "devices"], capsys)
    assert code == 1
    assert err.splitlines()[0] == "error: internal error: ZeroDivisionError: division by zero"
    assert "Traceback" not in err
    monkeypatch.setenv("DRAY_DEBUG", "1")
    assert "Traceback" in outcome(["get", "devices"], capsys)[2]


# --- the process ------------------------------------------------------------------


def shell(line):
    environment = {**os.environ, "PYTHONWARNINGS": "", "PYTHON": sys.executable}
    return subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, env=environment, check=False)


GET = '"$PYTHON" -m dray get devices --against dgx-h100'


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (f"{GET} >&-", 0, b""),
        (f"{GET} <&- >&- 2>&-", 0, b""),
        (f"{GET} > /dev/full", 1, b"No space left"),
        (f"set -o pipefail; {GET} -o json | head -c 1 >/dev/null", 0, b""),
        (f"LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {GET}-☃", 2, b"does not exist"),
        (f"{GET}-$'\\xff'", 2, b"does not exist"),
    ],
)
def test_odd_standard_streams_and_arguments_make_no_trace(line, code, words):
    done = shell(line)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.returncode == code, done.stderr
    assert words in done.stderr
