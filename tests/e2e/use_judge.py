"""Is anything in use twice? Judged live, in the order in which the server made the changes.

A device is *in use* when its claim is allocated and reserved for a pod that is bound and not
finished, or for the group of such a pod. Two claims may hold one device for a moment while two schedulers race (one of them
yields before it binds); two claims in use never may.

Pods and claims come from two watches. Their events are put back into one order by
resourceVersion: an event is judged once both watches have passed it. So no verdict mixes a
new pod with an old claim. Watches are resumed where they broke off, over restarts of the server.
"""

import asyncio
import heapq

import checker

from dray.client import ClientError, Gone
from dray.client import resources as kinds


class UseJudge:
    """Follows the pods and claims of one namespace."""

    def __init__(self, client, namespace, inventory):
        self.problems = []
        self.races = 0  # allocations of a device that another claim held; whoever came later must yield
        self.bound = set()  # uids of all pods that were ever bound, as far as it is judged
        self.heard = set()  # the same, as far as it was heard
        self.resumed = 0
        self._client, self._namespace = client, namespace
        self._in_use, self._held = checker.Ledger(inventory), checker.Ledger(inventory)
        self._alive = {}  # user (a pod's uid, a group's name) -> uids of its pods that are bound and not finished
        self._claims = {}  # uid -> claim
        self._histories = {}  # claim name -> what happened to it, for complaints
        self._users = {}  # user -> uids of claims reserved for it
        self._waiting = []  # heap of (revision, number, resource, kind of event, object)
        self._seen = {kinds.PODS: 0, kinds.CLAIMS: 0}
        self._number = 0

    async def run(self):
        """Follow both collections until cancelled."""
        await asyncio.gather(self._follow(kinds.PODS), self._follow(kinds.CLAIMS))

    def finish(self):
        """Judge what is left when nothing more will come."""
        self._seen = dict.fromkeys(self._seen, float("inf"))
        self._judge_ready()

    async def _follow(self, resource):
        version = None
        while True:
            try:
                if version is None:
                    listed = await self._client.list(resource, self._namespace)
                    version = listed.metadata.resource_version
                    for item in listed.items:
                        self._push(resource, "ADDED", item)
                watch = self._client.watch(resource, self._namespace, resourceVersion=version)
                async for event in watch:
                    version = event.object["metadata"]["resourceVersion"]
                    self._push(resource, event.type, event.object)
            except Gone:
                self.problems.append(f"the watch of {resource.plural} could not be resumed")
                raise
            except ClientError:
                await asyncio.sleep(0.05)
            self.resumed += 1

    def _push(self, resource, kind, item):
        revision = int(item["metadata"]["resourceVersion"])
        if revision < self._seen[resource] and kind != "ADDED":
            self.problems.append(f"{resource.plural}: event of {revision} after {self._seen[resource]}")
        if resource is kinds.PODS and item["spec"].get("nodeName"):
            self.heard.add(item["metadata"]["uid"])
        self._number += 1
        heapq.heappush(self._waiting, (revision, self._number, resource, kind, item))
        self._seen[resource] = max(self._seen[resource], revision)
        self._judge_ready()

    def _judge_ready(self):
        passed = min(self._seen.values())
        while self._waiting and self._waiting[0][0] <= passed:
            _, _, resource, kind, item = heapq.heappop(self._waiting)
            is_gone = kind == "DELETED"
            (self._pod if resource is kinds.PODS else self._claim)(item, is_gone)

    def _pod(self, pod, is_gone):
        uid = pod["metadata"]["uid"]
        is_bound = bool(pod["spec"].get("nodeName"))
        if is_bound:
            self.bound.add(uid)
        alive = is_bound and not is_gone and pod["status"].get("phase") not in ("Succeeded", "Failed")
        for user in _holders(pod):
            pods = self._alive.setdefault(user, set())
            (pods.add if alive else pods.discard)(uid)
            for claim in self._users.get(user, ()):
                self._judge(self._claims[claim])
        if alive:
            self.problems += self._lacks(pod)

    def _lacks(self, pod):
        """A bound pod has all its claims: allocated, and reserved for it."""
        meta = pod["metadata"]
        made = {each["name"]: each for each in pod["status"].get("resourceClaimStatuses") or ()}
        held = (claim for user in _holders(pod) for claim in self._users.get(user, ()))
        ready = {self._claims[claim]["metadata"]["name"] for claim in held}
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or made.get(entry["name"], {}).get("resourceClaimName")
            if name is None and _group_of(pod):
                name = next((each for each in ready if each.startswith(f"{_group_of(pod)}-")), None)
            if name not in ready:
                history = self._histories.get(name)
                yield f"{meta['name']} is bound at {meta['resourceVersion']} without {entry}: {name} {history}"

    def _claim(self, claim, is_gone):
        uid = claim["metadata"]["uid"]
        self._histories.setdefault(claim["metadata"]["name"], []).append(_glance(claim, is_gone))
        for user in _users(self._claims.pop(uid, {})):
            self._users[user].discard(uid)
        if is_gone:
            self._held.see(claim, is_gone=True)
            self._in_use.see(claim, is_gone=True)
            return
        self._claims[uid] = claim
        for user in _users(claim):
            self._users.setdefault(user, set()).add(uid)
        self.races += bool(self._held.see(claim))
        self._judge(claim)

    def _judge(self, claim):
        idle = not any(self._alive.get(user) for user in _users(claim))
        self.problems += self._in_use.see(claim, is_gone=idle)


def _users(claim):
    return [
        f"group {each['name']}" if each.get("resource") == "podgroups" else each["uid"]
        for each in (claim.get("status") or {}).get("reservedFor") or ()
    ]


def _group_of(pod):
    return (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")


def _holders(pod):
    """As whom a pod may hold claims: itself, and its group."""
    return [pod["metadata"]["uid"], *([f"group {_group_of(pod)}"] if _group_of(pod) else [])]


def _glance(claim, is_gone):
    status = claim.get("status") or {}
    devices = ",".join(each["device"] for each in checker.results_of(claim))
    fate = "gone" if is_gone else "deleting" if "deletionTimestamp" in claim["metadata"] else ""
    users = ",".join(each["name"] for each in status.get("reservedFor") or ())
    return f"{claim['metadata']['resourceVersion']}:[{devices}]->[{users}]{fate}"
