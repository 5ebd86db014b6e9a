"""Random histories: a small cluster that changes step by step, with one question after each step; one seed each.

Used by the recorder of upstream's answers (tools/recorders) and by the tests, so a history depends on nothing but
its seed and on the answers that are committed: plain `random.Random`, no sets that are iterated, no clock.

A `History` is the truth as an API server would hold it. `step` changes it and returns the changes as (kind, value)
pairs, for an allocator that follows them; `question` is the claims and the node that are asked about next; `case` is
the whole state with that question in the format of `dray plan`, and `upstream_case` the same as upstream's allocator
wants it: rules are taints of devices, allocated claims are devices in use. `commit` puts an answer into claims.

Among the steps are those that drivers and administrators should not make but can: a slice that changes without a
new generation, half a generation, a pool that moves to another node, a device in use that is published no longer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from random_cases import CLASS_SELECTORS, NODE_LABELS, CaseGenerator, JsonObject

Change = tuple[str, Any]

NODES = ("node-1", "node-2")
N_QUESTIONS = 4  # lists of claims that a history asks about again and again
MOST_SLICES = 12
OTHER_CLASS_SELECTORS = (
    [],
    ['device.driver == "nic.test"'],
    ['device.attributes["gpu.test"].?model.orValue("") != "x100"'],
    ['device.attributes["gpu.test"].?numa.orValue(1) == 0'],
    ['device.attributes["gpu.test"].numa == 0'],
)
SKIPS = "DRAOptionalNodeOperations"


def device_class(name: str, texts: list[str]) -> JsonObject:
    """Return a class."""
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": text}} for text in texts]},
    }


class History(CaseGenerator):
    """A cluster that changes."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.random
        self.has_old_generations = False  # here they come about by themselves
        self.has_rules = self.has_taints and self.chance(0.7)
        self.slices: dict[str, JsonObject] = {}
        self.classes = {name: device_class(name, texts) for name, texts in CLASS_SELECTORS.items()}
        self.rules: dict[str, JsonObject] = {}
        self.nodes = {name: self.node(name) for name in NODES}
        self.allocated: dict[str, JsonObject] = {}  # uid -> claim
        self._n_pools = 0
        self._n_claims = 0
        self._n_shares = 0
        self._to_publish: list[JsonObject] = []  # slices of generations that are half published
        for _ in range(r.randint(1, 3)):
            self.publish_pool()
        self.questions = [
            [self.claim(0)] if self.chance(0.7) else [self.claim(0), self.claim(1)]
            for _ in range(N_QUESTIONS)
        ]
        for claims in self.questions[N_QUESTIONS // 2 :]:
            _simplify(claims)
        self.question = self._question()
        self._steps: list[tuple[float, Callable[[], list[Change]]]] = [
            (3, self.change_slice),
            (2, self.publish_generation),
            (3, self.publish_next),
            (1, self.remove_slice),
            (1, self.publish_pool),
            (1, self.move_slice),
            (3, self.allocate),
            (4, self.release),
            (1.5, self.change_class),
            (1.5, self.change_node),
            (3 if self.has_rules else 0, self.change_rule),
        ]

    def node(self, name: str) -> JsonObject:
        """Draw a node."""
        labels = dict(NODE_LABELS) if self.chance(0.5) else {"zone": self.random.choice(["a", "b"])}
        found: JsonObject = {"metadata": {"name": name, "labels": labels}}
        if self.is_on(SKIPS) and self.chance(0.4):
            found["status"] = {"declaredFeatures": [SKIPS]}
        return found

    # --- steps --------------------------------------------------------------------

    def start(self) -> list[Change]:
        """Return everything there is, as changes of an empty cluster."""
        return [
            *[("class", each) for each in self.classes.values()],
            *[("node", each) for each in self.nodes.values()],
            *[("slice", each) for each in self.slices.values()],
            *[("rule", each) for each in self.rules.values()],
        ]

    def step(self) -> list[Change]:
        """Change something, draw the next question, and return the changes."""
        r = self.random
        weights = [weight for weight, _ in self._steps]
        changes: list[Change] = []
        for _ in range(r.choice([1, 1, 1, 2, 3])):
            [(_, change)] = r.choices(self._steps, weights)
            changes += change()
        self.question = self._question()
        return changes

    def _question(self) -> tuple[str, list[JsonObject]]:
        """Draw what is asked next; the second node has fewer devices."""
        [node] = self.random.choices(NODES, (4, 1))
        return node, self.random.choice(self.questions)

    def _set(self, resource_slice: JsonObject) -> list[Change]:
        self.slices[resource_slice["metadata"]["name"]] = resource_slice
        return [("slice", resource_slice)]

    def _delete(self, name: str) -> list[Change]:
        del self.slices[name]
        return [("no slice", name)]

    def _some_slice(self) -> JsonObject | None:
        return self.random.choice(list(self.slices.values())) if self.slices else None

    def publish_pool(self) -> list[Change]:
        """Publish a new pool, all of it or slice by slice."""
        if len(self.slices) > MOST_SLICES:
            return self.remove_slice()
        slices = self.pool(self._n_pools)
        if self.chance(0.2):
            slices = [_moved(each, {"nodeName": "node-2"}) for each in slices]
        self._n_pools += 1
        at_once = len(slices) if self.chance(0.7) or not self.slices else self.random.randint(0, len(slices))
        self._to_publish += slices[at_once:]
        return [change for each in slices[:at_once] for change in self._set(each)]

    def publish_generation(self) -> list[Change]:
        """Begin the next generation of a pool; its slices replace others, or old ones stay for now."""
        chosen = self._some_slice()
        if chosen is None:
            return self.publish_pool()
        pool = chosen["spec"]["pool"]
        new = self.pool(int(pool["name"].partition("-")[2]))
        for each in new:
            each["spec"]["driver"] = chosen["spec"]["driver"]
            each["spec"]["pool"]["generation"] = pool["generation"] + (0 if self.chance(0.1) else 1)
            if "nodeName" in chosen["spec"] and "nodeName" in each["spec"]:
                each["spec"]["nodeName"] = chosen["spec"]["nodeName"]
        n_first = self.random.randint(1, len(new))
        self._to_publish = [
            each for each in self._to_publish if each["spec"]["pool"]["name"] != pool["name"]
        ] + new[n_first:]
        return [change for each in new[:n_first] for change in self._set(each)]

    def publish_next(self) -> list[Change]:
        """Go on with a generation, or clean up a slice of an old one."""
        if self._to_publish:
            return self._set(self._to_publish.pop(0))
        newest: dict[str, int] = {}
        for each in self.slices.values():
            pool = each["spec"]["pool"]
            newest[pool["name"]] = max(newest.get(pool["name"], 0), pool["generation"])
        old = [
            name
            for name, each in self.slices.items()
            if each["spec"]["pool"]["generation"] < newest[each["spec"]["pool"]["name"]]
        ]
        return self._delete(self.random.choice(old)) if old else []

    def remove_slice(self) -> list[Change]:
        """Remove a slice; it may come back."""
        chosen = self._some_slice()
        if chosen is None:
            return []
        if self.chance(0.6):
            self._to_publish.append(chosen)
        return self._delete(chosen["metadata"]["name"])

    def move_slice(self) -> list[Change]:
        """Publish a slice for other nodes than before."""
        chosen = self._some_slice()
        if chosen is None or chosen["spec"].get("perDeviceNodeSelection"):
            return []
        choices: list[JsonObject] = [{"nodeName": name} for name in ("node-1", *NODES)]
        choices += [{"allNodes": True}, {"nodeSelector": self.node_selector()}]
        return self._set(_moved(chosen, self.random.choice(choices)))

    def change_slice(self) -> list[Change]:
        """Change the devices, counters or promised number of a slice without a new generation."""
        chosen = self._some_slice()
        if chosen is None:
            return []
        new = copy.deepcopy(chosen)
        spec = new["spec"]
        if self.chance(0.08):
            spec["pool"]["resourceSliceCount"] = self.random.randint(1, 3)
        devices = spec.get("devices")
        if devices is None:
            for each in spec["sharedCounters"]:
                each["counters"]["slices"]["value"] = str(self.random.randint(1, 6))
            return self._set(new)
        self._change_devices(spec, devices)
        return self._set(new)

    def _change_devices(self, spec: JsonObject, devices: list[JsonObject]) -> None:
        r = self.random
        position = r.randrange(len(devices)) if devices else 0
        kind = r.random()
        if kind < 0.15 and len(devices) > 1:
            del devices[position]
        elif kind < 0.25:
            devices[:] = r.sample(devices, len(devices))
        elif kind < 0.5 and devices and self.has_taints:
            if devices[position].pop("taints", None) is None:
                devices[position]["taints"] = [{"key": "worn", "effect": r.choice(["NoSchedule", "None"])}]
        else:
            sets = ["board-0", "board-1"] if any("consumesCounters" in each for each in devices) else []
            name = devices[position]["name"] if devices else "dev-0-0"
            device = self.device(spec["driver"], name, sets[: r.randint(1, 2)])
            if spec.get("perDeviceNodeSelection"):
                device |= r.choice([{"nodeName": "node-1"}, {"nodeName": "node-2"}, {"allNodes": True}])
            if devices:
                devices[position] = device
            else:
                devices.append(device)

    def change_class(self) -> list[Change]:
        """Let a class come, go, or select other devices."""
        name = self.random.choice(list(CLASS_SELECTORS))
        if name in self.classes and self.chance(0.15):
            del self.classes[name]
            return [("no class", name)]
        texts = CLASS_SELECTORS[name] if self.chance(0.5) else self.random.choice(OTHER_CLASS_SELECTORS)
        self.classes[name] = device_class(name, texts)
        return [("class", self.classes[name])]

    def change_node(self) -> list[Change]:
        """Give a node other labels and features."""
        name = self.random.choice(NODES)
        self.nodes[name] = self.node(name)
        return [("node", self.nodes[name])]

    def change_rule(self) -> list[Change]:
        """Let a DeviceTaintRule come, go or change."""
        r = self.random
        name = f"rule-{r.randrange(2)}"
        if name in self.rules and self.chance(0.5):
            del self.rules[name]
            return [("no rule", name)]
        chosen = self._some_slice()
        selector: JsonObject = {}
        if chosen is not None and self.chance(0.8):
            selector["pool"] = chosen["spec"]["pool"]["name"]
            if chosen["spec"].get("devices") and self.chance(0.6):
                selector["device"] = r.choice(chosen["spec"]["devices"])["name"]
        if self.chance(0.3):
            selector["driver"] = r.choice(["gpu.test", "nic.test"])
        effect = r.choice(["NoSchedule", "NoExecute", "None"])
        taint = {"key": r.choice(["broken", "worn"]), "value": r.choice(["", "yes"]), "effect": effect}
        self.rules[name] = {
            "metadata": {"name": name},
            "spec": {"deviceSelector": selector, "taint": taint},
        }
        return [("rule", self.rules[name])]

    # --- what is in use -----------------------------------------------------------

    def allocate(self) -> list[Change]:
        """Let somebody else's claim hold devices, whatever they are."""
        results: list[JsonObject] = []
        for _ in range(self.random.choice([1, 1, 2])):
            chosen = self._some_slice()
            devices = chosen["spec"].get("devices") if chosen is not None else None
            if chosen is None or not devices:
                continue
            device = self.random.choice(devices)
            result: JsonObject = {
                "request": "req-0",
                "driver": chosen["spec"]["driver"],
                "pool": chosen["spec"]["pool"]["name"],
                "device": device["name"],
            }
            if device.get("allowMultipleAllocations") and self.is_on("DRAConsumableCapacity"):
                result["shareID"] = self._share_id()
                if "memory" in device.get("capacity", {}):
                    result["consumedCapacity"] = {"memory": self.random.choice(["1Gi", "2Gi"])}
            elif self.chance(0.05):
                result["adminAccess"] = True
            results.append(result)
        return self._hold({"devices": {"results": results}})

    def _share_id(self) -> str:
        self._n_shares += 1
        return f"00000000-0000-4000-9000-{self._n_shares:012}"

    def _hold(self, allocation: JsonObject) -> list[Change]:
        self._n_claims += 1
        uid = f"uid-{self._n_claims}"
        claim: JsonObject = {
            "metadata": {"name": f"held-{self._n_claims}", "namespace": "default", "uid": uid},
            "status": {"allocation": allocation},
        }
        self.allocated[uid] = claim
        return [("claim", claim)]

    def commit(self, results: list[JsonObject]) -> list[Change]:
        """Put an answer (one allocation per claim that was asked about) into claims."""
        changes: list[Change] = []
        for allocation in copy.deepcopy(results):
            for result in allocation["devices"].get("results") or ():
                if "shareID" in result:  # upstream's are random
                    result["shareID"] = self._share_id()
            changes += self._hold(allocation)
        return changes

    def release(self) -> list[Change]:
        """Delete an allocated claim, or deallocate it."""
        if not self.allocated:
            return []
        uid = self.random.choice(list(self.allocated))
        claim = self.allocated.pop(uid)
        if self.chance(0.5):
            return [("no claim", uid)]
        return [("claim", {**claim, "status": {}})]

    # --- as a case ----------------------------------------------------------------

    def case(self) -> JsonObject:
        """Return the whole state with the question, as `dray plan` reads it."""
        node, claims = self.question
        return {
            "features": self.gates,
            "node": self.nodes[node],
            "classes": list(self.classes.values()),
            "slices": list(self.slices.values()),
            "claims": claims,
            "taintRules": list(self.rules.values()),
            "allocatedClaims": list(self.allocated.values()),
        }

    def upstream_case(self) -> JsonObject:
        """Return the same for upstream's allocator, which knows neither rules nor claims that are allocated."""
        found = self.case()
        rules = found.pop("taintRules")
        # By name: where slices disagree about their number, upstream goes by the first of the list.
        slices = sorted(found["slices"], key=lambda each: str(each["metadata"]["name"]))
        found["slices"] = [_with_taints(each, rules) for each in slices]
        return found | _in_use(found.pop("allocatedClaims"), has_shares=self.is_on("DRAConsumableCapacity"))


def _simplify(claims: list[JsonObject]) -> None:
    """Make claims easier to satisfy: most that are drawn ask for too much."""
    del claims[1:]
    devices = claims[0]["spec"]["devices"]
    del devices["requests"][1:]
    devices.pop("constraints", None)
    devices.pop("config", None)
    if "count" in devices["requests"][0].get("exactly", {}):
        devices["requests"][0]["exactly"]["count"] = 1


def _moved(resource_slice: JsonObject, placement: JsonObject) -> JsonObject:
    """Return the slice for other nodes."""
    places = ("nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection")
    if resource_slice["spec"].get("perDeviceNodeSelection"):
        return resource_slice
    spec = {key: value for key, value in resource_slice["spec"].items() if key not in places}
    return {**resource_slice, "spec": {**spec, **placement}}


def _with_taints(resource_slice: JsonObject, rules: list[JsonObject]) -> JsonObject:
    """Return a slice with the taints of rules, as upstream's tracker of slices adds them."""
    spec = resource_slice["spec"]
    devices = []
    for device in spec.get("devices", ()):
        taints = list(device.get("taints", ()))
        for rule in rules:
            chosen = rule["spec"]["deviceSelector"]
            place = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
            if all(place[key] == value for key, value in chosen.items()):
                taints.append(rule["spec"]["taint"])
        devices.append({**device, "taints": taints} if taints else device)
    return {**resource_slice, "spec": {**spec, "devices": devices}} if devices else resource_slice


def _in_use(claims: list[JsonObject], *, has_shares: bool) -> JsonObject:
    """Return what allocated claims hold, as upstream's scheduler plugin counts it."""
    whole: list[JsonObject] = []
    shares: list[JsonObject] = []
    amounts: list[JsonObject] = []
    for claim in claims:
        for result in claim["status"]["allocation"]["devices"].get("results") or ():
            if result.get("adminAccess"):
                continue
            used = {key: result[key] for key in ("driver", "pool", "device")}
            if not has_shares or "shareID" not in result:
                whole.append(used)
                continue
            shares.append({**used, "shareID": result["shareID"]})
            if result.get("consumedCapacity"):
                amounts.append({**used, "consumed": result["consumedCapacity"]})
    return {"allocatedDevices": whole, "allocatedSharedDevices": shares, "aggregatedCapacity": amounts}
