"""Certificates made at first start, kept at the next, renewed near their end."""

import base64
import stat
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509

from dray.server.auth import pki

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def hosts_of(pair):
    names = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_the_first_start_makes_everything_and_the_second_keeps_it(tmp_path):
    first = pki.prepare(tmp_path / "pki", ["box.example"], NOW)
    second = pki.prepare(tmp_path / "pki", ["box.example"], NOW + timedelta(days=1))
    assert first.ca.certificate == second.ca.certificate
    assert first.serving.certificate == second.serving.certificate
    assert first.token_key.private_numbers() == second.token_key.private_numbers()


def test_private_keys_are_readable_by_the_owner_only(tmp_path):
    pki.prepare(tmp_path / "pki", [], NOW)
    for name in ("ca.key", "apiserver.key", "sa.key"):
        assert mode_of(tmp_path / "pki" / name) == 0o600
    assert mode_of(tmp_path / "pki") == 0o700


def test_the_serving_certificate_covers_the_usual_and_the_given_names(tmp_path):
    made = pki.prepare(tmp_path, ["10.1.2.3", "box", "0.0.0.0"], NOW)
    found = hosts_of(made.serving)
    assert {"localhost", "127.0.0.1", "10.1.2.3", "box", "kubernetes.default.svc"} <= found
    assert "0.0.0.0" not in found


def test_a_new_host_renews_the_serving_certificate_but_not_the_ca(tmp_path):
    before = pki.prepare(tmp_path, ["a"], NOW)
    after = pki.prepare(tmp_path, ["b"], NOW)
    assert before.ca.certificate == after.ca.certificate
    assert "b" in hosts_of(after.serving)


def test_a_certificate_near_its_end_is_renewed(tmp_path):
    before = pki.prepare(tmp_path, [], NOW)
    assert (
        pki.prepare(tmp_path, [], NOW + timedelta(days=300)).serving.certificate == before.serving.certificate
    )
    after = pki.prepare(tmp_path, [], NOW + timedelta(days=340))
    assert after.serving.certificate != before.serving.certificate
    assert after.serving.certificate.not_valid_after_utc > NOW + timedelta(days=600)


def test_a_damaged_or_foreign_key_is_an_error_and_stays(tmp_path):
    pki.prepare(tmp_path, [], NOW)
    (tmp_path / "ca.key").write_text("nonsense")
    with pytest.raises(pki.PkiError, match=r"ca\.key is not a private key"):
        pki.prepare(tmp_path, [], NOW)
    assert (tmp_path / "ca.key").read_text() == "nonsense"
    (tmp_path / "ca.key").write_bytes((tmp_path / "sa.key").read_bytes())
    with pytest.raises(pki.PkiError, match="do not belong together"):
        pki.prepare(tmp_path, [], NOW)
    (tmp_path / "ca.key").unlink()
    with pytest.raises(pki.PkiError, match="restore the key"):
        pki.prepare(tmp_path, [], NOW)


def test_a_client_certificate_carries_user_and_groups(tmp_path):
    made = pki.prepare(tmp_path, [], NOW)
    pair = made.client_pair("system:node:n1", ["system:nodes", "second"], NOW)
    identity = pki.identity_of(pair.certificate.public_bytes(pki.serialization.Encoding.DER))
    assert (identity.name, identity.groups) == ("system:node:n1", ("system:nodes", "second"))
    pair.certificate.verify_directly_issued_by(made.ca.certificate)


def test_a_kubeconfig_is_private_embedded_and_kept_while_it_serves(tmp_path):
    made = pki.prepare(tmp_path / "pki", [], NOW)
    path = tmp_path / "admin.kubeconfig"
    name, groups = pki.ADMIN
    assert made.refresh_kubeconfig(path, "https://127.0.0.1:1", name, groups, NOW)
    assert mode_of(path) == 0o600
    content = yaml.safe_load(path.read_text())
    certificate = x509.load_pem_x509_certificate(
        base64.b64decode(content["users"][0]["user"]["client-certificate-data"])
    )
    certificate.verify_directly_issued_by(made.ca.certificate)
    assert not made.refresh_kubeconfig(path, "https://127.0.0.1:1", name, groups, NOW)
    assert made.refresh_kubeconfig(path, "https://127.0.0.1:2", name, groups, NOW), "another address"
    assert made.refresh_kubeconfig(path, "https://127.0.0.1:2", name, groups, NOW + timedelta(days=360)), (
        "old"
    )
    path.write_text("- not a kubeconfig")
    assert made.refresh_kubeconfig(path, "https://127.0.0.1:2", name, groups, NOW)


def test_tls_files_that_do_not_load_are_named(tmp_path):
    with pytest.raises(pki.PkiError, match=r"none\.crt"):
        pki.server_tls(tmp_path / "none.crt", tmp_path / "none.key", [])
