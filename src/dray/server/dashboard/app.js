// The page: state from the API, one render per frame at most, everything reachable by keyboard, all text set as text.
//
// What is drawn is bounded: a map that fits is drawn device by device, a larger one as groups of nodes, which open to
// nodes and then to devices; tables have pages. Where one is, is in the address, so that every place can be linked to.

import { Denied, LARGEST, follow, followRecords, keyOf } from "./api.js";
import { askForMore, closeDetail, openDetail, renderDetail } from "./details.js";
import { become, el, svg } from "./dom.js";
import { GROUPINGS, STATES, buildInventory, claimsOfOthers, groupNodes, holders, isReady, order, partsOf, poolSummaries, shortName, stateCounts, usefulGroupings } from "./model.js";
import { address, age, byId, claimDevices, claimState, colourOf, isWaiting, link, matches, onePage, podClaims, podWords, ROWS, select, state, stores, swatch, tableOf, wants } from "./page.js";
import { historyView, usersView } from "./people.js";
import { signIn } from "./session.js";

const WHOLE_MAP = 1500; // elements of a map that is drawn device by device; see mapSize
const BOXES = 240; // devices of one pool on one page

// --- small parts of the page -----------------------------------------------------------

function partsPicture(parts) {
  const picture = svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const part of parts) {
    picture.append(svg("rect", { x: part.start * 100, y: 0, width: Math.max(1.5, part.size * 100), height: 10, fill: colourOf(part.owner), stroke: "rgb(0 0 0 / .25)", "stroke-width": 0.6 }));
  }
  return picture;
}

// --- views ----------------------------------------------------------------------------

function summaryCards() {
  const rows = [...state.inventory.devices.values()].filter((row) => !row.isPartition);
  const pods = [...stores.pods.values()];
  const claims = [...stores.claims.values()];
  const facts = [
    ["nodes", stores.nodes.size],
    ["devices", rows.length],
    ["free", rows.filter((row) => row.state === "free").length],
    ["tainted", rows.filter((row) => row.state === "tainted").length],
    ["claims", `${claims.filter((claim) => claim.status?.allocation).length}/${claims.length}`],
    ["pods waiting", pods.filter(isWaiting).length],
  ];
  return el("div", { class: "summary" }, ...facts.map(([name, value]) => el("div", { class: "card" }, el("b", { text: value }), name)));
}

// What waits and why, before anything else: pods by the reason that they have in common.
function waitingPart() {
  const byReason = new Map();
  for (const pod of stores.pods.values()) {
    if (!isWaiting(pod)) continue;
    const reason = podWords(pod) || "not looked at by a scheduler yet";
    if (!byReason.has(reason)) byReason.set(reason, []);
    byReason.get(reason).push(keyOf(pod));
  }
  if (!byReason.size) return null;
  const reasons = [...byReason].sort(([a, one], [b, other]) => other.length - one.length || order(a, b));
  const items = reasons.slice(0, 5).map(([reason, keys]) =>
    el("li", { "data-key": reason }, el("b", { text: keys.length === 1 ? "1 pod" : `${keys.length} pods` }), " (", link("pod", keys.sort(order)[0]), keys.length > 1 ? ", …" : "", "): ", reason.slice(0, 300)),
  );
  return el("section", { class: "waiting", "data-key": "waiting", "aria-label": "What waits and why" }, el("h2", { text: "Waiting" }), el("ul", {}, ...items), el("a", { href: "#/pods", text: reasons.length > 5 ? `all waiting pods (${reasons.length - 5} more reasons)` : "all waiting pods" }));
}

const OWNERS = 12; // in the legend

// What colours and boxes mean; on a map of devices also whose colours they are.
function legend(entries = []) {
  const words = { held: "held (a box: colour of its claim)", free: "free", blocked: "blocked by a neighbour", tainted: "tainted" };
  const counts = new Map();
  for (const [, pools] of entries) for (const pool of pools) for (const row of pool.rows) for (const use of holders(row)) counts.set(use.claim, (counts.get(use.claim) ?? 0) + 1);
  const owners = [...counts].sort(([a, one], [b, other]) => other - one || order(a, b));
  const items = owners.slice(0, OWNERS).map(([owner, count]) => el("li", { "data-key": `owner ${owner}` }, swatch(owner), `${owner} (${count})`));
  return el("ul", { class: "legend", "data-key": "legend", "aria-label": "Legend" }, ...STATES.map((name) => el("li", { "data-key": name }, el("span", { class: `swatch ${name}`, "aria-hidden": "true" }), words[name])), ...items, owners.length > OWNERS ? el("li", { "data-key": "more", text: `and ${owners.length - OWNERS} more` }) : null);
}

