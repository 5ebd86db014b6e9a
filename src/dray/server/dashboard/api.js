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

// Exchange the code of a link of `dray dashboard` for a token; a code works once.
export async function beginSession(code) {
  const answer = await fetch("/dray/v1/dashboard/session", { method: "POST", headers: { Authorization: `Bearer ${code}` }, cache: "no-store" });
  if (!answer.ok) throw new Denied("This link was used before, or is older than two minutes: `dray dashboard` prints a new one.");
  return answer.json();
}

// Of whom we cannot list everything, we list their own: `home` is the namespace of a user of a shared machine.
function pathOf(kind, home) {
  return home ? PATHS[kind].replace(/(pods|resourceclaims)$/, `namespaces/${home}/$1`) : PATHS[kind];
}

function keep(store, item) {
  const key = keyOf(item);
  if (store.size >= LARGEST && !store.has(key)) return;
  delete item.metadata.managedFields;
  store.set(key, item);
}

// Read a collection page by page into the store; what is read is shown at once. Returns the version to watch from.
async function readAll(kind, store, changed, home) {
  const seen = new Set();
  let next = "";
  for (;;) {
    const query = new URLSearchParams({ limit: PAGE });
    if (next) query.set("continue", next);
    const list = await (await get(`${pathOf(kind, home)}?${query}`)).json();
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
export async function follow(kind, store, changed, lost, namespace = "") {
  let pause = 500;
  let home = ""; // everything, as long as we may
  for (;;) {
    try {
      let version = await readAll(kind, store, changed, home);
      pause = 500;
      if (kind in POLLED) {
        await new Promise((resume) => setTimeout(resume, POLLED[kind]));
        continue;
      }
      for (;;) {
        version = await watch(kind, version, store, changed, home);
        if (version === null) break;
      }
    } catch (error) {
      if (error instanceof Denied && !home && pathOf(kind, namespace) !== PATHS[kind]) {
        home = namespace;
        continue;
      }
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

async function watch(kind, version, store, changed, home) {
  const query = new URLSearchParams({
    watch: "1", allowWatchBookmarks: "true", timeoutSeconds: WATCH_SECONDS, resourceVersion: version,
  });
  const answer = await get(`${pathOf(kind, home)}?${query}`);
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

// The end of what a job printed.
export async function outputOf(key) {
  const [namespace, name] = key.split("/");
  const query = new URLSearchParams({ tailLines: 200, limitBytes: 65536 });
  return (await get(`/api/v1/namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}/log?${query}`)).text();
}

// What the scheduler of a shared machine keeps for everybody, as the values of a ConfigMap's data; null where there is none.
async function record(name) {
  try {
    // As a list, because a browser writes every 404 into its console.
    const query = new URLSearchParams({ fieldSelector: `metadata.name=${name}` });
    const { items } = await (await get(`/api/v1/namespaces/kube-system/configmaps?${query}`)).json();
    const data = items?.[0]?.data;
    if (!data) return null;
    return Object.fromEntries(Object.entries(data).map(([key, text]) => [key, JSON.parse(text)]));
  } catch {
    return null;
  }
}

const RECORDS = { report: ["dray-queue", 5000], usage: ["dray-usage", 30000], history: ["dray-history", 30000] }; // milliseconds

// Ask for these records for ever. `changed` gets those that are new.
export function followRecords(changed) {
  for (const [key, [name, pause]] of Object.entries(RECORDS)) {
    let last = "";
    const ask = async () => {
      if (!document.hidden) {
        const found = await record(name);
        const text = JSON.stringify(found);
        if (text !== last) changed({ [key]: found });
        last = text;
      }
      setTimeout(ask, pause);
    };
    ask();
  }
}
