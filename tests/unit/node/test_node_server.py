"""What the API server asks of a node: logs, commands, and who has which devices."""

import asyncio
import json
import ssl

import aiohttp
import grpc
import pytest
from node_builders import NODE, add_pod, container, eventually, pod, pod_path
from test_node_agent import Cluster

from dray.api.rpc.generated import podresources_v1_pb2 as messages
from dray.api.rpc.generated import podresources_v1_pb2_grpc as services


@pytest.fixture
async def node(tmp_path):
    cluster = Cluster(tmp_path, serves=True)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": "Bearer admin"}
    connector = aiohttp.TCPConnector(ssl=context)
    async with cluster.up(), aiohttp.ClientSession(connector=connector, headers=headers) as session:
        port = cluster.api.objects[f"/api/v1/nodes/{NODE}"]["status"]["daemonEndpoints"]["kubeletEndpoint"][
            "Port"
        ]
        cluster.url, cluster.session = f"https://127.0.0.1:{port}", session
        yield cluster


async def get(node, path):
    async with node.session.get(node.url + path) as answer:
        return answer.status, await answer.text()


async def test_the_node_serves_logs_commands_and_devices(node):
    script = "echo one; echo two >&2; while [ ! -e $GO ]; do sleep 0.02; done; echo three"
    box = container(
        script=script,
        claims=[{"name": "reader-light"}],
        env=[{"name": "GO", "value": str(node.folder / "go")}],
    )
    add_pod(node.api, containers=[box])
    await node.phase("Running")
    await eventually(lambda: node.log().count("\n") >= 2)

    logs = "/containerLogs/default/reader/main"
    assert (await get(node, logs))[1] == "one\ntwo\n"
    assert (await get(node, logs + "?tailLines=1"))[1] == "two\n"
    assert (await get(node, logs + "?previous=true"))[0] == 400
    assert (await get(node, "/containerLogs/default/reader/nobody"))[0] == 404
    assert (await get(node, "/containerLogs/default/nobody/main"))[0] == 404
    assert (await get(node, "/healthz")) == (200, "ok")
    metrics = (await get(node, "/metrics"))[1]
    assert (
        'dra_operations_duration_seconds_count{is_error="false",operation_name="PrepareResources"} 1.0'
        in metrics
    )
    assert 'method_name="NodePrepareResources"' in metrics
    assert json.loads((await get(node, "/pods"))[1])["items"][0]["metadata"]["name"] == "reader"

    assert await run_in(node, ["sh", "-c", "cat; echo $LAMP_0; exit 3"], b"typed") == (b"typedlamp-0\n", 3)
    assert await run_in(node, ["no-such-program"], b"") == (b"", 126)
    await check_pod_resources(node)

    attach = node.url + "/attach/default/reader/main"
    with pytest.raises(aiohttp.WSServerHandshakeError, match="400"):
        await node.session.ws_connect(attach + "?stdin=true&stdout=true")
    attached = await node.session.ws_connect(attach + "?stdout=true", protocols=["v5.channel.k8s.io"])
    following = asyncio.create_task(get(node, logs + "?follow=true"))
    await asyncio.sleep(0.1)
    (node.folder / "go").touch()
    assert await asyncio.wait_for(following, 60) == (200, "one\ntwo\nthree\n")
    # Attached to what comes from then on, and told that it ended.
    assert [(m.data[0], m.data[1:]) async for m in attached if m.data[0] == 1] == [(1, b"three\n")]
    assert (await get(node, "/attach/default/reader/main"))[0] == 400


async def run_in(node, command, stdin):
    """Run a command as `kubectl exec -i` does."""
    query = [("command", word) for word in command] + [
        ("stdin", "true"),
        ("stdout", "true"),
        ("stderr", "true"),
    ]
    output, outcome = b"", None
    async with node.session.ws_connect(
        node.url + "/exec/default/reader/main", params=query, protocols=["v5.channel.k8s.io"]
    ) as socket:
        assert socket.protocol == "v5.channel.k8s.io"
        if stdin:
            await socket.send_bytes(b"\x00" + stdin)
            await socket.send_bytes(b"\xff\x00")
        async for message in socket:
            channel, piece = message.data[0], message.data[1:]
            if channel == 1:
                output += piece
            elif channel == 3:
                outcome = json.loads(piece)
    code = 0 if outcome["status"] == "Success" else int(outcome["details"]["causes"][0]["message"])
    return output, code


