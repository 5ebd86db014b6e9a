// What all views share: the state of the page, its addresses, tables with pages, and words for pods and claims.

import { el, svg } from "./dom.js";
import { ownerColour } from "./model.js";

export const ROWS = 100; // rows, groups or nodes on one page
export const stores = Object.fromEntries(["nodes", "pods", "slices", "claims", "classes", "rules"].map((kind) => [kind, new Map()]));
export const state = { view: "map", place: new URLSearchParams(), filter: "", selected: null, opener: null, events: [], log: null, report: null, usage: null, history: null, me: { user: "", namespace: "" }, inventory: null, colours: new Map(), complete: new Set(), stale: true, rules: "", focus: null };
export const byId = (id) => document.getElementById(id);

// Open the details of something; they are part of the address, so that they can be linked to.
export function select(kind, key) {
  state.opener = document.activeElement;
  location.hash = address(state.view, { ...Object.fromEntries(state.place), show: `${kind}:${key}` });
}

export function link(kind, key) {
  return el("a", { href: address(state.view, { ...Object.fromEntries(state.place), show: `${kind}:${key}` }), text: key });
}

export function colourOf(owner) {
  if (!state.colours.has(owner)) state.colours.set(owner, ownerColour(state.colours.size));
  return state.colours.get(owner);
}

export function matches(...texts) {
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const all = texts.join(" ").toLowerCase();
  return words.every((word) => all.includes(word));
}

export function age(timestamp) {
  const seconds = Math.max(0, (Date.now() - Date.parse(timestamp)) / 1000);
  if (seconds < 120) return `${Math.round(seconds)}s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)}h`;
  return `${Math.round(seconds / 86400)}d`;
}

// An address inside this page.
export function address(view, place) {
  const query = new URLSearchParams(Object.entries(place).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#/${view}${query.size ? `?${query}` : ""}`;
}

// The links between pages of `all`, and what is on this page.
export function onePage(all, size, what, name = "page") {
  const pages = Math.max(1, Math.ceil(all.length / size));
  const page = Math.min(pages, Math.max(1, Number.parseInt(state.place.get(name), 10) || 1));
  const here = all.slice((page - 1) * size, page * size);
  if (pages === 1) return [here, null];
  const to = (number) => address(state.view, { ...Object.fromEntries(state.place), [name]: number > 1 ? number : "" });
  return [here, el("nav", { class: "pages", "data-key": `${name} of ${what}`, "aria-label": `Pages of ${what}` },
    page > 1 ? el("a", { "data-key": "back", href: to(page - 1), text: `Show the ${size} before` }) : null,
    el("span", { "data-key": "here", text: `${what} ${(page - 1) * size + 1} to ${(page - 1) * size + here.length} of ${all.length}` }),
    page < pages ? el("a", { "data-key": "more", href: to(page + 1), text: `Show ${Math.min(size, all.length - page * size)} more` }) : null)];
}

export function isWaiting(pod) {
  return !pod.spec.nodeName && pod.status?.phase === "Pending";
}

export function tableOf(headers, all, what = "rows", name = "page") {
  const [found, pages] = onePage(all, ROWS, what, name);
  const rows = found.map((row) => row());
  if (!rows.length) return el("p", { class: "empty", text: "Nothing here, or nothing matches the filter." });
  const head = el("thead", {}, el("tr", {}, ...headers.map((header) => el("th", { scope: "col", text: header }))));
  const body = el("tbody", {}, ...rows.map(({ cells, open, key }) =>
    el("tr", { "data-key": key, tabindex: 0, onclick: open, onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), open()) }, ...cells.map((cell) => (cell instanceof Node ? el("td", {}, cell) : el("td", { text: cell ?? "" })))),
  ));
  return el("div", { class: "table-box" }, el("table", {}, head, body), pages);
}

export function claimState(claim) {
  if (claim.metadata.deletionTimestamp) return "deleting";
  return claim.status?.allocation ? "allocated" : "pending";
}

export function wants(claim) {
  return (claim.spec.devices?.requests ?? [])
    .map((request) => (request.exactly ? [request.exactly] : request.firstAvailable ?? []).map((one) => `${one.allocationMode === "All" ? "all" : one.count ?? 1}× ${one.deviceClassName}`).join(" or "))
    .join("; ");
}

export function claimDevices(claim) {
  return (claim.status?.allocation?.devices?.results ?? []).map((result) => `${result.pool}/${result.device}`);
}

export function podWords(pod) {
  const scheduled = pod.status?.conditions?.find((condition) => condition.type === "PodScheduled");
  return scheduled?.status === "False" ? scheduled.message ?? "" : pod.status?.message ?? "";
}

export function podClaims(pod) {
  const names = (pod.spec.resourceClaims ?? []).map((entry) => entry.resourceClaimName).filter(Boolean);
  names.push(...(pod.status?.resourceClaimStatuses ?? []).map((entry) => entry.resourceClaimName).filter(Boolean));
  if (pod.status?.extendedResourceClaimStatus) names.push(pod.status.extendedResourceClaimStatus.resourceClaimName);
  return [...new Set(names)];
}

export function swatch(user) {
  const picture = svg("svg", { class: "swatch", viewBox: "0 0 1 1", "aria-hidden": "true" });
  picture.append(svg("rect", { width: 1, height: 1, fill: colourOf(user) }));
  return picture;
}
