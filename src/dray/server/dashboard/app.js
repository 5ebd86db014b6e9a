// The page: state from the API, one render per frame, everything reachable by keyboard, all text set as text.

import { Denied, follow, keyOf, tryToken, useToken } from "./api.js";
import { attributeText, buildInventory, holders, ownerColour, partsOf, poolSummaries, shortAmount, shortName } from "./model.js";

const stores = Object.fromEntries(["nodes", "pods", "events", "slices", "claims", "classes", "rules"].map((kind) => [kind, new Map()]));
const state = { view: "map", filter: "", selected: null, inventory: null, colours: new Map(), seen: new Set() };
const byId = (id) => document.getElementById(id);

// --- small DOM helpers ---------------------------------------------------------------

function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function partsPicture(parts) {
  const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const part of parts) {
    picture.append(svg("rect", { x: part.start * 100, y: 0, width: Math.max(1.5, part.size * 100), height: 10, fill: colourOf(part.owner), stroke: "rgb(0 0 0 / .25)", "stroke-width": 0.6 }));
  }
  return picture;
}

function colourOf(owner) {
  if (!state.colours.has(owner)) state.colours.set(owner, ownerColour(state.colours.size));
  return state.colours.get(owner);
}

function matches(...texts) {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const all = texts.join(" ").toLowerCase();
  return words.every((word) => all.includes(word));
}

function age(timestamp) {
  const seconds = Math.max(0, (Date.now() - Date.parse(timestamp)) / 1000);
  if (seconds < 120) return `${Math.round(seconds)}s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)}h`;
  return `${Math.round(seconds / 86400)}d`;
}

// --- views ----------------------------------------------------------------------------

function summaryCards() {
  const rows = [...state.inventory.devices.values()].filter((row) => !row.isPartition);
  const pods = [...stores.pods.values()];
  const pending = pods.filter((pod) => !pod.spec.nodeName && pod.status?.phase === "Pending").length;
  const claims = [...stores.claims.values()];
  const facts = [
    ["nodes", stores.nodes.size],
    ["devices", rows.length],
    ["free", rows.filter((row) => row.state === "free").length],
    ["tainted", rows.filter((row) => row.state === "tainted").length],
    ["claims", `${claims.filter((claim) => claim.status?.allocation).length}/${claims.length}`],
    ["pods waiting", pending],
  ];
  return el("div", { class: "summary" }, ...facts.map(([name, value]) => el("div", { class: "card" }, el("b", { text: value }), name)));
}

function deviceBox(row, pool) {
  const parts = partsOf(row, pool);
  const owners = parts.map((part) => `${part.label}: ${part.owner}`).join(", ");
  const many = pool.rows.filter((other) => !other.isPartition).length > 40;
  const tainted = row.taints.some((taint) => taint.effect !== "None");
  const description = `${row.name}, ${row.model || row.driver}, ${parts.length ? "held" : row.state}${owners ? ` by ${owners}` : ""}${tainted ? ", tainted" : ""}`;
  const box = el(
    "button",
    { type: "button", class: `device ${parts.length ? "held" : row.state}${tainted ? " tainted" : ""}${many ? " small" : ""}`, title: description, "aria-label": description, onclick: () => select({ kind: "device", row, pool }) },
    partsPicture(parts),
    many ? null : el("span", { class: "name", text: parts.length && !(parts.length === 1 && parts[0].size === 1) ? parts.map((part) => part.label).join(" ") : shortName(row) }),
    tainted ? el("span", { class: "mark", text: "!" }) : null,
  );
  return box;
}

