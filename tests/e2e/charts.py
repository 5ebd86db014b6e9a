"""Render the Helm chart and the kustomize folders, as objects by kind and name."""

import subprocess
from pathlib import Path

import peers
import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "dray"
DRIVERS = ("cpu", "fpga", "network", "nvidia", "sim", "tpu")
EVERYTHING = [
    word
    for setting in (
        "controllers.enabled=true",
        "commonLabels.team=infra",
        "scheduler.policy=pack",
        "exporter.enabled=true",
        "logFormat=json",
        "metrics.dashboard.enabled=true",
        "scheduler.featureGates.DRADeviceTaints=true",
        "imagePullSecrets[0].name=registry",
        *(f"drivers.{name}.enabled=true" for name in DRIVERS),
        "drivers.sim.metricsPort=9090",
        "drivers.sim.deviceMetadata=true",
    )
    for word in ("--set", setting)
]


def program(name):
    """Return the path of a program that tools/peers builds."""
    folder = peers.kubernetes_binaries()
    if folder is None or not (folder / name).exists():
        pytest.skip(f"{name} is not built: run tools/peers/build and tools/peers/build-node helm")
    return folder / name


def helm(*words, config=None, check=True):
    """Run helm; returns stdout, or with `check=False` what it complained about."""
    command = [program("helm"), *(["--kubeconfig", config] if config else []), *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, check=False)
    if not check:
        return done.stderr if done.returncode else ""
    assert done.returncode == 0, done.stderr
    return done.stdout


def template(*words, release="dray", namespace="dray-system"):
    """Return the chart's objects."""
    return parse(
        helm("template", release, CHART, "--namespace", namespace, "--kube-version", "v1.37.1", *words)
    )


def kustomize(*folders):
    """Return the objects of kustomize folders."""
    texts = [
        subprocess.run(
            [program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=True
        ).stdout
        for folder in folders
    ]
    return parse("\n---\n".join(texts))


def parse(text):
    """Return the objects of a stream of documents by kind and name."""
    objects = {}
    for document in yaml.safe_load_all(text):
        if document:
            key = (document["kind"], document["metadata"]["name"])
            assert key not in objects or objects[key] == document, f"{key} is there twice"
            objects[key] = document
    return objects
