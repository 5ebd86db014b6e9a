"""Certificates for servers of the client's tests."""

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from dray.certificates import make_self_signed_certificate


class Pair(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


def make_pair(name):
    pair = make_self_signed_certificate(name, [name], datetime.now(UTC))
    return Pair(pair.certificate_pem, pair.key_pem)


@pytest.fixture(scope="session")
def server_pair():
    """Of a server whose name is not its address: api.internal."""
    return make_pair("api.internal")


@pytest.fixture(scope="session")
def client_pairs():
    """Two client certificates."""
    return make_pair("one"), make_pair("two")
