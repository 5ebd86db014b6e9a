"""Random allocation cases in the format of `dray plan`: small clusters, every feature, one seed each.

Used by the recorder of upstream's answers (tools/recorders) and by the test that compares with them, so
a case must depend on nothing but its seed: plain `random.Random`, no sets that are iterated, no clock.

Every case draws a *theme*, which switches some features on, because a case in which everything happens
at once nearly always ends in a refusal that says little.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

JsonObject = dict[str, Any]

DEFAULT_GATES = (
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
    "DRAResourceClaimDeviceStatus",
)
ALPHA_GATES = (
    "DRADerivedAttributes",
    "DRADeviceCompatibilityGroups",
    "DRAFractionalCapacityRange",
    "DRAListTypeAttributes",
    "DRAOptionalNodeOperations",
)
CLASS_SELECTORS = {
    "any": [],
    "gpu": ['device.driver == "gpu.test"'],
    "large": [
        'device.driver == "gpu.test"',
        'device.attributes["gpu.test"].?model.orValue("") in ["x200", "x300"]',
    ],
    "fragile": ['device.attributes["gpu.test"].model == "x100"'],  # an error on devices without a model
}
SELECTORS = (
    'device.attributes["gpu.test"].?model.orValue("") == "x100"',
    'device.attributes["gpu.test"].?numa.orValue(0) == 1',
    'device.attributes["gpu.test"].?driverVersion.orValue(semver("0.0.0")).isGreaterThan(semver("1.1.0"))',
    'device.capacity["gpu.test"].?memory.orValue(quantity("0")).compareTo(quantity("4Gi")) >= 0',
    '"shared.test" in device.attributes && has(device.attributes["shared.test"].rack)',
    "device.allowMultipleAllocations",
    'device.driver.endsWith(".test")',
)
FRAGILE_SELECTORS = (
    'device.attributes["gpu.test"].numa == 0',
    'device.attributes["nic.test"].speed > 50',
    'device.capacity["gpu.test"].memory.isGreaterThan(quantity("1Gi"))',
    "device.attributes.size() / 0 == 1",
    "device.nothing == 1",
)
MATCH_ATTRIBUTES = ("gpu.test/numa", "gpu.test/numa", "shared.test/rack", "gpu.test/model", "nic.test/speed")
NODE_LABELS = {"zone": "a", "tier": "fast"}


class CaseGenerator:
    """Draws one case."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.chance
        self.has_partitions = chance(0.3)
        self.has_shares = chance(0.3)
        self.has_taints = chance(0.25)
        self.has_conditions = chance(0.1)
        self.has_errors = chance(0.15)
        self.has_node_selection = chance(0.3)
        self.has_old_generations = chance(0.2)
        self.gates = [gate for gate in DEFAULT_GATES if not chance(0.03)]
        self.gates += [gate for gate in ALPHA_GATES if chance(0.35)]

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def is_on(self, gate: str) -> bool:
        return gate in self.gates

    # --- hardware -----------------------------------------------------------------

    def attributes(self, driver: str) -> JsonObject:
        pick, chance = self.random.choice, self.chance
        found: JsonObject = {}
        if chance(0.85):
            found["model"] = {"string": pick(["x100", "x100", "x200", "x300"])}
        if chance(0.85):
            found["numa"] = {"int": pick([0, 0, 1])}
            if self.is_on("DRAListTypeAttributes") and chance(0.3):
                found["numa"] = {"ints": pick([[0], [0, 1], [1]])}
        if chance(0.4):
            found["driverVersion"] = {"version": pick(["1.0.0", "1.2.0-rc.1", "2.0.0"])}
        if chance(0.5):
            found["shared.test/rack"] = {"string": pick(["r1", "r1", "r2"])}
        if driver == "nic.test" and chance(0.7):
            found["speed"] = {"int": pick([25, 100, 200])}
        if chance(0.1):
            found[f"{driver}/ecc"] = {"bool": chance(0.5)}
        return found

    def capacity(self) -> JsonObject:
        pick, chance = self.random.choice, self.chance
        memory: JsonObject = {"value": pick(["2Gi", "4Gi", "8Gi"])}
        if self.has_shares and chance(0.6):
            policies: list[JsonObject] = [
                {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": "4Gi"}},
                {"default": "1Gi", "validRange": {"min": "512Mi"}},
                {"default": "1Gi", "validValues": ["1Gi", "2Gi"]},
                {"default": "2Gi"},
            ]
            memory["requestPolicy"] = pick(policies)
        found = {"memory": memory}
        if chance(0.3):
            found["cores"] = {"value": str(self.random.randint(1, 8))}
        return found

    def device(self, driver: str, name: str, counter_sets: list[str]) -> JsonObject:
        pick, chance = self.random.choice, self.chance
        found: JsonObject = {"name": name}
        if chance(0.9):
            found["attributes"] = self.attributes(driver)
        if chance(0.75 if self.has_shares else 0.3):
            found["capacity"] = self.capacity()
        if self.has_shares and chance(0.6):
            found["allowMultipleAllocations"] = True
        if counter_sets and chance(0.85):
            consumption: JsonObject = {
                "counterSet": pick(counter_sets),
                "counters": {"slices": {"value": str(self.random.randint(1, 3))}},
            }
            if self.is_on("DRADeviceCompatibilityGroups") and chance(0.5):
                consumption["compatibilityGroups"] = sorted(
                    self.random.sample(["small", "large", "mixed"], self.random.randint(1, 2))
                )
            found["consumesCounters"] = [consumption]
        if self.has_taints and chance(0.4):
            effect = pick(["NoSchedule", "NoExecute", "None"])
            found["taints"] = [
                {"key": pick(["broken", "worn"]), "value": pick(["", "yes"]), "effect": effect}
            ]
        if self.has_conditions and chance(0.4):
            found |= {"bindingConditions": ["attached"], "bindingFailureConditions": ["failed"]}
            if chance(0.5):
                found["bindsToNode"] = True
        return found

    def placement(self) -> JsonObject:
        """Draw which nodes see a slice."""
        if not self.has_node_selection:
            return {"nodeName": "node-1"}
        choices: list[JsonObject] = [
            {"nodeName": "node-1"},
            {"nodeName": "node-1"},
            {"nodeName": "node-2"},
            {"allNodes": True},
            {"nodeSelector": self.node_selector()},
            {"perDeviceNodeSelection": True},
        ]
        return self.random.choice(choices)

    def node_selector(self) -> JsonObject:
        pick = self.random.choice
        requirement: JsonObject = {"key": pick(["zone", "tier", "absent"]), "operator": pick(["In", "NotIn"])}
        requirement["values"] = [pick(["a", "b", "fast"])]
        if self.chance(0.3):
            requirement = {"key": pick(["zone", "absent"]), "operator": pick(["Exists", "DoesNotExist"])}
        return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}

    def pool(self, number: int) -> list[JsonObject]:
        pick, chance, r = self.random.choice, self.chance, self.random
        driver = pick(["gpu.test", "gpu.test", "nic.test"])
        sets = ["board-0", "board-1"][: r.randint(1, 2)] if self.has_partitions and chance(0.8) else []
        n_slices = r.randint(1, 2)
        total = n_slices + bool(sets) + chance(0.04)
        placement, generation = self.placement(), r.randint(1, 3)

        def make(suffix: str, **spec: Any) -> JsonObject:
            pool = {"name": f"pool-{number}", "generation": generation, "resourceSliceCount": total}
            return {
                "metadata": {"name": f"slice-{number}-{suffix}"},
                "spec": {"driver": driver, "pool": pool, **placement, **spec},
            }

        slices = []
        for index in range(n_slices):
            devices: list[JsonObject] = []
            for position in range(r.randint(2, 6)):
                name = "dev-0-0" if chance(0.005) else f"dev-{index}-{position}"
                if devices and chance(0.4):
                    devices.append({**devices[-1], "name": name})
                    continue
                device = self.device(driver, name, sets)
                if placement.get("perDeviceNodeSelection"):
                    choices: list[JsonObject] = [
                        {"nodeName": "node-1"},
                        {"nodeName": "node-2"},
                        {"allNodes": True},
                    ]
                    device |= pick([*choices, {"nodeSelector": self.node_selector()}])
                devices.append(device)
            extra: JsonObject = {}
            if self.is_on("DRAOptionalNodeOperations") and chance(0.2):
                extra["skipNodeOperations"] = ["NodePrepareResources", "NodeUnprepareResources"]
            slices.append(make(f"{index}", devices=devices, **extra))
        if sets:
            published = sets if chance(0.97) else sets[:1]
            counters = [
                {"name": name, "counters": {"slices": {"value": str(r.randint(2, 6))}}} for name in published
            ]
            slices.append(make("counters", sharedCounters=counters))
        if self.has_old_generations and chance(0.6):
            stale = make("stale", devices=[{"name": "dev-stale"}])
            stale["spec"]["pool"]["generation"] += pick([-1, -1, 1])  # a newer one may be half published
            slices.append(stale)
        return slices

    # --- what is asked for ----------------------------------------------------------

    def exactly(self) -> JsonObject:
        pick, chance, r = self.random.choice, self.chance, self.random
        found: JsonObject = {"deviceClassName": pick(["any", "gpu", "gpu", "large"])}
        if self.has_errors and chance(0.2):
            found["deviceClassName"] = pick(["fragile", "absent"])
        if chance(0.3):
            texts = SELECTORS + (FRAGILE_SELECTORS if self.has_errors else ())
            n_selectors = r.randint(1, 2)
            found["selectors"] = [{"cel": {"expression": pick(texts)}} for _ in range(n_selectors)]
        if chance(0.1):
            found["allocationMode"] = "All"
        else:
            found |= {"allocationMode": "ExactCount", "count": pick([1, 1, 1, 1, 2, 3])}
        if self.has_taints and chance(0.5):
            toleration: JsonObject = {"operator": pick(["Exists", "Equal"])}
            if chance(0.7):
                toleration["key"] = pick(["broken", "worn"])
            else:
                toleration["operator"] = "Exists"
            if toleration["operator"] == "Equal" and chance(0.5):
                toleration["value"] = "yes"
            if chance(0.3):
                toleration["effect"] = pick(["NoSchedule", "NoExecute"])
            found["tolerations"] = [toleration]
        if self.has_shares and chance(0.6):
            amount = pick(["1Gi", "1Gi", "1500Mi", "2Gi", "3Gi", "16Gi"])
            found["capacity"] = {"requests": {pick(["memory", "memory", "cores", "nothing"]): amount}}
        if self.is_on("DRADerivedAttributes") and chance(0.3):
            expression = pick(
                [
                    'device.attributes["gpu.test"].?model.orValue("none")',
                    'device.attributes["gpu.test"].?numa.orValue(7)',
                    'device.attributes["gpu.test"].numa',
                ]
            )
            found["derivedAttributes"] = [{"name": "derived.test/key", "expression": expression}]
        return found

    def claim(self, number: int) -> JsonObject:
        pick, chance, r = self.random.choice, self.chance, self.random
        requests: list[JsonObject] = []
        for index in range(pick([1, 1, 2, 3])):
            name = f"req-{index}"
            if chance(0.2):
                alternatives = [{"name": f"sub-{i}", **self.exactly()} for i in range(r.randint(1, 3))]
                requests.append({"name": name, "firstAvailable": alternatives})
                continue
            exactly = self.exactly()
            if chance(0.07):
                exactly["adminAccess"] = True
            requests.append({"name": name, "exactly": exactly})
        constraints: list[JsonObject] = []
        for _ in range(pick([0, 0, 0, 0, 1, 1, 2])):
            attributes = MATCH_ATTRIBUTES
            if self.is_on("DRADerivedAttributes"):
                attributes += ("derived.test/key", "derived.test/key")
            kind = "distinctAttribute" if chance(0.3) else "matchAttribute"
            constraint: JsonObject = {kind: pick(attributes)}
            names = [request["name"] for request in requests if chance(0.7)]
            if names and chance(0.5):
                constraint["requests"] = names
            constraints.append(constraint)
        devices: JsonObject = {"requests": requests}
        if constraints:
            devices["constraints"] = constraints
        if chance(0.1):
            parameters = {"driver": pick(["gpu.test", "nic.test"]), "parameters": {"mode": number}}
            devices["config"] = [{"opaque": parameters, **({"requests": ["req-0"]} if chance(0.5) else {})}]
        return {"metadata": {"name": f"claim-{number}", "namespace": "default"}, "spec": {"devices": devices}}

    # --- what is in use ---------------------------------------------------------------

    def usage(self, slices: list[JsonObject]) -> JsonObject:
        density = self.random.choice([0, 0, 0.1, 0.4])
        whole: list[JsonObject] = []
        shares: list[JsonObject] = []
        amounts: list[JsonObject] = []
        seen = set()
        for resource_slice in slices:
            spec = resource_slice["spec"]
            for device in spec.get("devices", ()):
                key = (spec["driver"], spec["pool"]["name"], device["name"])
                if not self.chance(density) or key in seen:
                    continue
                seen.add(key)
                used: JsonObject = {"driver": key[0], "pool": key[1], "device": key[2]}
                if not device.get("allowMultipleAllocations") or not self.is_on("DRAConsumableCapacity"):
                    whole.append(used)
                    continue
                shares.append({**used, "shareID": f"share-{len(shares)}"})
                if "memory" in device.get("capacity", {}):
                    amounts.append({**used, "consumed": {"memory": self.random.choice(["1Gi", "2Gi"])}})
        return {
            "allocatedDevices": whole,
            "allocatedSharedDevices": shares,
            "aggregatedCapacity": amounts,
        }

    def case(self) -> JsonObject:
        """Draw the case."""
        slices = [each for number in range(self.random.randint(1, 3)) for each in self.pool(number)]
        self.random.shuffle(slices)
        classes = [
            {
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": text}} for text in texts]},
            }
            for name, texts in CLASS_SELECTORS.items()
        ]
        return {
            "features": self.gates,
            "node": {"metadata": {"name": "node-1", "labels": NODE_LABELS}},
            "classes": classes,
            "slices": slices,
            "claims": [self.claim(number) for number in range(self.random.choice([1, 1, 1, 2]))],
            **self.usage(slices),
        }


def random_case(seed: int) -> JsonObject:
    """Return the case of a seed."""
    return CaseGenerator(seed).case()


def digest(case: JsonObject) -> str:
    """Return a short fingerprint, by which a recording knows the case that it was made for."""
    return hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:12]
