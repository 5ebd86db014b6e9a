"""Tools that only read, for users who may not read everything, or whose credentials have expired."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_files import claim

from dray.cli.main import main


class ApiServer:
    """Lists objects by plural; `refuse` maps paths to status codes."""

    def __init__(self, objects, refuse):
        self.paths = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.partition("?")[0]
                outer.paths.append(path)
                plural = path.rpartition("/")[2]
                code = refuse(path)
                body = {"metadata": {"resourceVersion": "1"}, "items": objects.get(plural, [])}
                if plural in objects and isinstance(objects[plural], dict):
                    body = objects[plural]
                if code != 200:
                    message = {401: "Unauthorized", 404: "not found"}.get(
                        code, f'{plural} is forbidden: User "alice" cannot list resource "{plural}"'
                    )
                    body = {"kind": "Status", "code": code, "message": message}
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def kubeconfig(self, folder, namespace="team"):
        path = folder / "kubeconfig"
        config = {
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "namespace": namespace}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return str(path)


@pytest.fixture
def api():
    servers = []

    def make(refuse, **objects):
        servers.append(ApiServer(objects, refuse))
        return servers[-1]

    yield make
    for made in servers:
        made.server.shutdown()
        made.server.server_close()


CLAIM = claim("mine", namespace="team")


def test_what_may_not_be_listed_is_left_out_and_said_once(api, tmp_path, capsys):
    server = api(lambda path: 403 if path.endswith(("nodes", "pods")) else 200, resourceclaims=[CLAIM])
    assert main(["get", "claims", "--kubeconfig", server.kubeconfig(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "mine" in out
    assert err.count('User "alice" cannot list resource "nodes"') == 1
    assert err.count('cannot list resource "pods"') == 1
    assert "is the server running" not in err


def test_who_may_list_only_one_namespace_sees_that(api, tmp_path, capsys):
    def refuse(path):
        return 200 if "/namespaces/team/" in path else 403

    server = api(refuse, resourceclaims=[CLAIM])
    assert main(["get", "claims", "--kubeconfig", server.kubeconfig(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "mine" in out
    assert "only those of namespace team are known" in err
    assert main(["get", "claims", "-n", "team", "--kubeconfig", server.kubeconfig(tmp_path, "other")]) == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "plural"), [("claims", "resourceclaims"), ("devices", "resourceslices"), ("nodes", "nodes")]
)
def test_what_was_asked_for_and_may_not_be_seen_is_an_error(api, tmp_path, capsys, what, plural):
    server = api(lambda path: 403 if path.endswith(plural) else 200)
    assert main(["get", what, "--kubeconfig", server.kubeconfig(tmp_path)]) == 1
    assert (
        f'error: not permitted (403): {plural} is forbidden: User "alice" cannot list resource "{plural}"'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["get devices", "map", "top --once", "explain pod x", "snapshot NEW", "whatif --drain x",
                                     "run --device x -- y"])  # fmt: skip
@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [(401, "does not accept the credentials", "expired"), (403, 'User "alice" cannot list', "can-i")],
)
def test_refusals_are_called_by_their_name(api, tmp_path, capsys, command, code, words, hint):
    server = api(lambda _path: code)
    words_of_command = [str(tmp_path / "new") if word == "NEW" else word for word in command.split()]
    flags = ["--kubeconfig", server.kubeconfig(tmp_path)]
    position = words_of_command.index("--") if "--" in words_of_command else len(words_of_command)
    assert main([*words_of_command[:position], *flags, *words_of_command[position:]]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert f"hint: {hint}" in err or hint in err
    assert "is the server running" not in err
    assert len(err.splitlines()) <= 3


def test_a_server_that_is_not_there_is_called_that(tmp_path, capsys, api):
    server = api(lambda _path: 200)
    kubeconfig = server.kubeconfig(tmp_path)
    server.server.shutdown()
    server.server.server_close()
    assert main(["get", "devices", "--kubeconfig", kubeconfig]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_devices_that_others_hold_are_not_called_free(api, tmp_path, capsys):
    names = ("gpu-0", "gpu-1")
    pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
    devices = {
        "driver": "d.example",
        "nodeName": "one",
        "pool": pool,
        "devices": [{"name": name} for name in names],
    }
    result = {"request": "", "driver": "d.example", "pool": "one", "device": "gpu-1"}
    held = [{"user": "user-ann", "until": 1_800_000_000.0, "devices": [result]}]
    server = api(
        lambda path: 200 if "/namespaces/" in path or path.endswith(("nodes", "resourceslices")) else 403,
        resourceslices=[{"metadata": {"name": "s"}, "spec": devices}],
        **{"dray-queue": {"data": {"held": json.dumps(held)}}},
    )
    flags = ["--kubeconfig", server.kubeconfig(tmp_path)]
    assert main(["get", "devices", "-o", "json", *flags]) == 0
    out, err = capsys.readouterr()
    assert {row["device"]: row["state"] for row in json.loads(out)} == {"gpu-0": "free", "gpu-1": "used"}
    assert not err  # what others do is not for this user to see, and that is no news
    assert main(["get", "devices", *flags]) == 0
    assert "user-ann (until " in capsys.readouterr().out
