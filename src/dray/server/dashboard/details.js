// The details of what is open: a device, a claim, a pod with its place in the queue and its output, a class.

import { eventsOf, outputOf } from "./api.js";
import { become, el } from "./dom.js";
import { attributeText, partsOf, shortAmount } from "./model.js";
import { age, byId, claimState, link, podClaims, podWords, state, stores, wants } from "./page.js";

const DETAILS = { device: deviceDetail, claim: claimDetail, pod: podDetail, class: classDetail };

// Show what the address names, `kind:key`; nothing for "".
export function openDetail(named) {
  const [kind, ...rest] = named.split(":");
  const key = rest.join(":");
  if (!DETAILS[kind] || !key) return closed();
  if (state.selected?.kind === kind && state.selected.key === key) return;
  state.selected = { kind, key };
  state.events = [];
  state.log = null;
  byId("detail").replaceChildren();
  renderDetail();
  askForMore();
  byId("detail").querySelector("button")?.focus();
}

function closed() {
  if (!state.selected) return;
  state.selected = null;
  byId("detail").hidden = true;
  byId("detail").replaceChildren();
  if (state.opener?.isConnected) state.opener.focus();
  else byId("main").focus();
  state.opener = null;
}

// Leave the details: the address without them.
export function closeDetail() {
  const query = new URLSearchParams(state.place);
  query.delete("show");
  location.hash = `#/${state.view}${query.size ? `?${query}` : ""}`;
}

export function renderDetail() {
  const box = byId("detail");
  if (!state.selected) return;
  const shown = box.querySelector(".log");
  const atEnd = !shown || shown.scrollTop + shown.clientHeight > shown.scrollHeight - 4;
  const content = DETAILS[state.selected.kind](state.selected);
  become(box, [el("button", { type: "button", "data-key": "close", class: "close", text: "Close (Esc)", onclick: closeDetail }), ...content.filter(Boolean)]);
  box.hidden = false;
  const log = box.querySelector(".log");
  if (log && atEnd) log.scrollTop = log.scrollHeight;
}

// The events and the output of what is open, now and every few seconds. Not everybody may read them: then the rest says enough.
export async function askForMore() {
  const selected = state.selected;
  const kind = { claim: "ResourceClaim", pod: "Pod" }[selected?.kind];
  if (!kind || document.hidden) return;
  const pod = kind === "Pod" ? stores.pods.get(selected.key) : null;
  const [events, log] = await Promise.all([
    eventsOf(kind, selected.key).catch(() => []),
    pod?.spec.nodeName && pod.status?.phase !== "Pending" ? outputOf(selected.key).catch(() => null) : null,
  ]);
  if (state.selected !== selected) return;
  state.events = events;
  state.log = log;
  renderDetail();
}

function facts(pairs) {
  const list = el("dl");
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(el("dt", { text: name }), value instanceof Node ? el("dd", {}, value) : el("dd", { text: value }));
  }
  return list;
}


function eventList() {
  const found = [...state.events]
    .sort((a, b) => Date.parse(a.lastTimestamp ?? a.eventTime ?? a.metadata.creationTimestamp) - Date.parse(b.lastTimestamp ?? b.eventTime ?? b.metadata.creationTimestamp));
  if (!found.length) return null;
  return el("div", {}, el("h3", { text: "Events" }), el("ol", {}, ...found.map((event) => el("li", { text: `${event.reason}: ${event.message}` }))));
}

// A key is driver/pool/device; the name of a pool may have slashes itself.
function deviceDetail({ key }) {
  const [driver, ...rest] = key.split("/");
  const name = rest.pop() ?? "";
  const pool = rest.join("/");
  const row = state.inventory?.devices.get(`${driver}\n${pool}\n${name}`);
  if (!row) return [el("h2", { text: key }), el("p", { text: "This device is not published (any more)." })];
  const parts = partsOf(row, state.inventory.poolsByKey.get(`${driver}\n${pool}`));
  return [
    el("h2", { text: row.name }),
    facts([["driver", row.driver], ["pool", row.pool], ["node", row.node], ["model", row.model], ["state", row.state], ["blocked by", row.blockedBy], ["taints", row.taints.map((taint) => `${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`).join(", ")]]),
    parts.length ? el("h3", { text: "Held by" }) : null,
    parts.length ? el("ol", {}, ...parts.map((part) => el("li", {}, `${part.label}: `, stores.claims.has(part.owner) ? link("claim", part.owner) : part.owner))) : null,
    el("h3", { text: "Attributes" }),
    facts(Object.entries(row.device.attributes ?? {}).map(([attribute, value]) => [attribute, attributeText(value)])),
    row.device.capacity ? el("h3", { text: "Capacity" }) : null,
    facts(Object.entries(row.device.capacity ?? {}).map(([capacity, value]) => [capacity, shortAmount(value.value)])),
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
    eventList(),
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
    ...placeInQueue(pod),
    ...logPart(),
    eventList(),
  ];
}

// What the scheduler tells of a job that waits (see `dray queue`).
function placeInQueue(pod) {
  const told = state.report?.jobs[pod.metadata.uid];
  if (!told) return [];
  const starts = told.starts ? new Date(told.starts * 1000).toLocaleString() : "";
  return [facts([["place in the queue", `${told.place} of ${told.waiting}`], ["held back", told.heldBack], ["expected start", starts && `${starts} at the latest`]])];
}

// The end of the output; only who may read it is shown it.
function logPart() {
  if (state.log === null) return [];
  return [el("h3", { text: "Output" }), el("pre", { class: "log", role: "log", tabindex: 0, "aria-label": "Output of the job", text: state.log || "(nothing yet)" })];
}

function classDetail({ key }) {
  const found = stores.classes.get(key);
  if (!found) return [el("h2", { text: key }), el("p", { text: "This class is gone." })];
  return [el("h2", { text: key }), facts([["extended resource", found.spec.extendedResourceName]]), ...(found.spec.selectors ?? []).map((selector) => el("p", { class: "story", text: selector.cel?.expression ?? "" }))];
}