function mapView() {
  const boxes = [];
  for (const [name, pools] of [...state.inventory.byNode].sort(([a], [b]) => a.localeCompare(b))) {
    const node = stores.nodes.get(name);
    const shown = pools.filter((pool) => matches(name, pool.driver, ...pool.rows.map((row) => `${row.name} ${row.model} ${row.uses.map((use) => use.claim).join(" ")}`)));
    if (!shown.length && !(pools.length === 0 && matches(name))) continue;
    const ready = node?.status?.conditions?.find((condition) => condition.type === "Ready")?.status === "True";
    const pods = [...stores.pods.values()].filter((pod) => pod.spec.nodeName === name).length;
    const drivers = shown.map((pool) =>
      el("div", { class: "driver" }, el("span", { text: pool.driver, title: `pool ${pool.pool}, generation ${pool.generation}` }), el("div", { class: "devices" }, ...pool.rows.filter((row) => !row.isPartition).map((row) => deviceBox(row, pool)))),
    );
    const words = node ? `${ready ? "ready" : "not ready"}, ${pods} pods${node.spec?.unschedulable ? ", cordoned" : ""}` : "any node";
    boxes.push(el("section", { class: "node" }, el("h2", {}, name || "(every node)", el("small", { text: words })), ...drivers));
  }
  return [summaryCards(), ...(boxes.length ? boxes : [el("p", { class: "empty", text: "No devices are published, or none matches the filter." })])];
}

function tableOf(headers, rows) {
  if (!rows.length) return el("p", { class: "empty", text: "Nothing here, or nothing matches the filter." });
  const head = el("thead", {}, el("tr", {}, ...headers.map((header) => el("th", { scope: "col", text: header }))));
  const body = el("tbody", {}, ...rows.map(({ cells, open }) =>
    el("tr", { tabindex: 0, onclick: open, onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open()) }, ...cells.map((cell) => (cell instanceof Node ? el("td", {}, cell) : el("td", { text: cell ?? "" })))),
  ));
  return el("div", { class: "table-box" }, el("table", {}, head, body));
}

function claimState(claim) {
  if (claim.metadata.deletionTimestamp) return "deleting";
  return claim.status?.allocation ? "allocated" : "pending";
}

function wants(claim) {
  return (claim.spec.devices?.requests ?? [])
    .map((request) => (request.exactly ? [request.exactly] : request.firstAvailable ?? []).map((one) => `${one.allocationMode === "All" ? "all" : one.count ?? 1}× ${one.deviceClassName}`).join(" or "))
    .join("; ");
}

function claimDevices(claim) {
  return (claim.status?.allocation?.devices?.results ?? []).map((result) => `${result.pool}/${result.device}`);
}

function claimsView() {
  const rows = [...stores.claims.values()]
    .filter((claim) => matches(keyOf(claim), wants(claim), claimState(claim), ...claimDevices(claim)))
    .sort((a, b) => keyOf(a).localeCompare(keyOf(b)))
    .map((claim) => ({
      open: () => select({ kind: "claim", key: keyOf(claim) }),
      cells: [keyOf(claim), el("span", { class: `state-${claimState(claim)}`, text: claimState(claim) }), wants(claim), claimDevices(claim).join(", "), (claim.status?.reservedFor ?? []).map((user) => user.name).join(", "), age(claim.metadata.creationTimestamp)],
    }));
  return [tableOf(["Claim", "State", "Wants", "Devices", "Reserved for", "Age"], rows)];
}

function podWords(pod) {
  const scheduled = pod.status?.conditions?.find((condition) => condition.type === "PodScheduled");
  return scheduled?.status === "False" ? scheduled.message ?? "" : pod.status?.message ?? "";
}

function podsView() {
  const rows = [...stores.pods.values()]
    .filter((pod) => matches(keyOf(pod), pod.spec.nodeName ?? "", pod.status?.phase ?? "", podWords(pod)))
    .sort((a, b) => keyOf(a).localeCompare(keyOf(b)))
    .map((pod) => ({
      open: () => select({ kind: "pod", key: keyOf(pod) }),
      cells: [keyOf(pod), el("span", { class: `state-${pod.status?.phase}`, text: pod.status?.phase ?? "" }), pod.spec.nodeName ?? "", podClaims(pod).join(", "), podWords(pod).slice(0, 160), age(pod.metadata.creationTimestamp)],
    }));
  return [tableOf(["Pod", "Phase", "Node", "Claims", "Why it waits", "Age"], rows)];
}

