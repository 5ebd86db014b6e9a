"""The verbs of the client, on a transport that answers what a test wants."""

import pytest

from dray.api.resource import ResourceClaim
from dray.client import Client, Response, TransportError
from dray.client import resources as kinds


class Answering:
    """Gives every request the same answer."""

    def __init__(self, body):
        self.body = body

    async def send(self, request):
        return Response(200, {}, self.body)

    async def close(self):
        pass


async def test_null_where_a_list_should_be_is_nothing():
    # Go leaves no empty lists out here: `status.devices[].conditions` has no omitempty.
    body = b'{"metadata":{"name":"c"},"status":{"devices":[{"driver":"d","conditions":null}]}}'
    claim = await Client(Answering(body)).get(kinds.CLAIMS, "c", "ns", view=ResourceClaim)
    assert claim.status.devices[0].driver == "d"
    assert claim.status.devices[0].conditions == []


@pytest.mark.parametrize("body", [b'{"metadata": 7}', b'{"metadata":', b"<html>"])
async def test_an_answer_that_cannot_be_read_counts_as_none(body):
    with pytest.raises(TransportError, match="cannot be read"):
        await Client(Answering(body)).get(kinds.CLAIMS, "c", "ns", view=ResourceClaim)
