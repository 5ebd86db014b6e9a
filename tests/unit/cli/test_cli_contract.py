"""The contract of all commands (docs/cli.md): flags, exit codes, errors, hints, help, progress. Walks over every command."""

import argparse
import os
import re
import sys
import tempfile
import time

import pytest
from cli_files import claim, cluster

from dray.allocator import POLICIES
from dray.cli import arguments, progress
from dray.cli.main import COMMANDS, GROUPS, main, make_parser
from dray.control.scheduling import TOPOLOGY


def parsers(parser=None, name=""):
    """Yield every parser with the words that lead to it."""
    parser = parser or make_parser()
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if name and not inner:
        yield name, parser
    for action in inner:
        for word, below in action.choices.items():
            yield from parsers(below, f"{name} {word}".strip())


PARSERS = dict(parsers())
FLAGS = [
    (name, action)
    for name, parser in PARSERS.items()
    for action in parser._actions
    if action.option_strings and action.help is not argparse.SUPPRESS
]


@pytest.fixture(autouse=True)
def _no_cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # Where the system started last is noted: `dray down` must not find one that runs on this machine.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DRAY_SOCKET", str(tmp_path / "api.sock"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o022)
    yield
    os.umask(mask)  # node agents close their files to others, for the whole process


def outcome(words, capsys):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- flags ------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARSERS)
def test_every_argument_is_described(name):
    parser = PARSERS[name]
    silent = [action.dest for action in parser._actions if not action.help or action.help.endswith(".")]
    assert silent == []


@pytest.mark.parametrize("name", PARSERS)
def test_every_value_has_a_name_that_is_not_the_flag_itself(name):
    unnamed = [
        action.option_strings
        for action in PARSERS[name]._actions
        if action.option_strings and action.nargs != 0 and not (action.choices or action.metavar)
        if action.help is not argparse.SUPPRESS
    ]
    assert unnamed == []


# The kubeconfig that `dray server` writes is a file to write; the others read theirs. `dray sim` compares several policies.
OWN_MEANING = {("server", "--kubeconfig"), ("sim run", "--policy")}


def test_a_flag_takes_the_same_value_in_all_commands():
    forms = {}
    for name, action in FLAGS:
        flag = action.option_strings[0 if action.option_strings[0].startswith("--") else -1]
        if (name, flag) in OWN_MEANING or flag in ("--help", "--output"):
            continue
        value = action.metavar if action.nargs != 0 else None
        short = [option for option in action.option_strings if not option.startswith("--")]
        forms.setdefault(flag, {}).setdefault((tuple(short), value), []).append(name)
    different = {flag: found for flag, found in forms.items() if len(found) > 1}
    # Devices of `cel` are files, those of `run` are classes; `guard` has a private key, `fault` the key of a taint.
    assert set(different) <= {"--device", "--key"}


def test_shared_flags_come_from_one_table():
    for name, action in FLAGS:
        flag = action.option_strings[-1]
        if flag in arguments.SHARED and (name, flag) not in OWN_MEANING:
            shared = arguments.SHARED[flag]
            assert action.metavar == shared.get("metavar"), (name, flag)
            assert action.type == shared.get("type"), (name, flag)


def test_formats_are_named_alike():
    for name, action in FLAGS:
        if action.option_strings[-1] == "--output":
            assert action.option_strings == ["-o", "--output"], name
            assert action.default == action.choices[0], name
            assert set(action.choices) <= {"table", "text", "wide", "tree", "json", "yaml"}, name
            assert "json" in action.choices, name


def test_policies_are_those_of_the_scheduler():
    assert {*POLICIES, TOPOLOGY} - {""} == set(arguments.POLICIES)


# --- help -------------------------------------------------------------------------


def test_help_lists_every_command_in_its_group(capsys):
    code, out, _ = outcome(["--help"], capsys)
    assert code == 0
    for title, group in GROUPS.items():
        section = out.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in section.splitlines()] == list(group)


@pytest.mark.parametrize("name", PARSERS)
def test_help_of_a_command(name, capsys):
    code, out, err = outcome([*name.split(), "--help"], capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: dray " + name)


# --- errors -----------------------------------------------------------------------


def typo(word):
    """Return the word with two letters swapped."""
    middle = len(word) // 2
    return word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :]