function deviceBox(row, pool, many) {
  const parts = partsOf(row, pool);
  const owners = parts.map((part) => `${part.label}: ${part.owner}`).join(", ");
  const tainted = row.taints.some((taint) => taint.effect !== "None");
  const description = `${row.name}, ${row.model || row.driver}, ${parts.length ? "held" : row.state}${owners ? ` by ${owners}` : ""}${tainted ? ", tainted" : ""}`;
  const box = el(
    "button",
    { type: "button", "data-key": row.name, class: `device ${parts.length ? "held" : row.state}${tainted ? " tainted" : ""}${many ? " small" : ""}`, title: description, "aria-label": description, onclick: () => select("device", `${row.driver}/${row.pool}/${row.name}`) },
    partsPicture(parts),
    many ? null : el("span", { class: "name", text: parts.length && !(parts.length === 1 && parts[0].size === 1) ? parts.map((part) => part.label).join(" ") : shortName(row) }),
    tainted ? el("span", { class: "mark", text: "!" }) : null,
  );
  return box;
}

function nodeWords(name) {
  const node = stores.nodes.get(name);
  if (!node) return "any node";
  return `${isReady(node) ? "ready" : "not ready"}, ${state.podsByNode.get(name) ?? 0} pods${node.spec?.unschedulable ? ", cordoned" : ""}`;
}

// The elements that a node's devices need at most, see deviceBox.
function mapSize(entries) {
  let size = 0;
  for (const [, pools] of entries) {
    size += 4;
    for (const pool of pools) size += 4 + 5 * pool.rows.length;
  }
  return size;
}

function nodeSection([name, pools]) {
  const drivers = pools.map((pool) => {
    const whole = pool.rows.filter((row) => !row.isPartition);
    const [rows, pages] = onePage(whole, BOXES, `devices of ${pool.pool}`, "devices");
    return el("div", { class: "driver", "data-key": `${pool.driver}\n${pool.pool}` }, el("span", { text: pool.driver, title: `pool ${pool.pool}, generation ${pool.generation}` }), el("div", { class: "devices" }, ...rows.map((row) => deviceBox(row, pool, whole.length > 40))), pages);
  });
  return el("section", { class: "node", "data-key": name }, el("h2", {}, name || "(every node)", el("small", { text: nodeWords(name) })), ...drivers);
}

