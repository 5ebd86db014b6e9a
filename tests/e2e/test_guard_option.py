"""`--guarded` on dray's own server: with a guard in charge other schedulers need no courtesy."""

import pytest
from clusters import Cluster


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_only_a_scheduler_without_a_guard_is_careful_beside_others(dray_peer, is_guarded):
    async with Cluster(dray_peer) as cluster:
        await cluster.devices(await cluster.node("a"), "g0", "g1")
        gpu = await cluster.device_class()
        await cluster.template("one", {"name": "r", "deviceClassName": gpu})
        loop = await cluster.start_scheduler(is_guarded=is_guarded)
        await cluster.pod("theirs", templates=["one"], schedulerName="somebody-else")
        await cluster.pod("ours", templates=["one"])
        await cluster.bound("ours")
        assert "theirs" in str(list(loop.caches.pods.items))
        assert loop.caches.has_company() != is_guarded
