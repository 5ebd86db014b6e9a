"""Continue tokens of lists come from clients: what they hold is checked before it is used."""

import base64
import json

import pytest

from dray.server.objects.continue_tokens import read_token
from dray.server.requests.errors import ApiError


def token(**content):
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def test_a_token_of_ours_is_read():
    assert read_token(token(v="meta.k8s.io/v1", rv=7, start="default/a\0")) == (7, "default/a")


@pytest.mark.parametrize("revision", [1 << 63, -(1 << 63) - 1, 10**30, "7", None, 0])
def test_a_revision_that_cannot_be_one_is_a_bad_request(revision):
    with pytest.raises(ApiError) as refused:
        read_token(token(v="meta.k8s.io/v1", rv=revision, start="a"))
    assert refused.value.code == 400