function podClaims(pod) {
  const names = (pod.spec.resourceClaims ?? []).map((entry) => entry.resourceClaimName).filter(Boolean);
  names.push(...(pod.status?.resourceClaimStatuses ?? []).map((entry) => entry.resourceClaimName).filter(Boolean));
  if (pod.status?.extendedResourceClaimStatus) names.push(pod.status.extendedResourceClaimStatus.resourceClaimName);
  return [...new Set(names)];
}

function bar(share) {
  return el("span", { class: "bar", role: "img", "aria-label": `${Math.round(share * 100)} %` }, partsPictureOf(share));
}

function partsPictureOf(share) {
  const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" });
  picture.append(svg("rect", { x: 0, y: 0, width: share * 100, height: 10, fill: "var(--accent)" }));
  return picture;
}

function poolsView() {
  const kinds = poolSummaries(state.inventory)
    .filter((entry) => matches(entry.driver, entry.model))
    .map((entry) => ({
      open: () => ((state.filter = entry.model), (byId("filter").value = entry.model), (location.hash = "#/map")),
      cells: [entry.model, entry.driver, bar(entry.total ? entry.share / entry.total : 0), `${entry.free} of ${entry.total}`, String(entry.cut), entry.tainted ? String(entry.tainted) : "", `${Math.round(entry.fragmentation * 100)} %`],
    }));
  const pools = state.inventory.pools
    .filter((pool) => matches(pool.driver, pool.pool, pool.node))
    .map((pool) => {
      const whole = pool.rows.filter((row) => !row.isPartition);
      const complete = pool.slices.length === pool.expected;
      return {
        open: () => ((state.filter = pool.pool), (byId("filter").value = pool.pool), (location.hash = "#/map")),
        cells: [pool.pool, pool.driver, pool.node || "any", `${whole.filter((row) => row.state === "free").length} of ${whole.length}`, String(pool.rows.length - whole.length), `${pool.slices.length}/${pool.expected}${complete ? "" : " incomplete"}`],
      };
    });
  return [
    summaryCards(),
    el("h2", { text: "By model" }),
    tableOf(["Model", "Driver", "In use", "Free", "Partly used", "Tainted", "Fragmentation"], kinds),
    el("p", { class: "empty", text: "Fragmentation: of what is free, the share that lies in devices which are partly used." }),
    el("h2", { text: "By pool" }),
    tableOf(["Pool", "Driver", "Node", "Free", "Partitions", "Slices"], pools),
  ];
}

function classesView() {
  const rows = [...stores.classes.values()]
    .filter((found) => matches(found.metadata.name, JSON.stringify(found.spec)))
    .map((found) => {
      const expressions = (found.spec.selectors ?? []).map((selector) => selector.cel?.expression ?? "").join(" && ");
      const users = [...stores.claims.values()].filter((claim) => wants(claim).includes(`× ${found.metadata.name}`)).length;
      return { open: () => select({ kind: "class", key: found.metadata.name }), cells: [found.metadata.name, expressions, found.spec.extendedResourceName ?? "", String(users)] };
    });
  return [tableOf(["Class", "Selector", "Extended resource", "Claims"], rows)];
}

// --- details ----------------------------------------------------------------------------

function select(what) {
  state.selected = { ...what, opener: document.activeElement };
  renderDetail();
  byId("detail").querySelector("button")?.focus();
}

function closeDetail() {
  const opener = state.selected?.opener;
  state.selected = null;
  byId("detail").hidden = true;
  if (opener?.isConnected) opener.focus();
  else byId("main").focus();
}

function facts(pairs) {
  const list = el("dl");
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(el("dt", { text: name }), value instanceof Node ? el("dd", {}, value) : el("dd", { text: value }));
  }
  return list;
}

function link(kind, key) {
  return el("a", { href: "#", text: key, onclick: (event) => (event.preventDefault(), select({ kind, key })) });
}

function eventList(kind, key) {
  const found = [...stores.events.values()]
    .filter((event) => event.involvedObject?.kind === kind && `${event.involvedObject.namespace}/${event.involvedObject.name}` === key)
    .sort((a, b) => Date.parse(a.lastTimestamp ?? a.eventTime ?? a.metadata.creationTimestamp) - Date.parse(b.lastTimestamp ?? b.eventTime ?? b.metadata.creationTimestamp));
  if (!found.length) return null;
  return el("div", {}, el("h3", { text: "Events" }), el("ol", {}, ...found.map((event) => el("li", { text: `${event.reason}: ${event.message}` }))));
}

