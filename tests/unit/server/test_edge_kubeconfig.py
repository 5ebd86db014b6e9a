"""`dray kubeconfig`: credentials signed by the server's CA."""

import base64
import stat
from datetime import UTC, datetime

import yaml
from cryptography import x509

from dray.cli import main
from dray.server.auth import pki


def made_by(text):
    content = yaml.safe_load(text)
    data = content["users"][0]["user"]["client-certificate-data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data))
    return content, pki.identity_of(certificate.public_bytes(pki.serialization.Encoding.DER)), certificate


def test_a_node_gets_credentials_that_the_server_trusts(tmp_path, capsys):
    now = datetime.now(UTC)
    made = pki.prepare(tmp_path / "pki", [], now)
    made.write_kubeconfig(tmp_path / "admin.kubeconfig", "https://127.0.0.1:6443", *pki.ADMIN, now)
    output = tmp_path / "n1.kubeconfig"
    assert main(["kubeconfig", "--data", str(tmp_path), "--node", "n1", "--file", str(output)]) == 0
    content, identity, certificate = made_by(output.read_text())
    assert (identity.name, identity.groups) == ("system:node:n1", ("system:nodes",))
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    certificate.verify_directly_issued_by(made.ca.certificate)
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_a_user_gets_groups_on_standard_output(tmp_path, capsys):
    pki.prepare(tmp_path / "pki", [], datetime.now(UTC))
    arguments = ["--user", "ann", "--group", "a", "--group", "b", "--server", "https://x:1"]
    assert main(["kubeconfig", "--data", str(tmp_path), *arguments]) == 0
    _, identity, _ = made_by(capsys.readouterr().out)
    assert (identity.name, identity.groups) == ("ann", ("a", "b"))


def test_what_is_missing_is_told_with_a_hint(tmp_path, capsys):
    assert main(["kubeconfig", "--data", str(tmp_path), "--user", "ann"]) == 2
    assert "hint: give the server's data directory" in capsys.readouterr().err
    pki.prepare(tmp_path / "pki", [], datetime.now(UTC))
    assert main(["kubeconfig", "--data", str(tmp_path), "--user", "ann"]) == 2
    assert "hint: give it with --server URL" in capsys.readouterr().err
