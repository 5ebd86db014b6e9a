"""The service of `dray install`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dray.cli.main import main
from dray.local.system_service import (
    InstallError,
    Service,
    closed_to_others,
    install,
    installed_runtime,
    uninstall,
)

SERVICE = Service(("/opt/dray/bin/dray", "--sim=dgx h100:2"))


class Machine:
    """Remembers commands; `failing` ones end with exit code 1."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.commands = failing, []

    def run(self, command: Sequence[str]) -> int:
        self.commands.append(" ".join(command))
        return int(command[0] in self.failing)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tmp_path


def test_install_and_uninstall(root: Path) -> None:
    machine = Machine("getent")
    assert install(SERVICE, root, machine.run)
    unit = (root / "etc/systemd/system/dray.service").read_text()
    assert "ExecStart=/opt/dray/bin/dray up --data /var/lib/dray --keep-jobs '--sim=dgx h100:2'\n" in unit
    assert "KillMode=process\n" in unit  # with another mode systemd would kill the jobs at every restart
    assert (root / "var/lib/dray").stat().st_mode & 0o777 == 0o700
    assert uninstall(root, machine.run)
    assert machine.commands == [
        "getent group dray",
        "groupadd --system dray",
        "systemctl daemon-reload",
        "systemctl enable --now dray.service",
        "systemctl disable --now dray.service",
        "systemctl daemon-reload",
    ]
    assert not (root / "etc/systemd/system/dray.service").exists()
    assert (root / "var/lib/dray").is_dir()
    assert uninstall(root, machine.run) == []


def test_without_systemd_nothing_is_started(tmp_path: Path) -> None:
    machine = Machine()
    install(SERVICE, tmp_path, machine.run)
    assert machine.commands == ["getent group dray"]
    assert (tmp_path / "etc/systemd/system/dray.service").exists()


def test_a_failing_command_is_named(root: Path) -> None:
    with pytest.raises(InstallError, match="systemctl daemon-reload"):
        install(SERVICE, root, Machine("systemctl").run)


def test_percent_signs_are_not_specifiers() -> None:
    assert "a%%b" in Service(("/bin/dray", "a%b")).unit_text()


def test_the_unit_can_be_looked_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--print", "--no-host", "--sim", "workstation:2"]) == 0
    assert "--sim=workstation:2 --no-host" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["install", "--sim", "no-such-hardware"],
        ["install", "--data", "relative"],
        ["up", "--feature-gates", "NoSuchGate=true"],
    ],
)
def test_what_cannot_work_is_refused_at_once(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_ports_beyond_65535_are_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", "--secure-port", "65536"])
    assert ended.value.code == 2


def test_a_port_in_use_is_named_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["up", "--no-host", "--secure-port", str(other.getsockname()[1])]) == 2
    assert "cannot be used" in capsys.readouterr().err


def test_a_program_that_others_cannot_reach_is_found(tmp_path: Path) -> None:
    program = tmp_path / "lib" / "dray"
    program.parent.mkdir(mode=0o755)
    program.touch()
    program.chmod(0o755)
    tmp_path.chmod(0o700)
    found = closed_to_others([program])
    assert found is not None
    assert program.is_relative_to(found)
    assert closed_to_others([Path("/bin/sh")]) is None


def test_the_runtime_of_the_service_is_read_from_its_unit(root: Path) -> None:
    assert installed_runtime(root) == "process"
    install(Service(("/opt/dray/bin/dray", "--runtime=runc")), root, Machine().run)
    assert installed_runtime(root) == "runc"
