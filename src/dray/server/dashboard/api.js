// The edge: the Kubernetes API with the user's token. A collection is listed once and then followed by a watch.

const PATHS = {
  nodes: "/api/v1/nodes",
  pods: "/api/v1/pods",
  slices: "/apis/resource.k8s.io/v1/resourceslices",
  claims: "/apis/resource.k8s.io/v1/resourceclaims",
  classes: "/apis/resource.k8s.io/v1/deviceclasses",
  rules: "/apis/resource.k8s.io/v1/devicetaintrules",
};

// A browser opens six connections to a server at most, over all its tabs, and a watch keeps one busy. So only what
// changes all the time is watched, each watch ends soon and so gives way to others; the rest is asked for now and then.
const POLLED = { classes: 5000, rules: 5000 }; // milliseconds
const WATCH_SECONDS = 20;
const PAGE = 500; // objects that one answer of a list has at most
export const LARGEST = 50000; // objects of one collection that the page keeps at most

export class Denied extends Error {}

let token = "";

export function useToken(value) {
  token = value;
}

async function get(path) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${token}`, Accept: "application/json" }, cache: "no-store" });
  if (answer.status === 401) throw new Denied("The server does not know this token, or it has expired.");
  if (answer.status === 403) throw new Denied("This token may not list the objects that the page shows.");
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer;
}

export async function tryToken() {
  await get(`${PATHS.slices}?limit=1`);
}

function keep(store, item) {
  const key = keyOf(item);
  if (store.size >= LARGEST && !store.has(key)) return;
  delete item.metadata.managedFields;
  store.set(key, item);
}

// Read a collection page by page into the store; what is read is shown at once. Returns the version to watch from.
async function readAll(kind, store, changed) {
  const seen = new Set();
  let next = "";
  for (;;) {
    const query = new URLSearchParams({ limit: PAGE });
    if (next) query.set("continue", next);
    const list = await (await get(`${PATHS[kind]}?${query}`)).json();
    for (const item of list.items ?? []) {
      seen.add(keyOf(item));
      keep(store, item);
    }
    next = seen.size < LARGEST ? list.metadata.continue ?? "" : "";
    if (!next) {
      for (const key of [...store.keys()]) if (!seen.has(key)) store.delete(key);
      changed(kind, true);
      return list.metadata.resourceVersion;
    }
    changed(kind, false);
  }
}

// Follow one collection for ever, by a watch or by asking again. `changed(kind, complete)` is called after each page and each piece of a watch.
export async function follow(kind, store, changed, lost) {
  let pause = 500;
  for (;;) {
    try {
      let version = await readAll(kind, store, changed);
      pause = 500;
      if (kind in POLLED) {
        await new Promise((resume) => setTimeout(resume, POLLED[kind]));
        continue;
      }
      for (;;) {
        version = await watch(kind, version, store, changed);
        if (version === null) break;
      }
    } catch (error) {
      if (error instanceof Denied && kind !== "rules") {
        lost(error);
        return;
      }
      if (error instanceof Denied) return;
      lost(error);
      await new Promise((resume) => setTimeout(resume, pause));
      pause = Math.min(pause * 2, 15000);
    }
  }
}

// The newest events of one object; asked for while its details are open, because a cluster has more than a page can hold.
export async function eventsOf(kind, key) {
  const [namespace, name] = key.split("/");
  const query = new URLSearchParams({ fieldSelector: `involvedObject.kind=${kind},involvedObject.name=${name}`, limit: 100 });
  return (await (await get(`/api/v1/namespaces/${encodeURIComponent(namespace)}/events?${query}`)).json()).items ?? [];
}

async function watch(kind, version, store, changed) {
  const query = new URLSearchParams({
    watch: "1", allowWatchBookmarks: "true", timeoutSeconds: WATCH_SECONDS, resourceVersion: version,
  });
  const answer = await get(`${PATHS[kind]}?${query}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return version;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line) continue;
      const event = JSON.parse(line);
      if (event.type === "ERROR") return null;
      version = event.object.metadata.resourceVersion;
      if (event.type === "BOOKMARK") continue;
      if (event.type === "DELETED") store.delete(keyOf(event.object));
      else keep(store, event.object);
    }
    changed(kind, true);
  }
}

export function keyOf(object) {
  const { namespace, name } = object.metadata;
  return namespace ? `${namespace}/${name}` : name;
}
