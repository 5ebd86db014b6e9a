"""Claims whose opaque parameters were written with blanks, as many clients do, are scheduled like others."""

from clusters import Cluster

from dray.client import NotFound
from dray.client import resources as kinds

SPEC = """{"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "%s"}}], "config": [
  {"opaque": {"driver": "d.example.com", "parameters": { "b" : 1.0, "a" : [ "x", null ], "A": "\\u00e9" } } } ] } }"""


async def test_parameters_with_blanks_are_no_obstacle(controlled):
    async with Cluster(controlled) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        gpu = await cluster.device_class()
        text = f'{{"metadata": {{"name": "odd"}}, "spec": {{"spec": {SPEC % gpu}}}}}'
        await cluster.client.create(kinds.CLAIM_TEMPLATES, text.encode(), cluster.namespace)
        text = f'{{"metadata": {{"name": "direct"}}, "spec": {SPEC % gpu}}}'
        await cluster.client.create(kinds.CLAIMS, text.encode(), cluster.namespace)
        await cluster.start_scheduler()
        await cluster.pod("made", templates=["odd"])
        await cluster.pod("named", claims=["direct"])
        assert await cluster.bound("made") == "a"
        assert await cluster.bound("named") == "a"
        made = (await cluster.claim_of("made"))["metadata"]["name"]
        for name in (made, "direct"):
            assert len(await cluster.held(name)) == 1
        await cluster.delete_pod("made")

        async def gone():
            try:
                await cluster.get_claim(made)
            except NotFound:
                return True

        await cluster.until(gone, "the claim of the pod goes with it")