@pytest.mark.parametrize("name", [name for name in COMMANDS if typo(name) not in COMMANDS])
def test_a_misspelled_command_is_answered_with_the_nearest(name, capsys):
    code, out, err = outcome([typo(name)], capsys)
    assert (code, out) == (2, "")
    assert re.match(r"error: COMMAND: invalid choice: '[a-z]+'\nhint: did you mean [a-z]+\?\n\Z", err)


def required(parser):
    """Return words for the required arguments of a command."""
    words = []
    for action in parser._actions:
        if action.required or (not action.option_strings and action.nargs not in ("?", "*")):
            value = str(next(iter(action.choices))) if action.choices else "gpu.example.com"
            words += [*action.option_strings[-1:], *([value] if action.nargs != 0 else [])]
    return words


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        (name, option)
        for name, action in FLAGS
        for option in action.option_strings
        if option.startswith("--") and len(option) > 4
    ],
)
def test_a_misspelled_flag_is_answered_with_the_nearest(name, flag, capsys):
    wrong = flag[:3] + flag[4:]
    if wrong in PARSERS[name]._option_string_actions:
        return
    words = required(PARSERS[name])
    if name == "kubeconfig":
        words = ["--user", "x"]
    code, out, err = outcome([*name.split(), *words, f"{wrong}=x"], capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: unknown flag {wrong}\nhint: did you mean --"), err


def test_flags_are_not_abbreviated(capsys):
    code, _, err = outcome(["get", "devices", "--again", "cpu-numa"], capsys)
    assert code == 2
    assert err == "error: unknown flag --again\nhint: did you mean --against?\n"


@pytest.mark.parametrize(("name", "action"), [(n, a) for n, a in FLAGS if a.choices], ids=str)
def test_a_wrong_choice_is_answered_with_the_choices(name, action, capsys):
    words = required(PARSERS[name])
    code, out, err = outcome([*name.split(), *words, action.option_strings[-1], "zzzzzz"], capsys)
    assert (code, out) == (2, "")
    first, second = err.splitlines()
    assert first.startswith("error: ") and "invalid choice: 'zzzzzz'" in first
    assert second.startswith("hint: choose from: ")


# --- exit codes -------------------------------------------------------------------

BIG = claim("big", namespace="default", count=99)
CODES = [
    # (command, exit code, words on stderr or stdout)
    ("exporter --refresh 0", 2, "error: "),
    ("get devices --against cpu-numa", 0, "NODE"),
    ("get devices nowhere --against cpu-numa", 2, "hint: "),
    ("get devices --against cpu-numa --state fre", 2, "did you mean free?"),
    ("get devices --against cpu-numa --driver dra.cup", 2, "did you mean dra.cpu?"),
    ("get devices --against cpu-numa --node nowhere", 2, "cpu-numa-1"),
    ("get pools --against cpu-numa --state free", 2, "has no meaning for pools"),
    ("get devices --against cpu-numa --state used", 0, "no devices found"),
    ("top --once --against cpu-numa", 0, "no device is in use"),
    ("map --against cpu-numa", 0, "cpu-numa-1"),
    ("dashboard --data .", 1, "no system runs"),
    ("snapshot new.json --against cpu-numa", 0, "wrote new.json"),
    ("snapshot big.yaml --against cpu-numa", 2, "--force"),
    ("explain claim big -f big.yaml --against dgx-h100", 1, "does not fit"),
    ("explain claim bgi -f big.yaml --against dgx-h100", 2, "did you mean default/big?"),
    ("explain claim bad -f bad.yaml --against dgx-h100", 2, "a server would refuse"),
    ("whatif bad.yaml --add-node dgx-h100", 2, "a server would refuse"),
    ("sim run --trace absent.csv", 2, "absent.csv"),
    ("record big.yaml", 2, "--force"),
    ("record new.jsonl", 2, "kubeconfig"),
    ("defrag", 2, "--free-whole"),
    ("defrag --free-whole 1 --against workstation", 0, "as many already"),
    ("defrag --for nobody --against workstation", 2, "there is no pod default/nobody"),
    ("capacity", 2, "--pending"),
    ("capacity --remove --against cpu-numa:2", 0, "can go"),
    ("capacity bad.yaml --catalogue bad.yaml", 2, "a server would refuse"),
    ("whatif big.yaml --add-node dgx-h100", 2, "no pod to place"),
    ("whatif --drain dgx-h100-1 --against dgx-h100:2", 0, "0 of 0 pods fit"),
    ("whatif pod.yaml --add-node cpu-numa", 0, "1 of 1 pod fit"),
    ("whatif huge.yaml --add-node cpu-numa", 1, "does not fit"),
    ("check big.yaml", 0, "no findings"),
    ("check bad.yaml", 1, "1 error"),
    ("check nowhere.yaml", 2, "nowhere.yaml: No such file"),
    ("check --codes", 0, "never-fits"),
    ("doctor --codes", 0, "CODE"),
    ("convert pod.yaml", 0, "kind: Pod"),
    ("convert nowhere.yaml", 2, "No such file"),
    ("cel true", 0, "type bool"),
    ("cel tru", 1, "error: "),
    ("plan nowhere.json", 2, "error: "),
    ("status", 1, "no system runs"),
    ("down", 1, "no system runs"),
    ("autoscale --catalogue x.yaml", 1, "no system runs"),
    ("autoscale --catalogue x.yaml --serve 127.0.0.1:0 --tls-cert-file x", 2, "TLS needs"),
    ("up --autoscale nowhere.yaml", 2, "nowhere.yaml: No such file"),
    ("fault", 1, "no system runs"),
    ("run --device x", 2, "no command"),
    ("run --time soon -- true", 2, "is not a time"),
    ("run --same x -- true", 2, "--same belongs to devices"),
    ("run -t -- true", 2, "not a terminal"),
    ("run -i --detach -- true", 2, "go without --detach"),
    ("shell", 2, "not a terminal"),
    ("hold --device x", 2, "no command"),
    ("hold -- bash", 2, "not a container engine"),
    ("hold -- podman ps", 2, "starts no container"),
    ("ps --kubeconfig nowhere", 2, "nowhere"),
    ("logs x --kubeconfig nowhere", 2, "nowhere"),
    ("logs x --tail many", 2, "whole number"),
    ("attach x --kubeconfig nowhere", 2, "nowhere"),
    ("exec x", 2, "no command"),
    ("exec --kubeconfig nowhere x -- true", 2, "nowhere"),
    ("claim attach web", 2, "CLAIM"),
    ("claim resize web net", 2, "attach"),
    ("stop x --kubeconfig nowhere", 2, "nowhere"),
    ("wait x --timeout soon", 2, "number of seconds"),
    ("wait x --kubeconfig nowhere", 2, "nowhere"),
    ("usage --kubeconfig nowhere", 2, "nowhere"),
    ("usage --since yesterday", 2, "is not a date"),
    ("queue --kubeconfig nowhere", 2, "nowhere"),
    ("backup --data nowhere", 2, "hint: "),
    ("restore nowhere.tar.gz --data new", 2, "No such file"),
    ("upgrade --check --data nowhere", 1, "hint: "),
    ("install --sim nonsense --print", 2, "nonsense"),
    ("install --print", 0, "[Unit]"),
    ("uninstall --root .", 1, "no service of dray is installed"),
    ("login", 1, "no shared system answers"),
    ("user limit", 2, "no user was given"),
    ("conformance list", 0, "gang_scheduling"),
    ("conformance run nothing", 2, "has no check"),
    ("conformance run --metrics-url file:///etc/passwd", 2, "is not an address"),
    ("fleet undrain", 2, "no target was given"),
    ("fleet drain node-1", 2, "--reason"),
    ("fleet check --kubeconfig nowhere", 2, "nowhere"),
    ("user limit x --devices -1", 2, "whole number"),
    ("user list --kubeconfig nowhere", 2, "nowhere"),
    ("kubeconfig --data . --user x", 2, "hint: "),
    ("completion bash", 0, "complete"),
    ("scheduler --kubeconfig nowhere", 2, "nowhere"),
    ("controllers --kubeconfig nowhere", 2, "nowhere"),
    ("guard --kubeconfig nowhere", 2, "nowhere"),
    ("node --kubeconfig nowhere --root new", 2, "nowhere"),
    ("nodes --root new --credentials new", 2, "no node to host"),
    ("driver run nonsense", 2, "nonsense"),
    ("up --sim nonsense", 2, "nonsense"),
    ("up --from nowhere.json", 2, "nowhere.json"),
    ("up --from big.yaml", 2, "no nodes"),
    ("up --workloads", 2, "--from"),
    ("twin --against nowhere.json", 2, "nowhere.json"),
    ("twin --against big.yaml", 2, "no nodes"),
    ("profile show nonsense", 2, "nonsense"),
    ("profile list", 0, "dgx-h100"),
    ("profile validate nowhere.yaml", 2, "nowhere.yaml"),
    ("profile validate big.yaml", 1, "devices"),
    ("profile from-cluster --against cpu-numa", 0, "kind: published"),
    ("profile from-cluster --against big.yaml", 2, "no node"),
    ("profile from-cluster --against cpu-numa --node x", 2, "cpu-numa-1"),
    ("up --feature-gates GenericWorklod=true", 2, "did you mean GenericWorkload?"),
    ("up --secure-port 70000", 2, "whole number from 0 to 65535"),
    ("server --secure-port 70000", 2, "whole number from 0 to 65535"),
    ("demo --secure-port x", 2, "whole number"),
]


@pytest.fixture
def files(tmp_path):
    import json

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
           "spec": {"containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
    huge = {
        **pod,
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "99999"}}}]},
    }
    bad = {**BIG, "metadata": {"name": "bad"}, "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": -1}}]}}}  # fmt: skip
    for name, obj in {"pod": pod, "huge": huge, "big": BIG, "bad": bad}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(obj))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("words", "code", "text"), CODES, ids=[words for words, _, _ in CODES])
