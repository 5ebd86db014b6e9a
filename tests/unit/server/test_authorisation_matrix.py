"""The authorisation matrix over dray's server: the same marks as kube-apiserver's."""

import json
from urllib.parse import parse_qsl

from authorisation_matrix import (
    ADMIN,
    DRIVER,
    JSON,
    ROBOT,
    SUBJECTS,
    TABLE,
    TEAM,
    TOKENS,
    matrix,
    preparation,
    read_table,
    rows,
)
from cryptography.hazmat.primitives.asymmetric import ec

from dray.server.assembly import Cluster, Settings
from dray.server.auth.authentication import parse_token_file
from dray.server.auth.rbac_objects import bootstrap_objects
from dray.server.requests.messages import Request
from dray.server.store import MemoryStore


class Api:
    """Sends requests of the matrix to a server in memory."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.tokens = {}

    async def send(self, token, method, path, body=None, content=JSON):
        path, _, query = path.partition("?")
        token = self.tokens.get(token, token)
        headers = {"content-type": content} | ({"authorization": f"Bearer {token}"} if token else {})
        data = b"" if body is None else json.dumps(body).encode()
        response = await self.cluster.server.handle(
            Request(method, path, tuple(parse_qsl(query)), headers, data)
        )
        if not isinstance(response.body, bytes):
            await response.body.aclose()
            return response.status, b""
        return response.status, response.body


async def dray_matrix():
    settings = Settings(
        static_tokens=parse_token_file(TOKENS), token_key=ec.generate_private_key(ec.SECP256R1())
    )
    cluster = Cluster(MemoryStore(), settings)
    await cluster.start()
    try:
        api = Api(cluster)
        role = next(found for _, found in bootstrap_objects() if found["metadata"]["name"] == "dray:driver")
        for path, body in preparation({"metadata": {"name": "test-driver"}, "rules": role["rules"]}):
            code, answer = await api.send(ADMIN, "POST", path, body)
            assert code in (201, 409), answer
        for token, name in ((ROBOT, "robot"), (DRIVER, "driver")):
            asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            _, answer = await api.send(ADMIN, "POST", f"{TEAM}/serviceaccounts/{name}/token", asked)
            api.tokens[token] = json.loads(answer)["status"]["token"]
        codes = {}
        for row in rows():
            for token in SUBJECTS.values():
                codes[token, row[0]], _ = await api.send(token, *row[1:])
        return matrix(lambda token, row: codes[token, row[0]]), codes
    finally:
        await cluster.stop()


async def test_every_subject_may_do_what_kubernetes_lets_it_do_and_no_more():
    found, codes = await dray_matrix()
    wanted = read_table(TABLE.read_text())
    assert list(found) == list(wanted)
    wrong = [
        f"{subject}: {row}: kube-apiserver {wanted[row][place]}, dray {marks[place]} ({codes[token, row]})"
        for row, marks in found.items()
        for place, (subject, token) in enumerate(SUBJECTS.items())
        if marks[place] != wanted[row][place]
    ]
    assert wrong == [], "\n".join(wrong)


async def test_nothing_in_the_matrix_fails_inside_the_server():
    _, codes = await dray_matrix()
    unexpected = {
        cell: code
        for cell, code in codes.items()
        if code >= 500 and "pods/" not in cell[1] and "nodes/proxy" not in cell[1]
    }
    assert unexpected == {}


def test_the_table_holds_every_row_and_every_subject():
    table = read_table(TABLE.read_text())
    assert [row[0] for row in rows()] == list(table)
    assert len(table) == len(set(table)) > 280
    assert {len(marks) for marks in table.values()} == {len(SUBJECTS)}