async def check_pod_resources(node):
    async with grpc.aio.insecure_channel(f"unix:{node.folder}/pod-resources/kubelet.sock") as channel:
        stub = services.PodResourcesListerStub(channel)
        listed = await stub.List(messages.ListPodResourcesRequest())
        (entry,) = listed.pod_resources
        (resource,) = entry.containers[0].dynamic_resources
        assert (resource.claim_name, resource.claim_resources[0].device_name) == ("reader-light", "lamp-0")
        assert resource.claim_resources[0].cdi_devices[0].name.startswith("k8s.lamp.example.com/claim=")
        one = await stub.Get(messages.GetPodResourcesRequest(pod_name="reader", pod_namespace="default"))
        assert one.pod_resources == entry
        with pytest.raises(grpc.RpcError) as caught:
            await stub.Get(messages.GetPodResourcesRequest(pod_name="nobody", pod_namespace="default"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_logs_of_the_run_before_are_kept(node):
    node.api.put(
        pod_path(), pod(claims=(), restart="Always", containers=[container(script="echo run; exit 1")])
    )
    await eventually(lambda: node.status().get("containerStatuses", [{}])[0].get("restartCount", 0) >= 1)
    assert (await get(node, "/containerLogs/default/reader/main?previous=true")) == (200, "run\n")


async def test_a_container_that_did_not_start_has_no_logs_yet(node):
    node.api.put(
        pod_path(), pod(claims=(), containers=[{"name": "main", "image": "x", "command": ["/no/such"]}])
    )
    await eventually(lambda: node.agent.pods.find("default", "reader"))
    status, text = await get(node, "/containerLogs/default/reader/main")
    assert status == 400
    assert "waiting to start" in text


BAD_LOG_OPTIONS = [
    ("tailLines=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("tailLines=²", 400, 'strconv.ParseInt: parsing "²": invalid syntax'),
    ("tailLines=1_0", 400, "invalid syntax"),
    ("tailLines=99999999999999999999", 400, "value out of range"),
    ("sinceTime=x", 400, 'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"'),
    ("sinceSeconds=", 400, "invalid syntax"),
    ("tailLines=-1", 422, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
    ("limitBytes=-1", 422, "limitBytes: Invalid value: -1: must be greater than 0"),
    ("limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
    ("sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
    (
        "sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z",
        422,
        "at most one of `sinceTime` or `sinceSeconds` may be specified",
    ),
    ("stream=Stdout", 422, "stream: Forbidden: may not be specified"),
]


async def test_options_of_logs_that_cannot_be_used_are_refused_with_a_reason(node):
    node.api.put(pod_path(), pod(claims=(), containers=[container(script="echo one; sleep 30")]))
    await node.phase("Running")
    await eventually(lambda: "one" in node.log())
    for query, status, text in BAD_LOG_OPTIONS:
        answer = await get(node, f"/containerLogs/default/reader/main?{query}")
        assert (answer[0], text in answer[1]) == (status, True), (query, answer)
    for query in ("tailLines=0", "sinceSeconds=9223372036854775807", "sinceTime=0001-01-01T00:00:00Z",
                  "sinceTime=9999-12-31T23:59:59Z", "limitBytes=9223372036854775807", "sinceTime="):  # fmt: skip
        assert (await get(node, f"/containerLogs/default/reader/main?{query}"))[0] == 200, query


async def test_nobody_gets_in_without_credentials(node):
    node.api.put(pod_path(), pod(claims=(), containers=[container()]))
    await node.phase("Running")
    async with aiohttp.ClientSession(connector=node.session.connector, connector_owner=False) as session:
        for path in ("/pods", "/metrics", "/healthz", "/containerLogs/default/reader/main"):
            async with session.get(node.url + path) as answer:
                assert (answer.status, await answer.text()) == (401, "Unauthorized")
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(node.url + "/exec/default/reader/main?command=id")
        assert caught.value.status == 401
