"""Keys and certificates: names, lifetimes and key types, and the files they are written to."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dray import certificates
from dray.certificates import (
    make_ca,
    make_client_certificate,
    make_self_signed_certificate,
    make_serving_certificate,
    server_tls,
    write_pair,
)
from dray.host.files import write_private

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def common_name(certificate):
    return certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value


def extension(certificate, of):
    return certificate.extensions.get_extension_for_class(of).value


def hosts_of(certificate):
    return [str(name.value) for name in extension(certificate, x509.SubjectAlternativeName)]


def mode_of(path):
    return path.stat().st_mode & 0o777


def test_an_authority_lasts_ten_years_and_signs_certificates():
    ca = make_ca("authority", NOW)
    assert common_name(ca.certificate) == "authority"
    assert ca.certificate.issuer == ca.certificate.subject
    assert ca.certificate.not_valid_before_utc == NOW - timedelta(days=1)
    assert ca.certificate.not_valid_after_utc == NOW + timedelta(days=3650)
    assert extension(ca.certificate, x509.BasicConstraints) == x509.BasicConstraints(True, None)
    assert extension(ca.certificate, x509.KeyUsage).key_cert_sign
    assert isinstance(ca.key.curve, ec.SECP256R1)


def test_an_authority_can_be_kept_from_making_other_authorities():
    ca = make_ca("authority", NOW, path_length=0)
    assert extension(ca.certificate, x509.BasicConstraints).path_length == 0


def test_a_client_certificate_names_user_and_groups_for_one_year():
    ca = make_ca("authority", NOW)
    certificate = make_client_certificate(ca, "ann", ["a", "b"], NOW).certificate
    certificate.verify_directly_issued_by(ca.certificate)
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert (common_name(certificate), [group.value for group in groups]) == ("ann", ["a", "b"])
    assert certificate.not_valid_after_utc == NOW + timedelta(days=365)
    assert list(extension(certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not extension(certificate, x509.BasicConstraints).ca
    with pytest.raises(x509.ExtensionNotFound):
        hosts_of(certificate)


def test_a_serving_certificate_has_names_and_addresses_and_the_lifetime_that_is_asked_for():
    ca = make_ca("authority", NOW)
    pair = make_serving_certificate(ca, "server", ["box", "10.1.2.3", "::1"], NOW, timedelta(days=2))
    assert hosts_of(pair.certificate) == ["box", "10.1.2.3", "::1"]
    assert list(extension(pair.certificate, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert pair.certificate.not_valid_after_utc == NOW + timedelta(days=2)


def test_no_certificate_outlives_its_authority():
    ca = make_ca("authority", NOW)
    late = NOW + timedelta(days=3600)
    certificate = make_serving_certificate(ca, "server", ["box"], late).certificate
    assert certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc


def test_a_self_signed_certificate_lasts_one_year_and_is_valid_since_an_hour():
    pair = make_self_signed_certificate("node", ["localhost", "10.0.0.1"], NOW)
    pair.certificate.verify_directly_issued_by(pair.certificate)
    assert hosts_of(pair.certificate) == ["localhost", "10.0.0.1"]
    assert pair.certificate.not_valid_before_utc == NOW - timedelta(days=1)
    assert pair.certificate.not_valid_after_utc == NOW + timedelta(days=365)


def test_keys_are_readable_by_their_owner_only_and_serve_tls(tmp_path):
    files = tmp_path / "below" / "tls.crt", tmp_path / "below" / "tls.key"
    write_pair(*files, make_self_signed_certificate("node", ["localhost"], NOW))
    assert [mode_of(file) for file in files] == [0o600, 0o600]
    server_tls(*files)
    write_pair(tmp_path / "other.crt", tmp_path / "other.key", make_ca("authority", NOW))
    with pytest.raises(OSError, match="mismatch"):
        server_tls(files[0], tmp_path / "other.key")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_private(tmp_path / "key", b"old")
    with pytest.raises(TypeError):
        write_private(tmp_path / "key", "text, where bytes are due")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("key", b"old")]


def test_the_program_makes_a_certificate_of_a_node(tmp_path):
    line = [sys.executable, "-P", certificates.__file__, str(tmp_path / "pki"), "10.0.0.1"]
    subprocess.run(line, check=True, timeout=60)
    certificate = x509.load_pem_x509_certificate((tmp_path / "pki" / "node.crt").read_bytes())
    assert common_name(certificate) == "dray-node"
    assert hosts_of(certificate) == ["localhost", "127.0.0.1", "10.0.0.1"]
    modes = [mode_of(tmp_path / "pki" / name) for name in ("", "node.crt", "node.key")]
    assert modes == [0o700, 0o600, 0o600]


def test_the_program_refuses_what_is_not_an_address(tmp_path):
    line = [sys.executable, "-P", certificates.__file__, str(tmp_path / "pki"), "not an address"]
    answer = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert answer.returncode != 0 and "does not appear to be an IPv4 or IPv6 address" in answer.stderr
    assert not (tmp_path / "pki").exists()


def test_the_node_agent_does_not_load_the_library_that_makes_certificates():
    program = "import sys, dray.node.agent; sys.exit('cryptography' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
