"""Flags of jobs: times, amounts, ranges, the caller's environment and directory."""

import argparse
import os

import pytest

from dray.cli.job_flags import amount, array_range, duration, environment, working_directory
from dray.cli.output import CommandError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d12h", 129_600)]
)
def test_times(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "2x", "h", "-1h", "1.5h", "99999d", "9" * 40, "\u0662h"])
def test_what_is_not_a_time_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "lots", "1Gib", "\0"])
def test_what_is_not_an_amount_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        amount(text)


def test_ranges():
    assert list(array_range("1-3")) == [1, 2, 3]
    assert len(array_range("1-1000")) == 1000


@pytest.mark.parametrize("text", ["", "3", "3-1", "1-1001", "a-b", "1-2-3", "-1-2"])
def test_what_is_not_a_range_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        array_range(text)


def flags(**values):
    return argparse.Namespace(**{"env": [], "clean_env": False, "workdir": None, **values})


CALLER = {"PATH": "/bin", "PWD": "/x", "BASH_FUNC_f%%": "() { :; }", "BAD": "\udcff"}


def test_the_environment_is_the_callers_without_what_belongs_to_the_shell():
    assert environment(flags(env=["A=b=c", "PATH"]), CALLER, inherits=True) == {"PATH": "/bin", "A": "b=c"}


def test_a_clean_environment_has_what_is_named():
    assert environment(flags(clean_env=True, env=["A=b"]), CALLER, inherits=True) == {"A": "b"}
    assert environment(flags(env=["A=b"]), CALLER, inherits=False) == {"A": "b"}


@pytest.mark.parametrize("text", ["", "=x", "a b=c", "NOWHERE", "9=x"])
def test_bad_variables_are_refused(text):
    with pytest.raises(CommandError):
        environment(flags(env=[text]), CALLER, inherits=True)


def test_an_environment_that_is_too_large_is_refused():
    with pytest.raises(CommandError, match="at most"):
        environment(flags(), {"A": "x" * 300_000}, inherits=True)


def test_the_directory_is_the_callers_unless_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert working_directory(flags(), inherits=True) == os.getcwd()
    assert working_directory(flags(), inherits=False) == ""
    assert working_directory(flags(workdir="sub"), inherits=True) == str(tmp_path / "sub")
    with pytest.raises(CommandError):
        working_directory(flags(workdir=""), inherits=True)