function countsInWords(counts) {
  return STATES.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`).join(", ") || "no devices";
}

function stateBar(counts) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const picture = svg("svg", { class: "states", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  let start = 0;
  for (const name of STATES) {
    if (!counts[name]) continue;
    const width = (counts[name] / total) * 100;
    picture.append(svg("rect", { class: name, x: start, y: 0, width, height: 10 }));
    start += width;
  }
  return picture;
}

// A row that opens: a group of nodes, or a node.
function zoomRow(key, href, name, words, counts) {
  return el("li", { "data-key": key }, el("a", { class: "zoom", href }, el("span", { class: "zoom-name", text: name }), el("span", { class: "zoom-words", text: words }), stateBar(counts), el("span", { class: "zoom-counts", text: countsInWords(counts) })));
}

function groupList(groups, by, useful) {
  const [here, pages] = onePage(groups, ROWS, "groups");
  const choices = useful.length > 1 ? el("nav", { class: "choices", "data-key": "choices", "aria-label": "Group nodes by" }, "Group by ", ...useful.map((name) => el("a", { "data-key": name, href: address("map", { by: name }), text: GROUPINGS[name], "aria-current": name === by ? "true" : null }))) : null;
  const rows = here.map((group) => zoomRow(group.name, address("map", { by, group: group.name }), group.name, `${group.entries.length} nodes${group.notReady ? `, ${group.notReady} not ready` : ""}`, group.counts));
  return [choices, el("ul", { class: "zoom-list", "data-key": "groups", "aria-label": "Groups of nodes" }, ...rows), pages];
}

function nodeList(group, by) {
  const [here, pages] = onePage(group.entries, ROWS, "nodes");
  const rows = here.map(([name, pools]) => zoomRow(name, address("map", { by, group: group.name, page: state.place.get("page"), node: name || "*" }), name || "(every node)", nodeWords(name), stateCounts(pools)));
  return [el("ul", { class: "zoom-list", "data-key": "nodes", "aria-label": `Nodes of ${group.name}` }, ...rows), pages];
}

// Where the map is zoomed to, with the way back.
function placeLine(...steps) {
  const items = steps.map(([text, href]) => el("li", { "data-key": text }, href ? el("a", { href, text }) : el("h2", { id: "place", tabindex: "-1", text })));
  return el("nav", { class: "place", "data-key": "place", "aria-label": "Place on the map" }, el("ol", {}, ...items));
}

function mapView() {
  const entries = [...state.inventory.byNode]
    .sort(([a], [b]) => order(a, b))
    .map(([name, pools]) => [name, state.filter ? pools.filter((pool) => matches(name, pool.driver, ...pool.rows.map((row) => `${row.name} ${row.model} ${row.uses.map((use) => use.claim).join(" ")}`))) : pools])
    .filter(([name, pools]) => pools.length || (!state.inventory.byNode.get(name).length && matches(name)));
  const isWhole = state.place.get("node") === null && state.place.get("group") === null && mapSize(entries) <= WHOLE_MAP;
  const top = [summaryCards(), waitingPart(), legend(isWhole ? entries : [])];
  const none = el("p", { class: "empty", text: "No devices are published, or none matches the filter." });
  const wantedNode = state.place.get("node");
  const wantedGroup = state.place.get("group");
  if (isWhole) return [...top, ...(entries.length ? entries.map(nodeSection) : [none])];
  const nodes = [...stores.nodes.values()];
  const useful = usefulGroupings(nodes);
  const by = useful.includes(state.place.get("by")) ? state.place.get("by") : useful[0];
  const groupStep = wantedGroup === null ? [] : [[wantedGroup, wantedNode === null ? null : address("map", { by, group: wantedGroup, page: state.place.get("page") })]];
  if (wantedNode !== null) {
    const name = wantedNode === "*" ? "" : wantedNode;
    const found = entries.find(([other]) => other === name);
    return [...top, placeLine(["Map", address("map", { by })], ...groupStep, [name || "(every node)", null]), found ? nodeSection(found) : el("p", { class: "empty", text: "This node is not there, or it does not match the filter." })];
  }
  const groups = groupNodes(entries, stores.nodes, by);
  if (wantedGroup === null) return [...top, ...(groups.length ? groupList(groups, by, useful) : [none])];
  const group = groups.find((other) => other.name === wantedGroup);
  return [...top, placeLine(["Map", address("map", { by })], ...groupStep), ...(group ? nodeList(group, by) : [el("p", { class: "empty", text: "This group is not there, or nothing in it matches the filter." })])];
}

function claimsView() {
  const rows = [...stores.claims.values()]
    .filter((claim) => matches(keyOf(claim), wants(claim), claimState(claim), ...claimDevices(claim)))
    .sort((a, b) => Boolean(a.status?.allocation) - Boolean(b.status?.allocation) || order(keyOf(a), keyOf(b)))
    .map((claim) => () => ({
      key: keyOf(claim),
      open: () => select("claim", keyOf(claim)),
      cells: [keyOf(claim), el("span", { class: `state-${claimState(claim)}`, text: claimState(claim) }), wants(claim), claimDevices(claim).join(", "), (claim.status?.reservedFor ?? []).map((user) => user.name).join(", "), age(claim.metadata.creationTimestamp)],
    }));
  return [tableOf(["Claim", "State", "Wants", "Devices", "Reserved for", "Age"], rows, "claims")];
}

function podsView() {
  const rows = [...stores.pods.values()]
    .filter((pod) => matches(keyOf(pod), pod.spec.nodeName ?? "", pod.status?.phase ?? "", podWords(pod)))
    .sort((a, b) => isWaiting(b) - isWaiting(a) || order(keyOf(a), keyOf(b)))
    .map((pod) => () => ({
      key: keyOf(pod),
      open: () => select("pod", keyOf(pod)),
      cells: [keyOf(pod), el("span", { class: `state-${pod.status?.phase}`, text: pod.status?.phase ?? "" }), pod.spec.nodeName ?? "", podClaims(pod).join(", "), podWords(pod).slice(0, 160), age(pod.metadata.creationTimestamp)],
    }));
  return [tableOf(["Pod", "Phase", "Node", "Claims", "Why it waits", "Age"], rows, "pods")];
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
    .map((entry) => () => ({
      key: `${entry.driver}\n${entry.model}`,
      open: () => ((state.filter = entry.model), (byId("filter").value = entry.model), (location.hash = "#/map")),
      cells: [entry.model, entry.driver, bar(entry.total ? entry.share / entry.total : 0), `${entry.free} of ${entry.total}`, String(entry.cut), entry.tainted ? String(entry.tainted) : "", `${Math.round(entry.fragmentation * 100)} %`],
    }));
  const pools = state.inventory.pools
    .filter((pool) => matches(pool.driver, pool.pool, pool.node))
    .map((pool) => () => {
      const whole = pool.rows.filter((row) => !row.isPartition);
      const complete = pool.slices.length === pool.expected;
      return {
        key: `${pool.driver}\n${pool.pool}`,
        open: () => ((state.filter = pool.pool), (byId("filter").value = pool.pool), (location.hash = "#/map")),
        cells: [pool.pool, pool.driver, pool.node || "any", `${whole.filter((row) => row.state === "free").length} of ${whole.length}`, String(pool.rows.length - whole.length), `${pool.slices.length}/${pool.expected}${complete ? "" : " incomplete"}`],
      };
    });
  return [
    summaryCards(),
    el("h2", { text: "By model" }),
    tableOf(["Model", "Driver", "In use", "Free", "Partly used", "Tainted", "Fragmentation"], kinds, "models", "models"),
    el("p", { class: "empty", text: "Fragmentation: of what is free, the share that lies in devices which are partly used." }),
    el("h2", { text: "By pool" }),
    tableOf(["Pool", "Driver", "Node", "Free", "Partitions", "Slices"], pools, "pools"),
  ];
}

function classesView() {
  const rows = [...stores.classes.values()]
    .filter((found) => matches(found.metadata.name, JSON.stringify(found.spec)))
    .map((found) => () => {
      const expressions = (found.spec.selectors ?? []).map((selector) => selector.cel?.expression ?? "").join(" && ");
      const users = [...stores.claims.values()].filter((claim) => wants(claim).includes(`× ${found.metadata.name}`)).length;
      return { key: found.metadata.name, open: () => select("class", found.metadata.name), cells: [found.metadata.name, expressions, found.spec.extendedResourceName ?? "", String(users)] };
    });
  return [tableOf(["Class", "Selector", "Extended resource", "Claims"], rows, "classes")];
}

// --- rendering and keys -------------------------------------------------------------------

const VIEWS = { map: mapView, claims: claimsView, pods: podsView, pools: poolsView, classes: classesView, users: usersView, history: historyView };
let scheduled = false;
let spent = 0; // milliseconds that the last render took
let ended = 0; // when it ended

// Render soon: with the next frame, but no more than half of the time, however fast a large system changes.
function refresh(pause = Math.max(0, ended + spent - performance.now())) {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => requestAnimationFrame(() => {
    scheduled = false;
    const start = performance.now();
    render();
    ended = performance.now();
    spent = ended - start;
  }), spent > 16 ? pause : 0);
}

function takeStock() {
  state.stale = false;
  const rules = JSON.stringify([...stores.rules.values()].map((rule) => rule.spec));
  const previous = rules === state.rules ? state.inventory : null;
  state.rules = rules;
  state.inventory = buildInventory({ nodes: [...stores.nodes.values()], slices: [...stores.slices.values()], claims: [...stores.claims.values(), ...claimsOfOthers(state.report, stores.claims)], rules: [...stores.rules.values()] }, previous);
  state.podsByNode = new Map();
  for (const pod of stores.pods.values()) if (pod.spec.nodeName) state.podsByNode.set(pod.spec.nodeName, (state.podsByNode.get(pod.spec.nodeName) ?? 0) + 1);
  const fresh = [...stores.claims.keys(), ...(state.report?.held ?? []).map((each) => each.user)].filter((key) => !state.colours.has(key));
  for (const claim of fresh.sort()) colourOf(claim);
}

function render() {
  if (state.stale) takeStock();
  for (const anchor of document.querySelectorAll("header nav a")) {
    if (anchor.dataset.view === state.view) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  const main = byId("main");
  const inside = main.contains(document.activeElement);
  const cut = Object.keys(stores).filter((kind) => stores[kind].size >= LARGEST);
  const notice = cut.length ? el("p", { class: "error", role: "note", "data-key": "cut", text: `Only the first ${LARGEST} ${cut.join(" and ")} are shown.` }) : null;
  become(main, [notice, ...VIEWS[state.view]()].filter(Boolean));
  if (state.focus !== null) {
    // After zooming in: the heading of the place. After zooming out: the row that was open.
    const row = state.focus ? main.querySelector(`li[data-key="${CSS.escape(state.focus)}"] a`) : null;
    (row ?? document.getElementById("place") ?? main).focus({ preventScroll: !row });
    state.focus = null;
  } else if (inside && !main.contains(document.activeElement)) main.focus({ preventScroll: true });
  renderDetail();
}

const depth = (place) => (place.get("node") !== null) + (place.get("group") !== null);

function route() {
  const [view, query] = location.hash.replace(/^#\//, "").split("?");
  const before = state.view === "map" ? state.place : null;
  state.view = VIEWS[view] ? view : "map";
  state.place = new URLSearchParams(query ?? "");
  if (state.view === "map" && before && depth(before) !== depth(state.place)) {
    const left = before.get("node") ?? before.get("group") ?? "";
    state.focus = depth(before) > depth(state.place) ? (depth(state.place) ? left : before.get("group") ?? left) : "";
    if (!state.focus) scrollTo(0, 0);
  }
  openDetail(state.place.get("show") ?? "");
  refresh(0);
}

// One step out of the map's zoom.
function zoomOut() {
  const { by, group, page, node } = Object.fromEntries(state.place);
  if (node !== undefined) location.hash = address("map", { by, group, page });
  else if (group !== undefined) location.hash = address("map", { by });
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  sessionStorage.setItem("theme", document.documentElement.dataset.theme);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state.selected) return closeDetail();
  if (event.key === "Escape" && state.view === "map" && event.target !== byId("filter")) return zoomOut();
  if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
  const index = "1234567".indexOf(event.key);
  if (event.key === "/") (event.preventDefault(), byId("filter").focus());
  else if (event.key === "t") toggleTheme();
  else if (index >= 0) location.hash = `#/${Object.keys(VIEWS)[index]}`;
  else if (["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"].includes(event.key)) {
    const items = [...byId("main").querySelectorAll("button.device, a.zoom, tr[tabindex]")];
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    event.preventDefault();
    items[Math.min(items.length - 1, Math.max(0, at + (["ArrowRight", "ArrowDown"].includes(event.key) ? 1 : -1)))].focus();
  }
});

byId("filter").addEventListener("input", (event) => {
  state.filter = event.target.value;
  state.place.delete("page");
  refresh();
});
byId("theme").addEventListener("click", toggleTheme);
addEventListener("hashchange", route);
setInterval(() => refresh(), 15000); // ages
setInterval(askForMore, 3000);

async function start() {
  if (sessionStorage.getItem("theme")) document.documentElement.dataset.theme = sessionStorage.getItem("theme");
  state.me = await signIn();
  route();
  const live = byId("live");
  const say = (text, name) => {
    if (live.textContent !== text) live.textContent = text; // a screen reader reads what is set, even if it is the same
    live.className = name;
  };
  const changed = (kind, complete) => {
    if (complete) state.complete.add(kind);
    say(state.complete.size < Object.keys(stores).length ? "loading …" : "live", "");
    state.stale = true;
    refresh();
  };
  const lost = (error) => {
    say(error instanceof Denied ? error.message : "connection lost, retrying", "lost");
  };
  for (const kind of Object.keys(stores)) follow(kind, stores[kind], changed, lost, state.me.namespace);
  followRecords((records) => {
    Object.assign(state, records);
    state.stale = true;
    refresh();
  });
}

start();
