"""Workload controllers: services scale, roll and heal; jobs end; daemons are everywhere; budgets hold."""

import asyncio
import contextlib

from clusters import Cluster
from test_controllers_claims import SOON
from test_controllers_cluster import gone

from dray.client import ClientError, Conflict, NotFound, TooManyRequests
from dray.client import resources as kinds


@contextlib.asynccontextmanager
async def staged(peer, *, broken=None):
    """A cluster whose pods are run by us: all become ready, except those of the image `broken`."""
    async with Cluster(peer) as cluster:
        at_work = cluster.kubelet_at_work = asyncio.Event()
        at_work.set()
        resting = cluster.kubelet_resting = asyncio.Event()

        async def play_kubelet():
            while True:
                if not at_work.is_set():
                    resting.set()
                    await at_work.wait()
                    resting.clear()
                for pod in (await cluster.client.list(kinds.PODS, cluster.namespace)).items:
                    image = pod["spec"]["containers"][0]["image"]
                    if pod["status"].get("phase") == "Pending" and image != broken:
                        with contextlib.suppress(ClientError):
                            await report(cluster, pod["metadata"]["name"], "Running", ready=True)
                await asyncio.sleep(0.05)

        playing = asyncio.create_task(play_kubelet())
        try:
            yield cluster
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            for resource in (kinds.DEPLOYMENTS, kinds.DAEMON_SETS, kinds.JOBS):
                for item in (await cluster.client.list(resource, cluster.namespace)).items:
                    with contextlib.suppress(NotFound):
                        await cluster.client.delete(resource, item["metadata"]["name"], cluster.namespace)


async def report(cluster, pod, phase, *, ready=False):
    """Act as kubelet."""
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    await cluster.client.patch(kinds.PODS, pod, {"status": status}, cluster.namespace, subresource="status")


def template(cluster, image="v1", **spec):
    return {
        "metadata": {"labels": {"app": "x"}},
        "spec": {
            "schedulerName": cluster.scheduler_name,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": image}],
            **spec,
        },
    }


async def deploy(cluster, replicas, image="v1", **spec):
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "x"}},
            "template": template(cluster, image),
            **spec,
        },
    }
    return await cluster.client.create(kinds.DEPLOYMENTS, body, cluster.namespace)


async def change(cluster, **spec):
    await cluster.client.patch(kinds.DEPLOYMENTS, "web", {"spec": spec}, cluster.namespace)


async def pods_of(cluster):
    return [
        pod
        for pod in (await cluster.client.list(kinds.PODS, cluster.namespace)).items
        if "deletionTimestamp" not in pod["metadata"]
    ]


async def served_by(cluster, *images):
    """Wait until exactly these images run and the deployment says so."""

    async def check():
        found = sorted(pod["spec"]["containers"][0]["image"] for pod in await pods_of(cluster))
        status = (await cluster.client.get(kinds.DEPLOYMENTS, "web", cluster.namespace)).get("status") or {}
        return found == sorted(images) and status.get("readyReplicas", 0) == len(images)

    await cluster.until(check, f"served by {images}", SOON)


