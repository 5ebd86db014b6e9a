"""Who is compared: a scheduler on an API server with the controllers that belong to it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from bench import stacks
from bench.scheduling.objects import SCHEDULER
from bench.scheduling.workloads import Workload
from bench.stacks import Stack, kubernetes_binaries

Command = Callable[[Stack, Workload], list[object]]

# The default profile; the client's limit is out of the way.
CONFIGURATION = """apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: "%s", qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
profiles: [{schedulerName: %s}]
"""
# What makes claims out of templates and removes them with their pods.
OF_KUBERNETES = "resourceclaim-controller,namespace-controller,garbage-collector-controller"
OF_DRAY = "claims,namespaces,garbage-collector"


def _kube_scheduler(stack: Stack, workload: Workload) -> list[object]:
    binaries = kubernetes_binaries()
    assert binaries is not None
    config = stack.folder / "scheduler.yaml"
    config.write_text(CONFIGURATION % (stack.kubeconfig, SCHEDULER))
    return [
        binaries / "kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1",
        f"--secure-port={stacks.free_ports(1)[0]}", f"--cert-dir={stack.folder}/scheduler-certs",
    ]  # fmt: skip


def _dray_scheduler(stack: Stack, workload: Workload) -> list[object]:
    return [sys.executable, "-m", "dray", "scheduler", "--kubeconfig", stack.kubeconfig, "--name", SCHEDULER]


def _floor(stack: Stack, workload: Workload) -> list[object]:
    return [sys.executable, "-m", "bench.scheduling.floor", stack.port, workload.name, workload.n_nodes]


@dataclass(frozen=True)
class Contender:
    """One row per workload."""

    name: str
    about: str
    on_kubernetes: bool
    command: Command
    explains: bool = True  # tells pods why they cannot be bound

    def start(self) -> AbstractContextManager[Stack]:
        """Start its server and controllers; etcd is spared its fsync, dray's server writes durably as always."""
        if self.on_kubernetes:
            return stacks.kubernetes(durable=False, controllers=OF_KUBERNETES)
        return stacks.dray(durable=True, controllers=OF_DRAY)


KUBE, FLOOR, DRAY, STACK, STACK_FLOOR = "kube", "floor", "dray", "dray-stack", "floor-stack"
CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender(KUBE, "kube-scheduler on kube-apiserver", True, _kube_scheduler),
        Contender(FLOOR, "floor on kube-apiserver", True, _floor, explains=False),
        Contender(DRAY, "dray on kube-apiserver", True, _dray_scheduler),
        Contender(STACK, "dray on dray server", False, _dray_scheduler),
        Contender(STACK_FLOOR, "floor on dray server", False, _floor, explains=False),
    )
}
USUAL = [KUBE, FLOOR, DRAY, STACK]
