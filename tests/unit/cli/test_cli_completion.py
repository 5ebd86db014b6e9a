"""`dray completion`: the scripts complete commands, nested commands, flags, choices and files in real shells."""

import argparse
import shutil
import subprocess
import sys

import pytest

from dray.cli.main import COMMANDS, main, make_parser


@pytest.fixture
def script(capsys):
    def make(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return make


def bash_completes(script, tmp_path, *words):
    """Return what bash offers for the last word."""
    (tmp_path / "cluster.json").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "script").write_text(script)
    ask = f"""
        source {tmp_path}/script
        complete -p dray >/dev/null || exit 9
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
        $(complete -p dray | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    command = ["bash", "--norc", "-c", ask]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["dray", "expl"], {"explain"}),
        (["dray", "get", "d"], {"devices"}),
        (["dray", "get", "devices", "--outp"], {"--output"}),
        (["dray", "get", "devices", "--output", "t"], {"table", "tree"}),
        (["dray", "driver", "c"], {"check"}),
        (["dray", "driver", "run", "--device-m"], {"--device-metadata"}),
        (["dray", "completion", "f"], {"fish"}),
        (["dray", "get", "devices", "--kubeconfig", "cl"], {"cluster.json"}),
        (["dray", "up", "--data", ""], {"data"}),
    ],
)
def test_bash_completes(script, tmp_path, words, offered):
    assert bash_completes(script("bash"), tmp_path, *words) == offered


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("line", "offered"),
    [("dray expl", {"explain"}), ("dray driver c", {"check"}), ("dray get devices --output tr", {"tree"})],
)
def test_fish_completes(script, tmp_path, line, offered):
    (tmp_path / "script").write_text(script("fish"))
    ask = f"source {tmp_path}/script; complete -C '{line}'"
    command = ["fish", "--no-config", "-c", ask]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=30, check=True, cwd=tmp_path
    )
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_every_command_and_are_valid_for_their_shell(script, shell, tmp_path):
    text = script(shell)
    assert [name for name in COMMANDS if name not in text] == []
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=30)


def test_every_flag_of_every_command_is_completed(script):
    text = script("bash")
    flags = set()
    todo = [make_parser()]
    while todo:
        for action in todo.pop()._actions:
            flags.update(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                todo.extend(action.choices.values())
    assert len(flags) > 50
    assert [flag for flag in flags if flag not in text] == []


def test_an_unknown_shell_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit) as end:
        main(["completion", "csh"])
    assert end.value.code == 2
    assert "bash" in capsys.readouterr().err


def test_other_commands_do_not_load_the_generator():
    code = "import sys; from dray.cli.main import main; main(['get', 'nodes', '--against', 'workstation']); sys.exit('shtab' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