async def test_a_service_scales_heals_and_rolls(controlled):
    async with staged(controlled) as cluster:
        await deploy(cluster, 3)
        await served_by(cluster, "v1", "v1", "v1")
        await cluster.delete_pod((await pods_of(cluster))[0]["metadata"]["name"])
        await served_by(cluster, "v1", "v1", "v1")
        await change(cluster, replicas=1)
        await served_by(cluster, "v1")
        await change(cluster, replicas=2, template=template(cluster, "v2"))
        await served_by(cluster, "v2", "v2")
        sets = (await cluster.client.list(kinds.REPLICA_SETS, cluster.namespace)).items
        assert sorted(each["spec"]["replicas"] for each in sets) == [0, 2]
        await change(cluster, template=template(cluster, "v1"))  # back: no third set
        await served_by(cluster, "v1", "v1")
        assert len((await cluster.client.list(kinds.REPLICA_SETS, cluster.namespace)).items) == 2
        found = await cluster.client.get(kinds.DEPLOYMENTS, "web", cluster.namespace)
        assert found["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
        await cluster.client.delete(kinds.DEPLOYMENTS, "web", cluster.namespace)

        async def empty():
            return not await pods_of(cluster)

        await cluster.until(empty, "the pods go with their deployment", SOON)


async def test_a_bad_version_takes_nothing_away(controlled):
    async with staged(controlled, broken="bad") as cluster:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        await deploy(cluster, 2, strategy=strategy)
        await served_by(cluster, "v1", "v1")
        await change(cluster, template=template(cluster, "bad"))

        async def tried():
            return any(pod["spec"]["containers"][0]["image"] == "bad" for pod in await pods_of(cluster))

        await cluster.until(tried, "the bad version is tried", SOON)
        await change(cluster, paused=True)
        await change(cluster, replicas=5)  # a paused rollout still scales; once it has, nothing else is due

        async def scaled():
            return len(await pods_of(cluster)) == 5

        await cluster.until(scaled, "five pods", SOON)
        images = [pod["spec"]["containers"][0]["image"] for pod in await pods_of(cluster)]
        assert images.count("v1") == 2, "both good ones are still there"


async def run_job(cluster, name, **spec):
    body = {
        "metadata": {"name": name},
        "spec": {"template": template(cluster, restartPolicy="Never"), **spec},
    }
    del body["spec"]["template"]["metadata"]
    return await cluster.client.create(kinds.JOBS, body, cluster.namespace)


async def job_ends(cluster, name):
    async def check():
        job = await cluster.client.get(kinds.JOBS, name, cluster.namespace)
        for each in (job.get("status") or {}).get("conditions") or ():
            if each["type"] in ("Complete", "Failed") and each["status"] == "True":
                return job, each
        return None

    return await cluster.until(check, f"job {name} ends", SOON)


async def pods_running(cluster, count):
    async def check():
        found = [pod for pod in await pods_of(cluster) if pod["status"].get("phase") == "Running"]
        return found if len(found) == count else None

    return await cluster.until(check, f"{count} pods run", SOON)


async def test_an_indexed_job_runs_every_index_once(controlled):
    async with staged(controlled) as cluster:
        await run_job(cluster, "train", completions=3, parallelism=2, completionMode="Indexed")
        seen = set()
        for _ in range(3):
            pod = (await pods_running(cluster, min(2, 3 - len(seen))))[0]
            index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
            environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
            assert environment["JOB_COMPLETION_INDEX"] == index
            seen.add(index)
            await report(cluster, pod["metadata"]["name"], "Succeeded")
        job, condition = await job_ends(cluster, "train")
        assert condition["type"] == "Complete"
        assert job["status"]["succeeded"] == 3
        assert job["status"]["completedIndexes"] == "0-2"
        assert seen == {"0", "1", "2"}


async def test_success_is_remembered_when_the_pod_is_gone(controlled):
    async with staged(controlled) as cluster:
        await run_job(cluster, "train", completions=2, parallelism=1)
        [first] = await pods_running(cluster, 1)
        await report(cluster, first["metadata"]["name"], "Succeeded")

        async def counted():
            return (await cluster.client.get(kinds.JOBS, "train", cluster.namespace))["status"].get(
                "succeeded"
            )

        await cluster.until(counted, "one success counted", SOON)
        await cluster.delete_pod(first["metadata"]["name"])
        [second] = await pods_running(cluster, 1)
        await report(cluster, second["metadata"]["name"], "Succeeded")


async def test_a_job_that_fails_too_often_fails(controlled):
    async with staged(controlled) as cluster:
        await run_job(cluster, "train", backoffLimit=0)
        [pod] = await pods_running(cluster, 1)
        await report(cluster, pod["metadata"]["name"], "Failed")
        _, condition = await job_ends(cluster, "train")
        assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")


async def test_a_job_past_its_deadline_fails_and_expires(controlled):
    async with staged(controlled) as cluster:
        await run_job(cluster, "train", activeDeadlineSeconds=600)
        await pods_running(cluster, 1)
        # Set one after the other, so that everything can be seen however slow the machine is.
        patch = {"spec": {"activeDeadlineSeconds": 1}}
        await cluster.client.patch(kinds.JOBS, "train", patch, cluster.namespace)
        _, condition = await job_ends(cluster, "train")
        assert (condition["type"], condition["reason"]) == ("Failed", "DeadlineExceeded")
        patch = {"spec": {"ttlSecondsAfterFinished": 1}}
        await cluster.client.patch(kinds.JOBS, "train", patch, cluster.namespace)
        await gone(cluster, kinds.JOBS, "train", cluster.namespace)


async def test_a_daemon_runs_on_every_fitting_node_and_follows_its_template(controlled):
    async with staged(controlled) as cluster:
        for name in ("a", "b"):
            await cluster.node(name, labels={"with": f"gpu-{cluster.number}"})
        await cluster.node("c")
        await cluster.start_scheduler()
        chosen = {"nodeSelector": {"with": f"gpu-{cluster.number}"}}
        body = {
            "metadata": {"name": "driver"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template(cluster, **chosen)},
        }
        await cluster.client.create(kinds.DAEMON_SETS, body, cluster.namespace)

        async def on(image, *nodes):
            async def check():
                found = {
                    (pod["spec"]["containers"][0]["image"], pod["spec"].get("nodeName"))
                    for pod in await pods_of(cluster)
                }
                return found == {(image, f"{node}-{cluster.number}") for node in nodes}

            await cluster.until(check, f"{image} on {nodes}", SOON)

        await on("v1", "a", "b")
        label = {"metadata": {"labels": {"with": f"gpu-{cluster.number}"}}}
        await cluster.client.patch(kinds.NODES, f"c-{cluster.number}", label)
        await on("v1", "a", "b", "c")
        patch = {"spec": {"template": template(cluster, "v2", **chosen)}}
        await cluster.client.patch(kinds.DAEMON_SETS, "driver", patch, cluster.namespace)
        await on("v2", "a", "b", "c")


async def test_a_taint_no_schedule_keeps_new_daemons_away_and_leaves_running_ones(controlled):
    async with staged(controlled) as cluster:
        chosen = {"nodeSelector": {"with": f"gpu-{cluster.number}"}}
        labels = {"with": f"gpu-{cluster.number}"}
        a, _ = await cluster.node("a", labels=labels), await cluster.node("b", labels=labels)
        await cluster.start_scheduler()
        body = {
            "metadata": {"name": "driver"},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template(cluster, **chosen)},
        }
        await cluster.client.create(kinds.DAEMON_SETS, body, cluster.namespace)

        async def by_node():
            return {
                pod["spec"].get("nodeName"): pod["metadata"]["uid"]
                for pod in await pods_of(cluster)
                if not pod["metadata"].get("deletionTimestamp")
            }

        async def on(*nodes):
            async def check():
                return set(await by_node()) == {f"{node}-{cluster.number}" for node in nodes}

            await cluster.until(check, f"daemons on {nodes}", SOON)

        async def desired(count):
            async def check():
                status = (await cluster.client.get(kinds.DAEMON_SETS, "driver", cluster.namespace))["status"]
                return (status["desiredNumberScheduled"], status["numberMisscheduled"]) == (count, 2 - count)

            await cluster.until(check, f"{count} desired", SOON)

        async def taint(effect):
            await cluster.client.patch(
                kinds.NODES, a, {"spec": {"taints": [{"key": "example.com/repair", "effect": effect}]}}
            )

        await on("a", "b")
        await desired(2)
        before = await by_node()
        await taint("NoSchedule")
        await desired(1)  # the controller has seen the taint
        assert await by_node() == before
        await taint("NoExecute")
        await on("b")


