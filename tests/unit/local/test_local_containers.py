"""Containers of a system that goes away are ended, under whichever name their folder is known."""

import os
from pathlib import Path

import msgspec
import pytest
from conditions import until

from dray.api.cdi import ContainerEdits
from dray.api.podspec import RunPod
from dray.local.containers import end_containers
from dray.node.runtime import ContainerId
from dray.node.runtime.contract import Launch
from dray.node.runtime.process import ProcessRuntime


@pytest.mark.parametrize("name", ["nodes", "link"])
async def test_containers_that_were_started_under_another_name_of_the_folder_are_ended(tmp_path, name):
    nodes = tmp_path / "nodes"
    (nodes / "n1").mkdir(parents=True)
    (tmp_path / "link").symlink_to(nodes)
    agent = ProcessRuntime(tmp_path / name / "n1", lambda *_told: None)
    box = {"name": "main", "image": "x"}
    metadata = {"name": "p", "namespace": "d", "uid": "u1"}
    pod = msgspec.convert({"metadata": metadata, "spec": {"containers": [box]}}, RunPod)
    command = ["sh", "-c", f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 600"]
    log = tmp_path / name / "n1/logs/main.log"
    launch = Launch(
        ContainerId("u1", "main", 0), pod, pod.spec.containers[0], command, (), (), ContainerEdits(), log
    )
    await agent.start(launch)
    await until((tmp_path / "pid").exists)
    await agent.close()  # its containers outlive it
    pid = int((tmp_path / "pid").read_text())
    assert await end_containers(nodes, "process") == 1
    await until(lambda: not Path(f"/proc/{pid}").exists())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await end_containers(nodes, "process") == 0
