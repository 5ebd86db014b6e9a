// Who holds what: slices and claims turned into nodes, devices and shares. Pure functions of plain objects.

const SUFFIXES = { "": 1, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60, n: 1e-9, u: 1e-6 };

export function amount(quantity) {
  const match = /^([+-]?[0-9.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(quantity ?? "0").trim());
  return match ? Number(match[1]) * (SUFFIXES[match[2]] ?? NaN) : NaN;
}

export function shortAmount(quantity) {
  const value = amount(quantity);
  if (!Number.isFinite(value)) return String(quantity);
  for (const suffix of ["Ti", "Gi", "Mi", "Ki"]) if (value >= SUFFIXES[suffix]) return `${Math.round((value / SUFFIXES[suffix]) * 10) / 10}${suffix}`;
  return String(quantity);
}

export function attributeText(attribute) {
  for (const kind of ["string", "version", "int", "bool", "strings", "ints", "versions", "bools"]) {
    if (attribute?.[kind] !== undefined) return String(attribute[kind]);
  }
  return "";
}

function attribute(device, driver, name) {
  const found = device.attributes?.[name] ?? device.attributes?.[`${driver}/${name}`];
  return found ? attributeText(found) : "";
}

// What to write into a box: people know an interface by its name, not by its PCI address.
export function shortName(row) {
  return attribute(row.device, row.driver, "dra.net/ifName") || row.name;
}

export function modelName(device, driver) {
  for (const name of ["productName", "model", "accelerator", "dra.net/pciDevice"]) {
    const found = attribute(device, driver, name);
    if (found) return [found, attribute(device, driver, "profile")].filter(Boolean).join(" ");
  }
  return "";
}

function taintsOf(row, rules) {
  const own = row.device.taints ?? [];
  if (!rules.length) return own;
  const ruled = rules
    .filter((rule) => {
      const wanted = rule.spec.deviceSelector ?? {};
      return (!wanted.driver || wanted.driver === row.driver) && (!wanted.pool || wanted.pool === row.pool) && (!wanted.device || wanted.device === row.name);
    })
    .map((rule) => rule.spec.taint);
  return [...own, ...ruled];
}

// Names are compared by numbers inside them too; localeCompare makes a collator each time, which thousands of names feel.
export const order = new Intl.Collator(undefined, { numeric: true }).compare;

function newestPools(slices) {
  const pools = new Map();
  for (const slice of slices) {
    const { driver, pool } = slice.spec;
    const key = `${driver}\n${pool.name}`;
    const found = pools.get(key);
    const generation = pool.generation ?? 0;
    if (!found || generation > found.generation) pools.set(key, { driver, pool: pool.name, generation, expected: pool.resourceSliceCount, slices: [slice] });
    else if (generation === found.generation) found.slices.push(slice);
  }
  return [...pools.values()].sort((a, b) => order(a.driver + a.pool, b.driver + b.pool));
}

// The name of a claim; of others' claims only the user is known.
function ownerOf({ metadata: { namespace, name } }) {
  return name ? `${namespace}/${name}` : namespace;
}

// What others hold, as claims without names: the report tells it of everybody, `claims` are those that may be seen.
export function claimsOfOthers(report, claims) {
  if (!report?.held?.length) return [];
  const known = new Set();
  for (const claim of claims.values()) for (const result of claim.status?.allocation?.devices?.results ?? []) known.add(rowKey(result.driver, result.pool, result.device));
  return report.held
    .filter(({ devices }) => !devices.some((each) => known.has(rowKey(each.driver, each.pool, each.device))))
    .map(({ user, devices }) => ({ metadata: { namespace: user, name: "" }, status: { allocation: { devices: { results: devices } }, reservedFor: [] } }));
}

const NONE = Object.freeze([]); // the uses of a device that nobody has
const rowKey = (driver, pool, device) => `${driver}\n${pool}\n${device}`;

function readRows(pool, rules) {
  pool.rows = [];
  for (const slice of pool.slices) {
    for (const device of slice.spec.devices ?? []) {
      const row = { driver: pool.driver, pool: pool.pool, node: device.nodeName ?? pool.node, name: device.name, device, uses: NONE, blockedBy: "", taints: NONE, isPartition: false, model: "", state: "" };
      row.taints = taintsOf(row, rules);
      row.isPartition = Boolean(device.consumesCounters?.length) && attribute(device, pool.driver, "type") === "mig";
      row.model = modelName(device, pool.driver);
      pool.rows.push(row);
    }
  }
}

// The rows of the pool as they were, without uses, if the slices are the very same objects; else null.
function sameRows(pool, old) {
  if (!old || old.slices.length !== pool.slices.length || old.slices.some((slice, at) => slice !== pool.slices[at])) return null;
  for (const row of old.rows) {
    row.uses = NONE;
    row.blockedBy = "";
  }
  return old.rows;
}

// `previous` is what this returned before, for the same rules; it is used up: rows of pools that did not change are taken over.
export function buildInventory({ nodes, slices, claims, rules }, previous = null) {
  const old = previous ? previous.poolsByKey : new Map();
  const devices = previous ? previous.devices : new Map();
  const poolsByKey = new Map();
  const pools = newestPools(slices);
  const fresh = [];
  for (const pool of pools) {
    const key = `${pool.driver}\n${pool.pool}`;
    if (pool.slices.length > 1) pool.slices.sort((a, b) => order(a.metadata.name, b.metadata.name));
    pool.node = pool.slices[0].spec.nodeName ?? "";
    pool.rows = sameRows(pool, old.get(key));
    if (pool.rows) old.delete(key);
    else fresh.push(pool);
    poolsByKey.set(key, pool);
  }
  for (const gone of old.values()) for (const row of gone.rows) devices.delete(rowKey(row.driver, row.pool, row.name));
  for (const pool of fresh) {
    readRows(pool, rules);
    for (const row of pool.rows) devices.set(rowKey(row.driver, row.pool, row.name), row);
  }
  for (const claim of claims) {
    for (const result of claim.status?.allocation?.devices?.results ?? []) {
      const row = devices.get(rowKey(result.driver, result.pool, result.device));
      if (!row) continue;
      if (row.uses === NONE) row.uses = [];
      row.uses.push({ claim: ownerOf(claim), request: result.request, admin: Boolean(result.adminAccess), consumed: result.consumedCapacity ?? {}, pods: (claim.status.reservedFor ?? []).map((user) => user.name) });
    }
  }
  for (const pool of pools) markBlocked(pool);
  for (const row of devices.values()) row.state = stateOf(row);
  const byNode = new Map(nodes.map((node) => [node.metadata.name, []]));
  for (const pool of pools) {
    if (!byNode.has(pool.node)) byNode.set(pool.node, []);
    byNode.get(pool.node).push(pool);
  }
  return { pools, poolsByKey, devices, byNode };
}

export function holders(row) {
  return row.uses.length ? row.uses.filter((use) => !use.admin) : NONE;
}

function stateOf(row) {
  if (holders(row).length) return row.device.allowMultipleAllocations ? "shared" : "used";
  if (row.taints.some((taint) => taint.effect === "NoSchedule" || taint.effect === "NoExecute")) return "tainted";
  return row.blockedBy ? "blocked" : "free";
}

// A GPU that was cut blocks the whole, and the whole blocks its slices: compare what is drawn with the largest draw.
function markBlocked(pool) {
  if (!pool.rows.some((row) => row.device.consumesCounters?.length)) return;
  const budget = new Map();
  const used = new Map();
  const users = new Map();
  const draws = (row, visit) => {
    for (const consumption of row.device.consumesCounters ?? []) {
      for (const [name, counter] of Object.entries(consumption.counters ?? {})) visit(`${consumption.counterSet}\n${name}`, amount(counter.value), consumption.counterSet);
    }
  };
  for (const row of pool.rows) draws(row, (key, value) => budget.set(key, Math.max(budget.get(key) ?? 0, value)));
  for (const row of pool.rows) {
    if (!holders(row).length) continue;
    draws(row, (key, value, set) => {
      used.set(key, (used.get(key) ?? 0) + value);
      if (!users.has(set)) users.set(set, new Set());
      users.get(set).add(row.name);
    });
  }
  for (const row of pool.rows) {
    if (holders(row).length) continue;
    draws(row, (key, value, set) => {
      if (used.has(key) && used.get(key) + value > budget.get(key) * (1 + 1e-9)) row.blockedBy = [...(users.get(set) ?? [])].join(", ");
    });
  }
}

// The stretches of a device that are given out: all of it, shares of its capacity, or MIG slices by memory slice.
export function partsOf(row, pool) {
  const users = holders(row);
  if (users.length && row.device.allowMultipleAllocations) {
    let start = 0;
    return users.map((use) => {
      let size = 0.02;
      for (const [name, value] of Object.entries(use.consumed)) {
        const total = amount(row.device.capacity?.[name]?.value);
        if (total > 0) size = Math.max(size, amount(value) / total);
      }
      size = Math.min(size, 1 - start);
      const part = { start, size, owner: use.claim, label: `${Math.round(size * 100)}%` };
      start += size;
      return part;
    });
  }
  if (users.length) return [{ start: 0, size: 1, owner: users[0].claim, label: row.name }];
  const sets = new Set((row.device.consumesCounters ?? []).map((entry) => entry.counterSet));
  const sliceNumbers = (device) =>
    (device.consumesCounters ?? [])
      .filter((entry) => sets.has(entry.counterSet))
      .flatMap((entry) => Object.keys(entry.counters ?? {}))
      .filter((name) => name.startsWith("memory-slice-"))
      .map((name) => Number(name.slice(13)))
      .sort((a, b) => a - b);
  const total = sliceNumbers(row.device).length;
  if (!total || row.isPartition) return [];
  const parts = [];
  for (const other of pool.rows) {
    if (other === row || !holders(other).length) continue;
    const numbers = sliceNumbers(other.device);
    if (numbers.length) parts.push({ start: numbers[0] / total, size: numbers.length / total, owner: holders(other)[0].claim, label: attribute(other.device, other.driver, "profile") || other.name });
  }
  return parts.sort((a, b) => a.start - b.start);
}

// Free and largest piece per model: how much is left, and how much of it is in one piece.
export function poolSummaries(inventory) {
  const found = new Map();
  for (const pool of inventory.pools) {
    for (const row of pool.rows) {
      if (row.isPartition) continue;
      const label = `${row.driver}\n${row.model || row.driver}`;
      const entry = found.get(label) ?? { driver: row.driver, model: row.model || row.driver, total: 0, used: 0, free: 0, tainted: 0, cut: 0, share: 0, freeSlices: 0, largest: 0 };
      const parts = partsOf(row, pool);
      const given = parts.reduce((sum, part) => sum + part.size, 0);
      entry.total += 1;
      entry.share += given;
      if (row.state === "tainted") entry.tainted += 1;
      else if (given === 0 && row.state === "free") entry.free += 1;
      else entry.used += 1;
      if (parts.length && given < 0.999) {
        entry.cut += 1;
        entry.freeSlices += 1 - given;
        let edge = 0;
        let gap = 0;
        for (const part of parts) {
          gap = Math.max(gap, part.start - edge);
          edge = Math.max(edge, part.start + part.size);
        }
        entry.largest = Math.max(entry.largest, gap, 1 - edge);
      }
      if (row.state === "free" && given === 0) entry.largest = 1;
      found.set(label, entry);
    }
  }
  for (const entry of found.values()) {
    const leftover = entry.free + entry.freeSlices;
    entry.fragmentation = leftover > 0 ? entry.freeSlices / leftover : 0;
  }
  return [...found.values()].sort((a, b) => (a.driver + a.model).localeCompare(b.driver + b.model));
}

// --- groups of nodes, for systems that do not fit on a page ----------------------------

export const STATES = ["held", "free", "blocked", "tainted"]; // the order of a bar's stretches and of the legend

// As a box looks on the map: a GPU with a slice given out is held, though as a whole it is blocked.
export function shownState(row, pool) {
  if (holders(row).length) return "held";
  if (row.device.consumesCounters?.length && partsOf(row, pool).length) return "held";
  return STATES.includes(row.state) ? row.state : "held";
}

const LABELS = {
  pool: ["dray.dev/node-group", "karpenter.sh/nodepool", "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool", "node.kubernetes.io/instance-type"],
  zone: ["topology.kubernetes.io/zone"],
};
export const GROUPINGS = { pool: "node pool", devices: "devices", zone: "zone" };

function labelled(node, grouping) {
  for (const label of LABELS[grouping]) {
    const value = node?.metadata.labels?.[label];
    if (value) return value;
  }
  return "";
}

// The groupings that tell nodes apart here; by devices is always one.
export function usefulGroupings(nodes) {
  return Object.keys(GROUPINGS).filter((grouping) => grouping === "devices" || nodes.some((node) => labelled(node, grouping)));
}

function devicesInWords(pools) {
  const counts = new Map();
  for (const pool of pools) {
    for (const row of pool.rows) {
      if (row.isPartition) continue;
      const name = row.model ? `${row.model} (${row.driver})` : row.driver;
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  return [...counts].sort(([a], [b]) => order(a, b)).map(([name, count]) => `${count}× ${name}`).join(", ") || "no devices";
}

function groupName(name, node, pools, grouping) {
  if (grouping === "devices") return devicesInWords(pools);
  return labelled(node, grouping) || (name === "" ? "(every node)" : `(no ${GROUPINGS[grouping]})`);
}

export function stateCounts(pools, counts = Object.fromEntries(STATES.map((name) => [name, 0]))) {
  for (const pool of pools) for (const row of pool.rows) if (!row.isPartition) counts[shownState(row, pool)] += 1;
  return counts;
}

export function isReady(node) {
  return node?.status?.conditions?.find((condition) => condition.type === "Ready")?.status === "True";
}

// Nodes ([name, pools] each) into groups by label or by their devices, with counts of what their devices are.
export function groupNodes(entries, nodesByName, grouping) {
  const groups = new Map();
  for (const entry of entries) {
    const [name, pools] = entry;
    const node = nodesByName.get(name);
    const label = groupName(name, node, pools, grouping);
    let group = groups.get(label);
    if (!group) groups.set(label, (group = { name: label, entries: [], notReady: 0, counts: Object.fromEntries(STATES.map((state) => [state, 0])) }));
    group.entries.push(entry);
    if (node && !isReady(node)) group.notReady += 1;
    stateCounts(pools, group.counts);
  }
  return [...groups.values()].sort((a, b) => order(a.name, b.name));
}

export function ownerColour(index) {
  return `hsl(${Math.round((209 + index * 222.5) % 360)} 55% 74%)`;
}
