"""What the tests ask of the cluster: pods with devices, logs, slices, waiting for something with a bound."""

import json
import re
import time
from pathlib import Path

import yaml
from cluster_setup import PATIENCE, ClusterError

TIMEOUT = f"--timeout={PATIENCE:.0f}s"  # for kubectl and helm
KINDS = (
    "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,deployments,daemonsets,services,leases,secrets,"
    "configmaps,poddisruptionbudgets,validatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,deviceclasses,resourceslices,resourceclaims,pods,replicasets,controllerrevisions"
)


class Objects:
    """The cluster's objects, through kubectl."""

    def __init__(self, rig):
        self.rig = rig
        self.kubectl = rig.kubectl

    # --- looking --------------------------------------------------------------------

    def get(self, *words):
        """Return objects as data."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def items(self, *words):
        """Return a list of objects as data."""
        return self.get(*words)["items"]

    def slices(self):
        """Return what drivers publish."""
        return self.items("resourceslices")

    def everything(self):
        """Return the names of all objects that an installation could leave behind.

        Leases of nodes are not among them: kubelet makes them when it likes, before or after a cluster is called empty.
        """
        return {
            (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
            for item in self.items(KINDS, "-A")
            if not item["metadata"]["name"].startswith(("default", "kube-root-ca"))
            and item["metadata"].get("namespace") != "kube-node-lease"
        }

    def driver_pods(self, name):
        """Return the pods of a driver's DaemonSet that are not about to end."""
        found = self.items("pods", "-n", "dray-system", "-l", f"app.kubernetes.io/name=dray-driver-{name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def guard_judges(self):
        """Return whether one guard is ready and its webhook is in force."""
        pods = self.items("pods", "-n", "dray-system", "-l", "app.kubernetes.io/name=dray-guard")
        ready = [pod for pod in pods if condition(pod, "Ready") == "True"]
        webhook = self.get("validatingwebhookconfiguration", "dray-guard")
        return len(ready) == 1 and bool(webhook.get("webhooks"))

    # --- waiting --------------------------------------------------------------------

    def until(self, look, what, seconds=PATIENCE):
        """Return the first true answer; an error says what was awaited and how the pods are.

        A look that fails (a busy API server answers late, an object is not there yet) is not an answer.
        """
        end, problem = time.monotonic() + seconds, ""
        while True:
            try:
                if found := look():
                    return found
                problem = ""
            except ClusterError as error:
                problem = f"; the last look failed: {error}"
            if time.monotonic() > end:
                awaited = what() if callable(what) else what
                raise AssertionError(f"waited {seconds:.0f} s for {awaited}{problem}\n{self.situation()}")
            time.sleep(0.3)

    def situation(self):
        """Return pods and the latest events, for the message of a failure."""
        pods = self.kubectl("get", "pods,resourceclaims", "-A", "-o", "wide", check=False)
        events = self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False)
        return pods + "\n".join(events.splitlines()[-25:])

    # --- pods -----------------------------------------------------------------------

    def apply(self, *documents):
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    def make_pod(self, name, **settings):
        """Create a pod with a claim from a template; returns when it was accepted."""
        self.apply(*pod_with_device(name, **settings))

    def phase(self, name):
        """Return a pod's phase."""
        return self.kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)

    def run_pod(self, name, **settings):
        """Create a pod with a device and wait until its container has printed its environment."""
        self.make_pod(name, **settings)
        return self.until(lambda: self.environment(name), f"the pod {name} with its device")

    def environment(self, name):
        """Return the devices that a pod's container was told about, once it has started."""
        log = self.kubectl("logs", name, check=False)
        if "\nstarted\n" not in "\n" + log:
            return {}
        return dict(line.split("=", 1) for line in log.splitlines() if "=" in line)

    def claim_of(self, name):
        """Return the claim that was made for a pod."""
        pod = self.get("pod", name)
        return self.get("resourceclaim", pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])

    def remove_pod(self, *names, wait=True):
        """Delete pods."""
        self.kubectl("delete", "pod", *names, f"--wait={'true' if wait else 'false'}", TIMEOUT)

    def container_id(self, name):
        """Return what identifies the running container of a pod."""
        return self.get("pod", name)["status"]["containerStatuses"][0]["containerID"]


def condition(document, kind):
    """Return the status of a condition."""
    return next(
        (each["status"] for each in document["status"].get("conditions", ()) if each["type"] == kind), ""
    )


def template_of(device_class, count=1):
    """Return a claim template."""
    request = {"name": "device", "exactly": {"deviceClassName": device_class, "count": count}}
    name = f"{count}-{device_class}"
    spec = {"spec": {"devices": {"requests": [request]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod_with_device(name, device_class="gpu.nvidia.com", scheduler="dray", node="", count=1, grace=1):
    """Return a claim template and a pod that prints its environment and waits."""
    template = template_of(device_class, count)
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "env | grep -E '^(DRAY|GO_|GPU_)' | sort; echo started; exec sleep 3600"],
        "resources": {"claims": [{"name": "device"}]},
    }
    spec = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": grace,
        "containers": [container],
        "resourceClaims": [{"name": "device", "resourceClaimTemplateName": template["metadata"]["name"]}],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return template, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def devices_of(claim):
    """Return `pool/device` of everything that a claim holds."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return [f"{result['pool']}/{result['device']}" for result in results]


def cdi_files(node, uid):
    """Return the CDI specs on a node that belong to a claim."""
    return [
        path for path in Path(node.folder, "cdi").iterdir() if uid in path.name or uid in path.read_text()
    ]


def simulated_devices(environment):
    """Return the devices of our simulated driver that a container was told about: DRAY_DEVICE_GPU_0=driver/pool/device."""
    return [value for name, value in environment.items() if re.fullmatch(r"DRAY_DEVICE_[A-Z]+_[0-9]+", name)]