function renderDetail() {
  const box = byId("detail");
  const selected = state.selected;
  if (!selected) return;
  const content = { device: deviceDetail, claim: claimDetail, pod: podDetail, class: classDetail }[selected.kind](selected);
  box.replaceChildren(el("button", { type: "button", class: "close", text: "Close (Esc)", onclick: closeDetail }), ...content.filter(Boolean));
  box.hidden = false;
}

function deviceDetail({ row, pool }) {
  const current = state.inventory.devices.get(`${row.driver}\n${row.pool}\n${row.name}`) ?? row;
  const parts = partsOf(current, pool);
  return [
    el("h2", { text: current.name }),
    facts([["driver", current.driver], ["pool", current.pool], ["node", current.node], ["model", current.model], ["state", current.state], ["blocked by", current.blockedBy], ["taints", current.taints.map((taint) => `${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`).join(", ")]]),
    parts.length ? el("h3", { text: "Held by" }) : null,
    parts.length ? el("ol", {}, ...parts.map((part) => el("li", {}, `${part.label}: `, link("claim", part.owner)))) : null,
    el("h3", { text: "Attributes" }),
    facts(Object.entries(current.device.attributes ?? {}).map(([name, value]) => [name, attributeText(value)])),
    current.device.capacity ? el("h3", { text: "Capacity" }) : null,
    facts(Object.entries(current.device.capacity ?? {}).map(([name, value]) => [name, shortAmount(value.value)])),
  ];
}

function claimDetail({ key }) {
  const claim = stores.claims.get(key);
  if (!claim) return [el("h2", { text: key }), el("p", { text: "This claim is gone." })];
  const users = (claim.status?.reservedFor ?? []).map((user) => link("pod", `${claim.metadata.namespace}/${user.name}`));
  const results = claim.status?.allocation?.devices?.results ?? [];
  const waiting = [...stores.pods.values()].find((pod) => pod.metadata.namespace === claim.metadata.namespace && podClaims(pod).includes(claim.metadata.name) && podWords(pod));
  const selectors = (claim.spec.devices?.requests ?? []).flatMap((request) => (request.exactly ? [request.exactly] : request.firstAvailable ?? []).flatMap((one) => (one.selectors ?? []).map((selector) => selector.cel?.expression ?? "")));
  return [
    el("h2", { text: key }),
    facts([["state", claimState(claim)], ["wants", wants(claim)], ["age", age(claim.metadata.creationTimestamp)], ...users.map((user) => ["reserved for", user])]),
    selectors.length ? el("h3", { text: "Selectors" }) : null,
    ...selectors.map((text) => el("p", { class: "story", text })),
    results.length ? el("h3", { text: "Devices" }) : null,
    results.length ? el("ol", {}, ...results.map((result) => el("li", { text: `${result.request}: ${result.driver}/${result.pool}/${result.device}${Object.entries(result.consumedCapacity ?? {}).map(([name, value]) => ` (${value} of ${name})`).join("")}` }))) : null,
    waiting ? el("h3", { text: "Why it waits" }) : null,
    waiting ? el("p", { class: "story", text: podWords(waiting) }) : null,
    eventList("ResourceClaim", key),
  ];
}

function podDetail({ key }) {
  const pod = stores.pods.get(key);
  if (!pod) return [el("h2", { text: key }), el("p", { text: "This pod is gone." })];
  return [
    el("h2", { text: key }),
    facts([["phase", pod.status?.phase], ["node", pod.spec.nodeName], ["age", age(pod.metadata.creationTimestamp)], ...podClaims(pod).map((name) => ["claim", link("claim", `${pod.metadata.namespace}/${name}`)])]),
    podWords(pod) ? el("h3", { text: "Why it waits" }) : null,
    podWords(pod) ? el("p", { class: "story", text: podWords(pod) }) : null,
    eventList("Pod", key),
  ];
}

