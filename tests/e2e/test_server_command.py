"""`dray server` as a user meets it: one line when ready, clean ends, clear refusals."""

import json
import ssl
import stat
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from server_process import serving

from dray.cli import main

NAMESPACES = "/api/v1/namespaces"


def call(url: str, method: str = "GET", body: dict | None = None) -> dict:
    request = urllib.request.Request(url, method=method, data=json.dumps(body).encode() if body else None)
    request.add_header("Authorization", "Bearer admintoken")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=60) as answer:
        return json.loads(answer.read())


Refuse = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run the command in this process (a start costs a second) and return why it refused."""

    def run(*flags: str) -> str:
        # 1: tried and failed (a port or folder in use, a damaged store); 2: flags that cannot be used.
        assert main(["server", "--secure-port", "0", *flags]) in (1, 2)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        return printed.err

    return run


def test_objects_survive_a_restart_and_the_kubeconfig_is_private(tmp_path: Path, refused: Refuse) -> None:
    data = ("--data", str(tmp_path / "data"))
    with serving(tmp_path, *data) as server:
        made = call(server.url + NAMESPACES, "POST", {"metadata": {"name": "kept"}})
        assert stat.S_IMODE(server.kubeconfig.stat().st_mode) == 0o600
        in_use = refused(*data)
        assert "in use by another dray server" in in_use
        port = server.url.rsplit(":", 1)[1]
        taken = refused("--in-memory", "--secure-port", port)
        assert f"port {port}" in taken
    with serving(tmp_path, *data) as server:
        assert call(f"{server.url}{NAMESPACES}/kept")["metadata"]["uid"] == made["metadata"]["uid"]


def test_wrong_flags_are_explained(refused: Refuse) -> None:
    assert "Nonsense" in refused("--in-memory", "--feature-gates", "Nonsense=true")
    assert "Nonsense" in refused("--in-memory", "--disable-admission-plugins", "Nonsense")
    assert "unknown mode" in refused("--in-memory", "--authorization-mode", "Nonsense")


def test_a_damaged_store_is_refused_by_name(tmp_path: Path, refused: Refuse) -> None:
    (tmp_path / "store.db").write_bytes(b"this was a store once" * 300)
    message = refused("--data", str(tmp_path))
    assert "store.db is damaged" in message
    assert (tmp_path / "store.db").read_bytes().startswith(b"this was")