def test_exit_codes(words, code, text, capsys):
    found, out, err = outcome(words.split(), capsys)
    assert text in out + err
    assert found == code, err
    if code == 2:
        assert re.search(r"^error: ", err, re.MULTILINE)
        assert out == "" or words.startswith("plan")
    assert "Traceback" not in err


def test_every_command_has_an_exit_code_in_the_table():
    assert {words.split()[0] for words, _, _ in CODES} == set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("n gpu-0 unhealthy --key a", "--key has no meaning for unhealthy"),
        ("n gpu-0 vanish --message x", "--message has no meaning for vanish"),
        ("n gpu-0 taint --seconds 5", "--seconds has no meaning for taint"),
        ("--seconds 5", "--seconds has no meaning for the list"),
        ("n gpu-0 taint --key a/b/c", "--key 'a/b/c'"),
        ("n gpu-0 taint --key example.com/k --value -x-=y", "value"),
        ("n all vanish", "`all` goes with clear only"),
        ("n gpu-0", "no fault was given for gpu-0"),
    ],
)
def test_faults_that_mean_nothing_are_refused(words, error, capsys):
    code, _, err = outcome(["fault", *words.split()], capsys)
    assert code == 2
    assert error in err


# --- watching and progress --------------------------------------------------------


def test_watch_prints_each_new_state(tmp_path, capsys, monkeypatch):
    path = tmp_path / "cluster.json"
    cluster().write(path)
    looks = []

    async def sleep(_seconds):
        looks.append(1)
        if len(looks) == 1:
            cluster(profiles=(("dgx-h100", 3),)).write(path)
        elif len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("dray.cli.live.asyncio.sleep", sleep)
    code, out, _ = outcome(["get", "nodes", "--against", str(path), "--watch", "--interval", "0.1"], capsys)
    assert code == 0
    assert out.count("NODE") == 2  # the third look saw nothing new
    assert out.count("dgx-h100-3") == 1


def test_what_takes_long_says_so_and_what_does_not_is_silent(capsys):
    with progress.progress("reading", first_after=0.01):
        progress.doing("placing 4 pods")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            err = capsys.readouterr().err
            if err:
                break
    assert re.match(r"placing 4 pods \(\d+ s\)", err)
    with progress.progress("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_on_a_terminal_progress_is_one_line_that_disappears(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.progress("reading", first_after=0.01):
        deadline = time.monotonic() + 5
        err = ""
        while not err and time.monotonic() < deadline:
            err = capsys.readouterr().err
    assert err.startswith("\r\x1b[Kreading")
    assert capsys.readouterr().err.endswith("\r\x1b[K")