function classDetail({ key }) {
  const found = stores.classes.get(key);
  if (!found) return [el("h2", { text: key }), el("p", { text: "This class is gone." })];
  return [el("h2", { text: key }), facts([["extended resource", found.spec.extendedResourceName]]), ...(found.spec.selectors ?? []).map((selector) => el("p", { class: "story", text: selector.cel?.expression ?? "" }))];
}

// --- rendering and keys -------------------------------------------------------------------

const VIEWS = { map: mapView, claims: claimsView, pods: podsView, pools: poolsView, classes: classesView };
let scheduled = false;

function refresh() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render();
  });
}

function render() {
  state.inventory = buildInventory({ nodes: [...stores.nodes.values()], slices: [...stores.slices.values()], claims: [...stores.claims.values()], rules: [...stores.rules.values()] });
  for (const claim of [...stores.claims.keys()].sort()) colourOf(claim);
  for (const anchor of document.querySelectorAll("nav a")) {
    if (anchor.dataset.view === state.view) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  const main = byId("main");
  // Keep the keyboard where it was: the same position in the new page.
  const focusable = () => [...main.querySelectorAll("button, tr[tabindex], a")];
  const at = focusable().indexOf(document.activeElement);
  main.replaceChildren(...VIEWS[state.view]());
  if (at >= 0) focusable()[at]?.focus({ preventScroll: true });
  if (state.selected && !byId("detail").hidden) {
    const inside = byId("detail").contains(document.activeElement);
    renderDetail();
    if (inside) byId("detail").querySelector("button")?.focus({ preventScroll: true });
  }
}

function route() {
  const view = location.hash.replace(/^#\//, "");
  state.view = VIEWS[view] ? view : "map";
  refresh();
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  sessionStorage.setItem("theme", document.documentElement.dataset.theme);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.selected) return closeDetail();
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  const index = "12345".indexOf(event.key);
  if (event.key === "/") (event.preventDefault(), byId("filter").focus());
  else if (event.key === "t") toggleTheme();
  else if (index >= 0) location.hash = `#/${Object.keys(VIEWS)[index]}`;
  else if (["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"].includes(event.key)) {
    const items = [...byId("main").querySelectorAll("button.device, tr[tabindex]")];
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    items[Math.min(items.length - 1, Math.max(0, at + (["ArrowRight", "ArrowDown"].includes(event.key) ? 1 : -1)))].focus();
  }
});

byId("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  refresh();
});
byId("theme").addEventListener("click", toggleTheme);
addEventListener("hashchange", route);
setInterval(refresh, 15000); // ages

// --- signing in ----------------------------------------------------------------------------

function askForToken(message = "") {
  byId("login-error").textContent = message;
  const dialog = byId("login");
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(byId("token").value.trim()), { once: true }));
}

async function signIn() {
  // A link from `dray up` carries the token behind the #, which browsers never send to a server.
  const given = /[#&]token=([^&]+)/.exec(location.hash);
  let token = given ? decodeURIComponent(given[1]) : sessionStorage.getItem("token") ?? "";
  if (given) history.replaceState(null, "", "#/map");
  let message = "";
  for (;;) {
    if (!token) token = await askForToken(message);
    useToken(token);
    try {
      await tryToken();
      sessionStorage.setItem("token", token);
      byId("token").value = "";
      return;
    } catch (error) {
      if (!(error instanceof Denied)) message = `The server does not answer: ${error.message}`;
      else message = error.message;
      sessionStorage.removeItem("token");
      token = "";
    }
  }
}

async function start() {
  if (sessionStorage.getItem("theme")) document.documentElement.dataset.theme = sessionStorage.getItem("theme");
  await signIn();
  route();
  const live = byId("live");
  const changed = (kind) => {
    state.seen.add(kind);
    live.textContent = "live";
    live.className = "";
    refresh();
  };
  const lost = (error) => {
    live.textContent = error instanceof Denied ? error.message : "connection lost, retrying";
    live.className = "lost";
  };
  for (const kind of Object.keys(stores)) follow(kind, stores[kind], changed, lost);
}

start();
