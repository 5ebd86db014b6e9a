"""The 5xx that the adversary excuses: kube-apiserver gives them too, on the same requests after the same history."""

import asyncio
import re
import sys
from pathlib import Path

import peers
import pytest
import yaml
from server_process import GATES

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from attack.findings import expected_failure
from attack.requests import Generator
from attack.servers import Server
from attack.species import setup_requests, species_of
from attack.templates import templates
from attack.wire import HOST, Answer, client_tls, take_answer

REQUESTS = 6_000
# Answers about node agents depend on addresses, and streaming is offered by one side only.
# Requests with two faults, of which dray reports another first. It reads a whole applied object before it merges it;
# upstream looks at numbers, times, quantities and base64 only after conflicts.
EARLIER = re.compile(
    r"failed to create typed patch object: (json: cannot unmarshal number|parsing time|illegal base64|quantities must)"
    r"|resourceVersion: Invalid value"
)
NOT_HERE = (
    "the server could not find the requested resource",  # kinds that upstream serves behind other gates
    "found invalid Unicode character escape code",  # YAML upstream reads no JSON escapes of surrogates
    "invalid timeout specified in the request URL",  # dray has no `timeout` parameter
)
ELSEWHERE = ("/log", "/exec", "/attach", "/portforward", "/proxy")


class Line:
    """One kept connection."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def ask(self, request):
        for _ in range(2):
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection(HOST, self.port, ssl=client_tls())
            self.writer.write(request.encode())
            buffer = bytearray()
            async with asyncio.timeout(70):
                while True:
                    piece = await self.reader.read(1 << 18)
                    if not piece:
                        break
                    buffer += piece
                    found = take_answer(buffer)
                    if found is not None:
                        return found
            self.writer.transport.abort()
            self.writer = None
        return Answer(0)


async def differences(own, reference):
    """Return the requests that fail inside dray and not inside kube-apiserver."""
    species = species_of(templates())
    found = {}
    for request in setup_requests(species, "w0"):
        for line in (own, reference):
            await line.ask(request)
    generator = Generator("reference", species, "w0")
    for _ in range(REQUESTS):
        request = generator.next()
        if request.target.partition("?")[0].endswith(ELSEWHERE):
            continue
        answer, wanted = await own.ask(request), await reference.ask(request)
        if EARLIER.match(answer.message()) or any(text in wanted.message() for text in NOT_HERE):
            continue
        if answer.status >= 500 > wanted.status > 0:
            entry = expected_failure(answer.status, answer.message())
            reason = entry.message if entry else "not expected"
            found.setdefault(
                (reason, request.shape, re.sub(r"\d+", "_", answer.message())[:40]),
                (
                    request.record(),
                    answer.status,
                    answer.message()[:300],
                    wanted.status,
                    wanted.message()[:300],
                ),
            )
    return found


@pytest.mark.kubernetes
async def test_what_fails_inside_the_server_fails_in_kubernetes_as_well(tmp_path):
    gates = ",".join(f"{gate}=true" for gate in GATES)
    own = Server(tmp_path / "s")
    with peers.kubernetes(gates, controllers="") as peer:
        port = int(
            yaml.safe_load(peer.kubeconfig.read_text())["clusters"][0]["cluster"]["server"].rpartition(":")[2]
        )
        own.start()
        try:
            found = await differences(Line(own.port), Line(port))
        finally:
            own.stop()
    assert found == {}, "\n".join(f"{key}\n  {value}" for key, value in found.items())
