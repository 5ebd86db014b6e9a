"""deploy/helm/dray: linted, refused where values are wrong, equal to the kustomize folders, accepted by a real kube-apiserver."""

import subprocess

import peers
import pytest
import yaml
from charts import CHART, DEPLOY, DRIVERS, EVERYTHING, helm, kustomize, program, template

import dray
from dray.cli.main import make_parser

pytestmark = pytest.mark.kubernetes
OUR_LABELS = ("app.kubernetes.io/", "helm.sh/")


# --- the chart alone -------------------------------------------------------------------


def test_the_chart_passes_helms_own_linter_without_a_warning():
    answer = helm("lint", "--strict", CHART, *EVERYTHING)
    assert "0 chart(s) failed" in answer
    assert "WARNING" not in answer


def test_chart_version_and_package_version_agree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert chart["appVersion"] == chart["version"] == dray.__version__


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("scheduler.replica=3", "replica"),
        ("scheduler.replicas=0", "replicas"),
        ("scheduler.policy=luck", "policy"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("image.digest=sha256:abc", "digest"),
        ("drivers.gpu.driver=amd", "driver"),
        ("drivers.Sim.enabled=true", "Sim"),
        ("drivers.sim.mounts[0].hostPath=/x", "mountPath"),
        ("kubeletDir=relative", "kubeletDir"),
        ("nonsense=1", "nonsense"),
        ("logFormat=xml", "logFormat"),
        ("exporter.maxDevices=0", "maxDevices"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(setting, complaint):
    assert complaint in helm("template", "dray", CHART, "--set", setting, check=False)


def test_a_class_that_the_chart_does_not_know_is_refused_with_those_it_knows():
    words = ["--set", "drivers.sim.enabled=true", "--set", "drivers.sim.classes[0]=gpu.nobody.example"]
    complaint = helm("template", "dray", CHART, *words, check=False)
    assert "gpu.nobody.example" in complaint and "gpu.nvidia.com" in complaint


def test_every_command_line_in_the_chart_and_in_the_kustomize_folders_is_one_that_dray_understands():
    folders = [DEPLOY / "kubernetes" / name for name in (".", "guard", "driver", "controllers")]
    seen = 0
    for objects in (template(*EVERYTHING), kustomize(*folders)):
        for (kind, name), document in objects.items():
            if kind not in {"Deployment", "DaemonSet"}:
                continue
            for container in document["spec"]["template"]["spec"]["containers"]:
                arguments = container["args"]
                make_parser([arguments[0]]).parse_args(
                    arguments
                )  # ends the test where it does not understand
                seen += 1
                assert name
    assert seen == 4 + len(DRIVERS) + 4


MONITORED = ["serviceMonitor", "prometheusRule", "dashboard"]


def test_every_program_that_has_metrics_can_be_monitored():
    switches = [word for name in MONITORED for word in ("--set", f"metrics.{name}.enabled=true")]
    objects = template(*EVERYTHING, *switches, "--set", "metrics.serviceMonitor.labels.release=prom")
    monitors = {name: found for (kind, name), found in objects.items() if kind == "ServiceMonitor"}
    assert set(monitors) == {"dray-scheduler", "dray-exporter", "dray-guard"}
    for name, monitor in monitors.items():
        assert monitor["metadata"]["labels"]["release"] == "prom"
        wanted, (endpoint,) = monitor["spec"]["selector"]["matchLabels"], monitor["spec"]["endpoints"]
        service = objects["Service", name]
        assert wanted.items() <= service["metadata"]["labels"].items()
        (port,) = [port for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
        pod = objects["Deployment", name]["spec"]["template"]
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert port["targetPort"] in {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
    pods = {name: found for (kind, name), found in objects.items() if kind == "PodMonitor"}
    assert set(pods) == {"dray-driver-sim"}  # the only one with a metricsPort
    arguments = objects["DaemonSet", "dray-driver-sim"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--metrics-address=0.0.0.0" in arguments


def test_alerts_and_dashboard_of_the_chart_are_those_of_the_folder():
    folder = DEPLOY / "observability"
    objects = template(*(word for name in MONITORED for word in ("--set", f"metrics.{name}.enabled=true")))
    rules = objects["PrometheusRule", "dray"]["spec"]
    assert rules == yaml.safe_load((folder / "alerts.yaml").read_text("utf-8"))
    config = objects["ConfigMap", "dray-dashboard"]
    assert config["data"]["dray-devices.json"] == (folder / "grafana-dashboard.json").read_text("utf-8")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_with_an_exporter_devices_are_told_of_once():
    def arguments(*words):
        pod = template(*words)["Deployment", "dray-scheduler"]["spec"]["template"]["spec"]
        return pod["containers"][0]["args"]

    assert "--max-devices=0" not in arguments()
    assert "--max-devices=0" in arguments("--set", "exporter.enabled=true")


def test_the_log_format_reaches_every_program():
    for (kind, name), found in template(*EVERYTHING).items():
        if kind in {"Deployment", "DaemonSet"}:
            assert "--log-format=json" in found["spec"]["template"]["spec"]["containers"][0]["args"], name


def test_two_daemon_sets_of_one_driver_have_names_rights_and_nodes_of_their_own():
    words = [
        "--set",
        "drivers.big.driver=sim",
        "--set",
        "drivers.big.enabled=true",
        "--set",
        "drivers.big.profile=dgx-b200",
    ]
    words += ["--set", "drivers.big.nodeSelector.size=big", "--set", "drivers.sim.enabled=true"]
    objects = template(*words)
    big = objects["DaemonSet", "dray-driver-big"]["spec"]["template"]["spec"]
    assert big["nodeSelector"] == {"size": "big"}
    assert big["containers"][0]["args"][:3] == ["driver", "run", "sim"]
    assert "--profile=dgx-b200" in big["containers"][0]["args"]
    assert objects["DaemonSet", "dray-driver-sim"]["spec"]["template"]["spec"].get("nodeSelector") is None
    assert big["serviceAccountName"] == "dray-driver-big"


def test_drivers_have_their_own_rights_and_no_more():
    objects = template(*EVERYTHING)
    for name in DRIVERS:
        pod = objects["DaemonSet", f"dray-driver-{name}"]["spec"]["template"]["spec"]
        context = pod["containers"][0]["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert "--instance=$(POD_UID)" in pod["containers"][0]["args"]
        if name in {"nvidia", "fpga", "network"}:
            assert context["privileged"]
        else:
            assert not context["allowPrivilegeEscalation"] and context["capabilities"]["drop"] == ["ALL"]
        assert bool(pod.get("hostNetwork")) == (name == "network")
    simulated = objects["DaemonSet", "dray-driver-sim"]["spec"]["template"]["spec"]
    assert "add" not in simulated["containers"][0]["securityContext"]["capabilities"]


def test_a_release_of_another_name_and_namespace_shares_no_name_with_the_first():
    # A cluster has one guard, whose webhook has a name of its own.
    others = template(
        "--set", "guard.enabled=false", "--set", "scheduler.name=two", release="two", namespace="elsewhere"
    )
    first = template("--set", "guard.enabled=false")
    assert not set(others) & set(first)
    assert "dray-scheduler-two" in {name for kind, name in others if kind == "Lease"}


# --- the chart and the kustomize folders ---------------------------------------------


def plain(document):
    """Return an object without what the two ways to install name differently on purpose."""
    text = (
        yaml.safe_dump(document)
        .replace("dray-drivers", "dray-system")
        .replace("dray-driver-sim", "dray-driver")
    )
    document = strip(yaml.safe_load(text.replace("registry.example/dray:0.1.0", "dray")))
    document["metadata"].pop("labels", None)
    document["metadata"].pop("namespace", None)  # each way has a test of its own on an API server
    return document


def strip(value):
    """Return a part of an object without the labels of the two ways and without helm's pull policy."""
    if isinstance(value, list):
        return [strip(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {key: strip(inner) for key, inner in value.items() if key != "imagePullPolicy"}
    for key in ("labels", "matchLabels", "selector"):
        if isinstance(kept.get(key), dict) and any(name.startswith(OUR_LABELS) for name in kept[key]):
            kept[key] = {"app": "one"}
    return kept


def test_the_chart_installs_what_the_kustomize_folders_install():
    folders = [DEPLOY / "kubernetes" / name for name in (".", "guard", "driver", "controllers")]
    by_kustomize = {
        (kind, name.replace("dray-driver", "dray-driver-sim")): plain(document)
        for (kind, name), document in kustomize(*folders).items()
    }
    switches = ["--set", "controllers.enabled=true", "--set", "drivers.sim.enabled=true"]
    # The kustomize folders are applied one by one: that of the scheduler does not know of a guard.
    rendered = {**template(*switches), **template(*switches, "--set", "guard.enabled=false")}
    by_chart = {key: plain(document) for key, document in rendered.items()}
    # With helm these are part of the release, so that nothing is left behind; kustomize has no release.
    only_chart = {kind for kind, _ in set(by_chart) - set(by_kustomize)}
    assert only_chart == {
        "Lease",
        "ValidatingWebhookConfiguration",
        "PodDisruptionBudget",
        "DeviceClass",
        "Service",
    }
    assert {kind for kind, _ in set(by_kustomize) - set(by_chart)} == {"Namespace"}
    common = set(by_chart) & set(by_kustomize)
    different = {key for key in common if by_chart[key] != by_kustomize[key]}
    for key in sorted(different - EXPLAINED):
        print(key, yaml.safe_dump(by_kustomize[key]), yaml.safe_dump(by_chart[key]), sep="\n")
    assert different == EXPLAINED


# What kustomize cannot do or helm does not need; each has its test above or in tests/cluster.
EXPLAINED = {
    ("Role", "dray-scheduler"),  # helm makes the leases: no right to create them
    ("Role", "dray-guard"),
    ("Role", "dray-controllers"),
    ("ClusterRole", "dray-guard"),  # helm makes the webhook configuration: no right to create one
}


# --- on a real API server --------------------------------------------------------------


@pytest.fixture(scope="module")
def bare_peer():
    """An API server without controllers: what helm leaves behind stays visible."""
    with peers.kubernetes(controllers="") as peer:
        yield peer


def kubectl(peer, *words, text=None):
    command = [program("kubectl"), "--kubeconfig", peer.kubeconfig, *words]
    return subprocess.run(
        list(map(str, command)), input=text, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_real_api_server_accepts_every_object_of_the_chart(bare_peer):
    objects = template(*EVERYTHING, namespace="default")
    text = yaml.safe_dump_all(objects.values())
    answer = kubectl(bare_peer, "apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr, answer.stderr
    assert len(answer.stdout.splitlines()) == len(objects)


LISTED = (
    "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,deployments,daemonsets,services,leases,secrets,"
    "configmaps,poddisruptionbudgets,validatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,deviceclasses,namespaces"
)


def everything(peer):
    answer = kubectl(peer, "get", LISTED, "-A", "-o", "name")
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


def test_install_upgrade_rollback_and_uninstall_leave_nothing_behind(bare_peer):
    config = bare_peer.kubeconfig
    kubectl(bare_peer, "create", "namespace", "dray-system")
    before = everything(bare_peer)
    helm(
        "install",
        "dray",
        CHART,
        "--namespace",
        "dray-system",
        "--set",
        "drivers.sim.enabled=true",
        config=config,
    )
    installed = everything(bare_peer) - before
    assert "daemonset.apps/dray-driver-sim" in installed
    # The guard fills in its webhook; an upgrade must not take it out again.
    patch = '{"webhooks": [{"name": "guard.dray.dev", "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None",'
    patch += ' "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore"}]}'
    name = "validatingwebhookconfiguration/dray-guard"
    assert kubectl(bare_peer, "patch", name, "--type=merge", "-p", patch).returncode == 0
    helm("upgrade", "dray", CHART, "--namespace", "dray-system", "--reuse-values", "--set", "drivers.sim.enabled=false",
         "--set", "drivers.tpu.enabled=true", config=config)  # fmt: skip
    upgraded = everything(bare_peer)
    assert "daemonset.apps/dray-driver-sim" not in upgraded
    assert "daemonset.apps/dray-driver-tpu" in upgraded
    assert "guard.dray.dev" in kubectl(bare_peer, "get", name, "-o", "json").stdout
    helm("rollback", "dray", "1", "--namespace", "dray-system", config=config)
    releases = "secret/sh.helm.release.v1.dray"
    unwrapped = {each for each in everything(bare_peer) - before if not each.startswith(releases)}
    assert unwrapped == {each for each in installed if not each.startswith(releases)}
    helm("uninstall", "dray", "--namespace", "dray-system", config=config)
    assert everything(bare_peer) == before
