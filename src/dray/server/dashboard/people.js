// Users: who has used and holds how much; and history: who held which device when. From what the scheduler of a shared
// machine keeps for everybody.

import { el, svg } from "./dom.js";
import { order } from "./model.js";
import { ROWS, address, colourOf, matches, onePage, state, swatch, tableOf } from "./page.js";

const DAY = 86400;
const RANGES = { hour: ["the last hour", 3600], day: ["24 hours", DAY], week: ["7 days", 7 * DAY], month: ["30 days", 30 * DAY] };

const none = (text) => el("p", { class: "empty", text });

// --- users -----------------------------------------------------------------------------

// Device-hours of a user in the last days, today included.
function hoursOf(user, days) {
  const first = new Date(Date.now() - (days - 1) * DAY * 1000).toISOString().slice(0, 10);
  let seconds = 0;
  for (const [day, used] of Object.entries(state.usage ?? {})) if (day >= first) seconds += used[user] ?? 0;
  return seconds / 3600;
}

function limitsInWords(text) {
  try {
    return Object.entries(JSON.parse(text)).map(([name, value]) => `${name} ${value}`).join(", ");
  } catch {
    return "";
  }
}

const percent = (share) => (share === undefined ? "" : `${Math.round(share * 100)} %`);

export function usersView() {
  const told = state.report?.users ?? {};
  const users = [...new Set([...Object.keys(told), ...Object.values(state.usage ?? {}).flatMap(Object.keys)])].filter((user) => matches(user));
  if (!users.length) return [none("Nobody has used devices yet, or this system does not share devices between users (`dray up --shared`, `dray scheduler --fair-share`).")];
  const held = new Map();
  for (const each of state.report?.held ?? []) held.set(each.user, (held.get(each.user) ?? 0) + each.devices.length);
  const rows = users
    .sort((a, b) => (held.get(b) ?? 0) - (held.get(a) ?? 0) || hoursOf(b, 30) - hoursOf(a, 30) || order(a, b))
    .map((user) => () => ({
      key: user,
      open: () => (location.hash = address("history", { user })),
      cells: [el("span", {}, swatch(user), user), String(held.get(user) ?? 0), percent(told[user]?.used), percent(told[user]?.entitled), hoursOf(user, 1).toFixed(1), hoursOf(user, 7).toFixed(1), hoursOf(user, 30).toFixed(1), limitsInWords(told[user]?.limits)],
    }));
  return [
    el("h2", { text: "Users" }),
    tableOf(["User", "Holds devices", "Recent share", "Fair share", "Device-hours today", "7 days", "30 days", "Limits"], rows, "users"),
    el("h2", { text: "Device-hours a day" }),
    daysPicture(users),
  ];
}

// A column for each of the last 30 days, a piece of it for each user.
function daysPicture(users) {
  const days = Array.from({ length: 30 }, (_, at) => new Date(Date.now() - (29 - at) * DAY * 1000).toISOString().slice(0, 10));
  const sums = days.map((day) => users.reduce((sum, user) => sum + (state.usage?.[day]?.[user] ?? 0), 0));
  const most = Math.max(...sums, 1);
  const picture = svg("svg", { class: "days", viewBox: "0 0 300 80", role: "img", "aria-label": `Device-hours of each of the last 30 days, at most ${(most / 3600).toFixed(1)}; the table above has the sums` });
  days.forEach((day, at) => {
    let top = 80;
    for (const user of users) {
      const height = ((state.usage?.[day]?.[user] ?? 0) / most) * 78;
      if (!height) continue;
      top -= height;
      const piece = svg("rect", { x: at * 10 + 1, y: top, width: 8, height, fill: colourOf(user) });
      const title = svg("title", {});
      title.textContent = `${day}: ${user} ${(state.usage[day][user] / 3600).toFixed(1)} h`;
      piece.append(title);
      picture.append(piece);
    }
  });
  return el("figure", { class: "chart" }, picture, el("figcaption", { text: `${days[0]} to ${days[29]}; the highest day has ${(most / 3600).toFixed(1)} device-hours` }));
}

// --- history ---------------------------------------------------------------------------

// The spans of each device within a range, as fractions of it.
export function historyRows(record, from, to, wanted) {
  const byDevice = new Map();
  for (const [userAt, deviceAt, begins, ends] of record?.spans ?? []) {
    const user = record.users[userAt];
    const device = record.devices[deviceAt];
    if (ends < from || begins > to || !wanted(user, device)) continue;
    if (!byDevice.has(device)) byDevice.set(device, []);
    byDevice.get(device).push({ user, begins, ends, start: Math.max(0, (begins - from) / (to - from)), end: Math.min(1, (ends - from) / (to - from)) });
  }
  return [...byDevice].sort(([a], [b]) => order(a, b));
}

const moment = (seconds) => new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });

export function historyView() {
  const range = RANGES[state.place.get("range")] ? state.place.get("range") : "day";
  const user = state.place.get("user") ?? "";
  const to = Date.now() / 1000;
  const from = to - RANGES[range][1];
  const rows = historyRows(state.history, from, to, (who, device) => (!user || who === user) && matches(who, device));
  const choices = el("nav", { class: "choices", "data-key": "ranges", "aria-label": "Range of time" }, "Show ", ...Object.entries(RANGES).map(([name, [words]]) => el("a", { "data-key": name, href: address("history", { user, range: name }), text: words, "aria-current": name === range ? "true" : null })), user ? el("a", { "data-key": "all", href: address("history", { range }), text: `of all users, not only ${user}` }) : null);
  if (!rows.length) return [choices, none(state.history ? "Nobody held a device in this time, or nothing matches the filter." : "There is no history: this system does not share devices between users, or nothing was held yet.")];
  const [here, pages] = onePage(rows, ROWS, "devices");
  const users = [...new Set(here.flatMap(([, spans]) => spans.map((span) => span.user)))].sort(order);
  return [
    choices,
    el("ul", { class: "legend", "data-key": "users", "aria-label": "Users" }, ...users.map((name) => el("li", { "data-key": name }, swatch(name), el("a", { href: address("history", { user: name, range }), text: name })))),
    el("p", { class: "times", "data-key": "times" }, el("span", { text: moment(from) }), el("span", { text: "now" })),
    el("ul", { class: "history", "data-key": "history", "aria-label": "Devices and who held them" }, ...here.map(([device, spans]) => historyRow(device, spans))),
    pages,
  ];
}

function historyRow(device, spans) {
  const picture = svg("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const span of spans) {
    const piece = svg("rect", { x: span.start * 1000, y: 0, width: Math.max(2, (span.end - span.start) * 1000), height: 10, fill: colourOf(span.user) });
    const title = svg("title", {});
    title.textContent = `${span.user}: ${moment(span.begins)} to ${moment(span.ends)}`;
    piece.append(title);
    picture.append(piece);
  }
  const last = spans.slice(-10).map((span) => `${span.user} from ${moment(span.begins)} to ${moment(span.ends)}`).join("; ");
  return el("li", { "data-key": device }, el("a", { href: address("history", { ...Object.fromEntries(state.place), show: `device:${device}` }), text: device, "aria-label": `${device}: ${last}` }), picture);
}