async def test_a_budget_lets_go_only_as_many_as_it_may(controlled):
    async with staged(controlled) as cluster:
        budget = {
            "metadata": {"name": "b"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}},
        }
        await cluster.client.create(kinds.DISRUPTION_BUDGETS, budget, cluster.namespace)
        await deploy(cluster, 3)
        await served_by(cluster, "v1", "v1", "v1")

        async def allowed(count):
            async def check():
                found = await cluster.client.get(kinds.DISRUPTION_BUDGETS, "b", cluster.namespace)
                status = found.get("status") or {}
                return status.get("disruptionsAllowed") == count and status.get("expectedPods") == 3

            await cluster.until(check, f"{count} may go", SOON)

        async def evict(pod):
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
            await cluster.client.create(kinds.PODS, body, cluster.namespace, name=pod, subresource="eviction")

        await allowed(1)
        names = [pod["metadata"]["name"] for pod in await pods_of(cluster)]
        cluster.kubelet_at_work.clear()  # no replacement becomes ready, so none makes room for another to go
        await cluster.kubelet_resting.wait()
        results = await asyncio.gather(*map(evict, names), return_exceptions=True)
        granted = [each for each in results if not isinstance(each, BaseException)]
        refused = [each for each in results if isinstance(each, (TooManyRequests, Conflict))]
        assert (len(granted), len(refused)) == (1, 2), results
        cluster.kubelet_at_work.set()
        await served_by(cluster, "v1", "v1", "v1")
        await allowed(1)
