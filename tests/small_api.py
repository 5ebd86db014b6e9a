"""A small API server in memory, as a transport: for tests of node and driver that need no real one.

It stores any resource, gives out uids and revisions, and serves get, list, watch,
create, update, patch (merge) and delete with field selectors and pages. It neither
validates nor defaults. Objects with finalizers stay until those are gone. Faults:
`is_away` cuts all connections.
"""

import asyncio
import copy
import itertools
import json
from urllib.parse import parse_qsl, unquote

from dray.client import Client
from dray.client.errors import TransportError
from dray.client.transport import Request, Response


class SmallApi:
    """A transport that answers from memory."""

    def __init__(self):
        self.objects = {}  # path -> object
        self.requests = []  # "VERB path", in order
        self.is_away = False
        self.versions = {"v1", "v1beta1", "v1beta2"}  # of resource.k8s.io
        self.tokens = {"admin": "admin"}  # token -> user, for TokenReviews
        self.allowed = {"admin"}  # users, for SubjectAccessReviews
        self.on_stored = lambda obj: None  # may change an object as it is stored, as a gate would
        self._revision = itertools.count(1)
        self._uid = itertools.count(1)
        self._watches = []

    def client(self):
        return Client(self)

    async def close(self):
        pass

    async def send(self, request: Request) -> Response:
        if self.is_away:
            raise TransportError(f"{request}: the server is away")
        await asyncio.sleep(0)
        path, _, query = request.target.partition("?")
        query = dict(parse_qsl(query))
        self.requests.append(f"{request.method} {path}")
        body = json.loads(request.body) if request.body else None
        try:
            return self._answer(request, unquote(path), query, body)
        except KeyError:
            return _status(404, "NotFound", f"{path} not found")

    def _answer(self, request, path, query, body):
        group_version = path.split("/")[:4]
        if group_version[2:3] == ["resource.k8s.io"] and group_version[3] not in self.versions:
            raise KeyError(path)
        if path.count("/") == 3 and path.startswith("/apis/"):
            return _json({"kind": "APIResourceList", "resources": []})
        method = request.method
        if method == "GET" and query.get("watch"):
            return self._watch(path, query)
        if method == "GET" and path in self.objects:
            return _json(self.objects[path])
        if method == "GET":
            return self._list(path, query)
        if method == "POST" and path.endswith("/tokenreviews"):
            user = self.tokens.get(body["spec"]["token"])
            return _json({**body, "status": {"authenticated": user is not None, "user": {"username": user}}})
        if method == "POST" and path.endswith("/subjectaccessreviews"):
            return _json({**body, "status": {"allowed": body["spec"]["user"] in self.allowed}})
        if method == "POST":
            return self._create(path, body)
        base, sub = (path[: -len("/status")], "status") if path.endswith("/status") else (path, "")
        old = self.objects[base]
        if method == "DELETE":
            return self._delete(base, old, body or {})
        new = _merged(old, body) if method == "PATCH" else body
        return self._replace(base, old, new, sub)

    def _list(self, path, query):
        last = path.rsplit("/", 1)[1]
        if path.count("/") > 3 and any(p == path for p in self.objects):
            raise KeyError(path)
        items = [
            copy.deepcopy(obj)
            for key, obj in self.objects.items()
            if _is_in(key, path) and _selected(obj, query.get("fieldSelector"))
        ]
        if not items and not last.endswith("s"):
            raise KeyError(path)
        if not items and self._is_object_path(path):
            raise KeyError(path)
        revision = max((int(obj["metadata"]["resourceVersion"]) for obj in self.objects.values()), default=0)
        metadata = {"resourceVersion": str(revision)}
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        if limit and begin + limit < len(items):
            metadata["continue"] = str(begin + limit)
        page = items[begin : begin + limit] if limit else items[begin:]
        return _json({"kind": "List", "metadata": metadata, "items": page})

    @staticmethod
    def _is_object_path(path):
        parts = path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            rest = rest[2:]
        return len(rest) > 1

    def put(self, path, obj):
        """Store an object as if a client had created it; returns it with uid."""
        collection, _, name = path.rpartition("/")
        obj = copy.deepcopy(obj)
        obj.setdefault("metadata", {})["name"] = name
        parts = path.split("/")
        if "namespaces" in parts and parts[-2] != "namespaces":
            obj["metadata"]["namespace"] = parts[parts.index("namespaces") + 1]
        response = self._create(collection, obj)
        return json.loads(response.body)

    def _create(self, path, body):
        meta = body.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{next(self._uid):05d}"
        parts = path.split("/")
        if "namespaces" in parts and parts[-1] != "namespaces":
            meta.setdefault("namespace", parts[parts.index("namespaces") + 1])
        key = f"{path}/{meta['name']}"
        if key in self.objects:
            return _status(409, "AlreadyExists", f"{key} already exists")
        meta.setdefault("uid", f"00000000-0000-4000-8000-{next(self._uid):012d}")
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.on_stored(body)
        return self._store(key, body, "ADDED", 201)

    def _replace(self, key, old, new, sub):
        meta = new.get("metadata", {})
        if meta.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            return _status(409, "Conflict", f"{key} has changed")
        if sub:
            new = {**copy.deepcopy(old), "status": new.get("status", {})}
        else:
            new = {**copy.deepcopy(new), **({"status": old["status"]} if "status" in old else {})}
        new["metadata"]["uid"] = old["metadata"]["uid"]
        self.on_stored(new)
        if old["metadata"].get("finalizers") and not new["metadata"].get("finalizers"):
            if old["metadata"].get("deletionTimestamp"):
                return self._remove(key, new)
        return self._store(key, new, "MODIFIED", 200)

    def _delete(self, key, old, options):
        conditions = options.get("preconditions", {})
        for field in ("uid", "resourceVersion"):
            if conditions.get(field) not in (None, old["metadata"][field]):
                return _status(409, "Conflict", f"{key}: {field} differs")
        grace = options.get(
            "gracePeriodSeconds", old.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        )
        if old.get("kind") == "Pod" and grace and old.get("spec", {}).get("nodeName"):
            new = copy.deepcopy(old)
            new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
            new["metadata"]["deletionGracePeriodSeconds"] = grace
            return self._store(key, new, "MODIFIED", 200)
        if old["metadata"].get("finalizers"):
            new = copy.deepcopy(old)
            new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self._store(key, new, "MODIFIED", 200)
        return self._remove(key, old)

    def _remove(self, key, old):
        del self.objects[key]
        gone = copy.deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(next(self._revision))
        self._tell(key, "DELETED", gone)
        return _json(gone)

    def _store(self, key, obj, kind, code):
        obj["metadata"]["resourceVersion"] = str(next(self._revision))
        self.objects[key] = copy.deepcopy(obj)
        self._tell(key, kind, obj)
        return _json(obj, code)

    def _tell(self, key, kind, obj):
        line = json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"
        for path, selector, queue in self._watches:
            if _is_in(key, path) and _selected(obj, selector):
                queue.put_nowait(line)

    def _watch(self, path, query):
        queue = asyncio.Queue()
        since = int(query.get("resourceVersion") or 0)
        for key, obj in sorted(
            self.objects.items(), key=lambda pair: int(pair[1]["metadata"]["resourceVersion"])
        ):
            if _is_in(key, path) and _selected(obj, query.get("fieldSelector")):
                if int(obj["metadata"]["resourceVersion"]) > since:
                    line = (
                        json.dumps({"type": "ADDED", "object": obj}, separators=(",", ":")).encode() + b"\n"
                    )
                    queue.put_nowait(line)
        entry = (path, query.get("fieldSelector"), queue)
        self._watches.append(entry)

        async def pieces():
            try:
                while True:
                    yield await queue.get()
            finally:
                self._watches.remove(entry)

        return Response(200, {}, pieces=pieces())


def _is_in(key, collection):
    folder, _, _ = key.rpartition("/")
    if folder == collection:
        return True
    # A namespaced object is also in the collection of all namespaces.
    head, sep, tail = folder.partition("/namespaces/")
    return bool(sep) and "/" in tail and f"{head}/{tail.split('/', 1)[1]}" == collection


def _selected(obj, selector):
    for term in filter(None, (selector or "").split(",")):
        field, _, value = term.partition("=")
        is_wanted = not field.endswith("!")
        field = field.removesuffix("!")
        found = obj
        for part in field.split("."):
            found = (found or {}).get(part)
        if ((found or "") == value) is not is_wanted:
            return False
    return True


def _merged(old, patch):
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    new = dict(old)
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = _merged(old.get(key), value)
    return new


def _json(obj, code=200):
    return Response(code, {}, json.dumps(obj).encode())


def _status(code, reason, message):
    return _json({"kind": "Status", "code": code, "reason": reason, "message": message}, code)
