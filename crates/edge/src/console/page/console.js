// The console's page. It builds everything as text of elements, never as markup: a key may be named <script>.
"use strict";

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; children that are no elements become text. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const fill = (element, ...children) => element.replaceChildren(...children.flat().filter((child) => child !== null));

// ---- numbers as people read them ----

const scaled = (value, base, units) => {
  let step = 0;
  while (Math.abs(value) >= base && step < units.length - 1) { value /= base; step += 1; }
  const digits = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[step]}`;
};
const count = (value) => scaled(value, 1000, ["", " k", " M", " G"]);
const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
const nanos = (value) => (value === 0 ? "0 s" : scaled(value, 1000, [" ns", " µs", " ms", " s"]));
const micros = (value) => nanos(value * 1000);
const millis = (value) => (value < 60000 ? nanos(value * 1e6) : seconds(value / 1000));
const seconds = (value) => {
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
};
const FORMATS = {
  count, bytes, us: micros, ns: nanos,
  per_second: (value) => `${count(value)}/s`,
  bytes_per_second: (value) => `${bytes(value)}/s`,
  per_mille: (value) => `${(value / 10).toFixed(value < 100 ? 1 : 0)} %`,
};
const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
const moment = (ms) => {
  const at = new Date(ms);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `;
  return `${day}${clock(ms)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
};

// ---- what is known ----

const state = {
  user: null, page: "overview", range_s: 900, cluster: null, cluster_error: null, history: null, timeline: [],
  stalls: null, stalls_error: null, lost: null, hover_ms: null, mark_ms: null,
};

async function ask(path, options) {
  let response;
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), options?.method === "POST" ? 20000 : 10000);
  try {
    response = await fetch(path, { cache: "no-store", credentials: "same-origin", signal: stop.signal, ...options });
  } catch (error) {
    state.lost ||= Date.now();
    throw new Error("LOST the server does not answer");
  } finally {
    clearTimeout(timer);
  }
  state.lost = null;
  const answer = await response.json().catch(() => ({ error: `answer ${response.status}` }));
  if (response.status === 401 && path !== "/api/login") await log_in();
  if (!response.ok) throw Object.assign(new Error(answer.error || `answer ${response.status}`), { status: response.status });
  return answer;
}

// ---- logging in ----

const post = (path, fields) => ask(path, { method: "POST", body: new URLSearchParams(fields) });

let logging_in = null;

/** Who has typed a name or a password can log out, also on a page that is opened later with the same session. */
function offer_logout(is_offered) {
  $("logout").hidden = !is_offered;
  try { localStorage.setItem("typed", is_offered ? "yes" : ""); } catch { /* It is offered then. */ }
}

function was_typed() {
  try { return localStorage.getItem("typed") !== ""; } catch { return true; }
}

/** Without a name first: a default user without a password needs none. Otherwise asks for one. */
function log_in() {
  logging_in ||= (async () => {
    state.user = null;
    $("logout").hidden = true;
    try {
      state.user = (await post("/api/login", {})).user;
      offer_logout(false);
    } catch (error) {
      if (error.message.startsWith("LOST")) throw error;
      $("login-error").textContent = error.status === 403 ? error.message : "";
      if (!$("login").open) $("login").showModal();
      await new Promise((done) => { $("login").addEventListener("close", done, { once: true }); });
      offer_logout(true);
    }
  })().finally(() => { logging_in = null; });
  return logging_in;
}

$("login").addEventListener("cancel", (event) => event.preventDefault());
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("login-error").textContent = "";
  try {
    state.user = (await post("/api/login", new FormData(event.target))).user;
    event.target.reset();
    $("login").close();
  } catch (error) {
    $("login-error").textContent = error.message;
  }
});
$("logout").addEventListener("click", async () => {
  await post("/api/logout", {}).catch(() => {});
  state.user = null;
  $("logout").hidden = true;
  $("login-error").textContent = "Logged out.";
  $("login").showModal();
  // Whatever is asked meanwhile waits for somebody to log in.
  logging_in = new Promise((done) => { $("login").addEventListener("close", done, { once: true }); });
  await logging_in;
  logging_in = null;
  offer_logout(true);
});

// ---- the cluster in words ----

const node_name = (id) => {
  const node = (state.cluster?.nodes || []).find((node) => node.id === id);
  return node?.clients || `node ${id}`;
};

/** A text of the timeline, with addresses for the numbers of nodes. */
const with_names = (text) => (state.cluster?.nodes || []).reduce(
  (text, node) => (node.clients ? text.replaceAll(`node ${node.id}`, node.clients).replaceAll(node.id, node.clients) : text), text);

const listed = (items) => (items.length <= 4 ? items.join(", ") : `${items.slice(0, 3).join(", ")} and ${items.length - 3} more`);

/** Figures of the last seconds of the history. */
function recent(name, span_s, join) {
  const history = state.history;
  const place = history ? history.series.findIndex((series) => series[0] === name) : -1;
  if (place < 0) return null;
  const from = history.now_ms - span_s * 1000 - history.step_ms;
  const values = history.values[place].filter((value, index) => value !== null && history.at_ms[index] >= from);
  return values.length === 0 ? null : join(values);
}
const last = (name) => recent(name, 5, (values) => values.at(-1));
const highest = (name, span_s) => recent(name, span_s, (values) => Math.max(...values));
const mean = (name, span_s) => recent(name, span_s, (values) => values.reduce((a, b) => a + b, 0) / values.length);

/** What is wrong, the worst first: how bad (2 or 1), in words, and the page that shows more. */
function findings() {
  const found = [];
  const say = (level, text, page) => found.push({ level, text, page });
  if (state.lost) {
    say(2, `The server has not answered for ${seconds((Date.now() - state.lost) / 1000)}: what is shown is from before.`);
  }
  if (state.cluster_error) {
    const busy = state.cluster_error.startsWith("BUSY");
    say(2, busy ? "A core of this node does not answer: it has been at one thing for more than 3 s." : state.cluster_error, "stalls");
  }
  const cluster = state.cluster;
  if (!cluster) return found;
  const leaderless = cluster.groups.filter((group) => group.leader === null && group.here !== "loading");
  if (leaderless.length > 0) {
    const all = leaderless.length === cluster.groups.length;
    const missing = [...new Set(leaderless.flatMap((group) => group.not_heard))].map(node_name);
    const longest = Math.max(...leaderless.map((group) => group.leaderless_ms));
    const who = all ? (["", "The group has", "Both groups have"][cluster.groups.length] || `All ${cluster.groups.length} groups have`)
      : `${leaderless.length} of ${cluster.groups.length} groups (${listed(leaderless.map((group) => group.group))}) have`;
    const why = missing.length > 0 ? `: not heard: ${listed(missing)}` : "";
    say(2, `${who} no leader, for ${millis(longest)}${why}. Writes there wait or are refused.`, "cluster");
  }
  const loading = cluster.groups.filter((group) => group.here === "loading");
  if (loading.length > 0) say(1, `This node is loading ${loading.length} of ${cluster.groups.length} groups.`, "cluster");
  const doubtful = cluster.groups.filter((group) => group.here === "in-doubt");
  if (doubtful.length > 0) say(2, `This node may lack the end of the log of ${doubtful.length} groups, and asks the others.`, "cluster");
  for (const node of cluster.nodes) {
    if (node.state === "down") {
      say(2, `${node_name(node.id)} is down${node.last_cut ? `: ${node.last_cut}` : ""}.`, "cluster");
    } else if (!node.linked && node.state !== "removed") {
      say(1, `The link from here to ${node_name(node.id)} is cut${node.last_cut ? `: ${node.last_cut}` : ""}.`, "cluster");
    }
    if (node.state === "leaving" || node.state === "removed") say(1, `${node_name(node.id)} is ${node.state}.`, "cluster");
  }
  const behind = new Map();
  for (const group of cluster.groups) {
    for (const follower of group.followers) {
      const fed = follower.feed === "checkpoint" || follower.feed === "disk";
      if (follower.active && (follower.lag_ms >= 1000 || fed)) {
        const known = behind.get(follower.node) || { groups: 0, lag_ms: 0, feed: "" };
        known.groups += 1;
        known.lag_ms = Math.max(known.lag_ms, follower.lag_ms);
        if (fed) known.feed = follower.feed;
        behind.set(follower.node, known);
      }
    }
  }
  for (const [node, known] of behind) {
    const feed = known.feed === "checkpoint" ? ", and is given a checkpoint" : known.feed === "disk" ? ", and is fed from disk" : "";
    say(1, `${node_name(node)} is ${millis(known.lag_ms)} behind in ${known.groups} groups${feed}.`, "cluster");
  }
  const now = state.history ? state.history.now_ms : Date.now();
  const happened = (kind, span_s) => state.timeline.find((event) => event.kind === kind && now - event.unix_ms < span_s * 1000);
  const refusal = happened("refusal", 60);
  if (refusal) say(2, `Requests are refused: ${with_names(refusal.text)}`, "timeline");
  const slow = happened("slow", 600);
  if (slow) say(1, `${node_name(slow.node)}: ${with_names(slow.text)} (${clock(slow.unix_ms)})`, "timeline");
  const sync = mean("log_sync", 60);
  if (sync !== null && sync > 50000) say(1, `A sync of the log takes ${micros(sync)}: the disk of this node is slow.`, "overview");
  const stalls = (state.stalls?.latest || []).filter((stall) => now - stall.unix_ms < 600000);
  // Only the latest are told.
  const span_s = stalls.length === (state.stalls?.latest || []).length && stalls.length > 0 ? (now - stalls.at(-1).unix_ms) / 1000 : 600;
  const lost_us = stalls.reduce((sum, stall) => sum + stall.took_us, 0);
  if (lost_us > 1000000 || stalls.some((stall) => stall.took_us > 500000)) {
    const causes = new Map();
    for (const stall of stalls) causes.set(blame(stall), (causes.get(blame(stall)) || 0) + stall.took_us);
    const [worst, worst_us] = [...causes].sort((a, b) => b[1] - a[1])[0];
    const part = worst_us > 0.9 * lost_us ? "because" : `${micros(worst_us)} of it because`;
    say(1, `Cores of this node stalled ${stalls.length} times in ${seconds(Math.max(span_s, 1))}, ${micros(lost_us)} in all, ${part} ${worst}.`, "stalls");
  }
  const stalled = mean("stalled", 60);
  if (!state.stalls && stalled > 20) {
    say(1, `Cores of this node stall for ${FORMATS.per_mille(stalled)} of the time of one core; this user may not see why.`, "stalls");
  }
  const hottest = last("hottest_key");
  if (hottest > 200) say(1, `The commands on one key take ${FORMATS.per_mille(hottest)} of the time of a core.`, "hot");
  const evicted = mean("evicted", 60);
  if (evicted) say(1, `Memory is full: ${count(evicted)} keys a second are evicted.`, "overview");
  const refused = mean("clients_refused", 60);
  if (refused) say(1, "Connections are refused: there are as many as maxclients allows.", "clients");
  return found.sort((a, b) => b.level - a.level);
}

const CAUSES = {
  work: "the core was busy with", processor: "other threads had its processor", stolen: "a hypervisor gave its processor to other machines",
  paging: "its memory had to be read from disk", stopped: "a signal stopped it",
  blocked: "it waited in a call of the system",
};
const WORKS = { turn: "many small things at once", sleep: "nothing: it was woken late" };
const blame = (stall) => (stall.cause === "work" ? `${CAUSES.work} ${WORKS[stall.work] || stall.work}` : CAUSES[stall.cause] || stall.cause);

function show_verdict() {
  const box = $("verdict");
  const found = findings();
  if (!state.cluster && found.length === 0) { box.className = ""; fill(box); return; }
  box.className = found.length === 0 ? "good" : found[0].level === 2 ? "bad" : "warn";
  const line = (finding) => [finding.text, finding.page ? [" ", h("a", { href: `#${finding.page}` }, "Show")] : []].flat();
  if (found.length === 0) {
    const { nodes, groups } = state.cluster;
    const lag = Math.max(0, ...groups.flatMap((group) => group.followers.map((follower) => follower.lag_ms)));
    const size = `${nodes.length} ${nodes.length === 1 ? "node" : "nodes"}, ${groups.length} ${groups.length === 1 ? "group" : "groups"}, each with a leader`;
    const replicas = nodes.length > 1 ? `; no follower is more than ${millis(lag)} behind` : "";
    fill(box, h("h1", {}, "No problems found."), h("p", { class: "soft" }, `${size}${replicas}.`));
    return;
  }
  const rest = found.slice(1, 8);
  fill(box, h("h1", {}, line(found[0])), rest.length > 0 ? h("ul", {}, rest.map((finding) => h("li", {}, line(finding)))) : null);
}

// ---- charts: all on one axis of time, with the timeline's events ----

const CHARTS = [
  ["Commands by family", ["read_calls", "write_calls", "script_calls", "other_calls"]],
  ["Time of a read", ["read_p50", "read_p99", "read_max"], "log"],
  ["Time of a write", ["write_p50", "write_p99", "write_max"], "log"],
  ["Time of scripts and others, p99", ["script_p99", "other_p99"], "log"],
  ["Sync of the log", ["log_sync"], "log"],
  ["Slowest follower", ["follower_lag"]],
  ["Stalled cores", ["stalled"]],
  ["Hottest key, of one core's time", ["hottest_key"]],
  ["Processor time", ["cpu_user", "cpu_system"]],
  ["Memory", ["memory_resident", "memory_used", "memory_keys", "memory_clients"]],
  ["Network", ["input", "output", "link_bytes"]],
  ["Disk, written", ["log_bytes", "checkpoint_bytes"]],
  ["Waiting to be written, sent or applied", ["log_waiting", "link_waiting", "window"]],
  ["Clients", ["clients", "clients_waiting"]],
  ["Keys found, missed, expired, evicted", ["hits", "misses", "expired", "evicted"]],
  ["Error replies", ["errors", "clients_refused"]],
];
/** The charts that begin with these figures. */
const charts_of = (...names) => names.map((name) => CHARTS.find(([, figures]) => figures[0] === name));
const LABELS = {
  read_calls: "reads", write_calls: "writes", script_calls: "scripts", other_calls: "others", read_p50: "p50", read_p99: "p99",
  read_max: "longest", write_p50: "p50", write_p99: "p99", write_max: "longest", script_p99: "scripts", other_p99: "others",
  log_sync: "last sync", follower_lag: "behind", stalled: "of one core", cpu_user: "user", cpu_system: "kernel",
  memory_resident: "resident", memory_used: "allocated", memory_keys: "keys", memory_clients: "clients", input: "from clients",
  output: "to clients", link_bytes: "to nodes", log_bytes: "log", checkpoint_bytes: "checkpoints", log_waiting: "log",
  link_waiting: "links", window: "not applied", clients: "open", clients_waiting: "waiting for data", hits: "found",
  misses: "missed", expired: "expired", evicted: "evicted", errors: "errors", clients_refused: "connections refused",
  hottest_key: "the hottest key",
};
const EVENT_COLOURS = { refusal: "--bad", slow: "--warn", link: "--warn", leader: "--accent", "hand-over": "--accent" };

let canvases = [];

function make_charts(wanted) {
  canvases = [];
  return wanted.map(([title, names, scale]) => {
    const legend = h("span", { class: "legend" }, names.map((name, index) => h("span", {}, h("i", { class: `k${index}` }), LABELS[name])));
    const canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": title });
    const chart = { canvas, names, scale, title };
    canvas.addEventListener("pointermove", (event) => hover(chart, event));
    canvas.addEventListener("pointerleave", () => { state.hover_ms = null; $("tip")?.remove(); draw_charts(); });
    canvas.addEventListener("click", () => open_nearest());
    canvases.push(chart);
    return h("div", { class: "chart" }, h("h3", {}, title, legend), canvas);
  });
}

const LEFT = 58, RIGHT = 8, TOP = 12, BOTTOM = 18;

/** What the charts show: no more than was chosen, and no more than there is. */
function times() {
  const to = state.history.now_ms;
  const first = state.history.at_ms[0] ?? to;
  return [Math.max(to - state.range_s * 1000, Math.min(first - 5000, to - 60000)), to];
}

const STALLS_MARKED = 12;

/** Events of the timeline and the longest stalls, on the same axis. */
function events_between(from, to) {
  const within = (state.stalls?.latest || []).filter((stall) => stall.took_us >= 20000 && stall.unix_ms >= from && stall.unix_ms <= to);
  const stalls = within.sort((a, b) => b.took_us - a.took_us).slice(0, STALLS_MARKED)
    .map((stall) => ({ unix_ms: stall.unix_ms, kind: "stall", text: `core ${stall.core} stalled for ${micros(stall.took_us)}: ${blame(stall)}`, node: null }));
  return state.timeline.concat(stalls).filter((event) => event.unix_ms >= from && event.unix_ms <= to);
}

function nice_steps(top, base) {
  const raw = top / 3 || 1;
  const unit = base ** Math.floor(Math.log(raw) / Math.log(base));
  const step = [1, 2, 2.5, 5, 10, 16, 32, 64, 128, 256, 512, 1024].map((factor) => factor * unit).find((step) => step >= raw) || raw;
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, index) => index * step);
}

function draw_charts() {
  if (!state.history) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const [from, to] = times();
  const events = events_between(from, to);
  for (const chart of canvases) draw(chart, from, to, events, colour);
}

function draw(chart, from, to, events, colour) {
  const { canvas, names, scale } = chart;
  const history = state.history;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (width === 0) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "11px system-ui, sans-serif";
  const places = names.map((name) => history.series.findIndex((series) => series[0] === name));
  const unit = history.series[places[0]][1];
  const format = FORMATS[unit];
  const lines = places.map((place) => history.values[place]);
  const inside = history.at_ms.map((at) => at >= from - history.step_ms);
  let [low, top] = [Infinity, 0];
  lines.forEach((line) => line.forEach((value, index) => {
    if (value !== null && inside[index]) { top = Math.max(top, value); if (value > 0) low = Math.min(low, value); }
  }));
  const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - RIGHT);
  let ticks, y;
  if (scale === "log" && top > 0) {
    const [bottom, upper] = [Math.floor(Math.log10(low)), Math.max(Math.ceil(Math.log10(top)), Math.floor(Math.log10(low)) + 1)];
    const every = Math.ceil((upper - bottom) / 4);
    ticks = Array.from({ length: Math.floor((upper - bottom) / every) + 1 }, (_, index) => 10 ** (bottom + index * every));
    y = (value) => TOP + (1 - (Math.log10(Math.max(value, 10 ** bottom)) - bottom) / (upper - bottom)) * (height - TOP - BOTTOM);
  } else {
    const least = { per_mille: 50, count: 4, bytes: 1024, bytes_per_second: 1024, us: 1000 }[unit] || 4;
    const reach = Math.max(top, least);
    const base = unit.startsWith("bytes") ? 1024 : 10;
    ticks = nice_steps(reach, base);
    const upper = Math.max(reach * 1.05, ticks.at(-1));
    y = (value) => TOP + (1 - value / upper) * (height - TOP - BOTTOM);
  }
  const is_empty = !lines.some((line) => line.some((value) => value !== null));
  if (is_empty) ticks = [];
  pen.strokeStyle = colour("--grid");
  pen.fillStyle = colour("--soft");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const tick of ticks) {
    pen.beginPath();
    pen.moveTo(LEFT, y(tick));
    pen.lineTo(width - RIGHT, y(tick));
    pen.stroke();
    pen.fillText(format(tick), LEFT - 6, y(tick));
  }
  pen.textBaseline = "alphabetic";
  pen.textAlign = "center";
  const minutes = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360].find((step) => (to - from) / (step * 60000) <= Math.max(2, width / 90)) || 720;
  const offset = new Date(to).getTimezoneOffset() * 60000;
  for (let at = Math.ceil((from - offset) / (minutes * 60000)) * minutes * 60000 + offset; at <= to; at += minutes * 60000) {
    const label = new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
    pen.fillText(label, Math.min(Math.max(x(at), LEFT + 14), width - 16), height - 4);
  }
  const marked = new Set();
  for (const event of events) {
    // Of several in one place one mark says enough.
    const place = `${event.kind} ${Math.round(x(event.unix_ms) / 5)}`;
    if (marked.has(place)) continue;
    marked.add(place);
    pen.strokeStyle = pen.fillStyle = colour(EVENT_COLOURS[event.kind] || "--soft");
    pen.globalAlpha = 0.25;
    pen.beginPath();
    pen.moveTo(x(event.unix_ms), TOP);
    pen.lineTo(x(event.unix_ms), height - BOTTOM);
    pen.stroke();
    pen.globalAlpha = 1;
    pen.beginPath();
    pen.moveTo(x(event.unix_ms) - 4, 2);
    pen.lineTo(x(event.unix_ms) + 4, 2);
    pen.lineTo(x(event.unix_ms), TOP - 2);
    pen.fill();
  }
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width - LEFT - RIGHT, height);
  pen.clip();
  pen.lineWidth = 1.5;
  pen.lineJoin = "round";
  lines.forEach((line, index) => {
    pen.strokeStyle = pen.fillStyle = colour(`--c${index}`);
    let open = false;
    pen.beginPath();
    line.forEach((value, place) => {
      if (value === null) { open = false; return; }
      const at = x(history.at_ms[place] + history.step_ms / 2);
      // A second between two that nobody has measured is a dot.
      const alone = !open && (place + 1 >= line.length || line[place + 1] === null);
      if (alone) pen.fillRect(at - 1, y(value) - 1, 2, 2);
      if (open) pen.lineTo(at, y(value)); else pen.moveTo(at, y(value));
      open = true;
    });
    pen.stroke();
  });
  pen.restore();
  if (is_empty) {
    pen.fillStyle = colour("--soft");
    pen.textAlign = "center";
    pen.fillText("nothing measured yet", LEFT + (width - LEFT) / 2, height / 2);
  }
  if (state.hover_ms !== null) {
    pen.strokeStyle = colour("--soft");
    pen.beginPath();
    pen.moveTo(x(state.hover_ms), TOP);
    pen.lineTo(x(state.hover_ms), height - BOTTOM);
    pen.stroke();
  }
}

function hover(chart, event) {
  if (!state.history) return;
  const box = chart.canvas.getBoundingClientRect();
  const [from, to] = times();
  const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
  state.hover_ms = from + Math.min(Math.max(share, 0), 1) * (to - from);
  draw_charts();
  const history = state.history;
  const place = history.at_ms.findLastIndex((at) => at <= state.hover_ms);
  const rows = chart.names.map((name) => {
    const series = history.series.findIndex((series) => series[0] === name);
    const value = place < 0 ? null : history.values[series][place];
    return h("div", {}, `${LABELS[name]}: ${value === null ? "not measured" : FORMATS[history.series[series][1]](value)}`);
  });
  const reach = ((to - from) / box.width) * 6;
  const near = events_between(state.hover_ms - reach, state.hover_ms + reach).slice(0, 3);
  const lines = near.map((event) => h("div", { class: "event" }, `${clock(event.unix_ms)} ${event.node ? `${node_name(event.node)}: ` : ""}${with_names(event.text)}`));
  const tip = $("tip") || document.body.appendChild(h("div", { id: "tip" }));
  fill(tip, h("div", {}, clock(state.hover_ms)), rows, lines);
  const right = event.clientX + 14 + tip.offsetWidth < window.innerWidth;
  tip.style.left = `${right ? event.clientX + 14 : Math.max(4, event.clientX - 14 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}

/** Opens the timeline at the time under the pointer. */
function open_nearest() {
  if (state.hover_ms === null) return;
  state.mark_ms = state.hover_ms;
  location.hash = "#timeline";
}

// ---- pages ----

const table = (heads, rows, empty, style) => (rows.length === 0 ? h("p", { class: "soft" }, empty)
  : h("div", { class: "scroll" }, h("table", { class: style }, h("thead", {}, h("tr", {}, heads.map((head) => {
    const [text, kind] = [head].flat();
    return h("th", { scope: "col", class: kind }, text);
  }))), h("tbody", {}, rows))));
const cell = (content, kind, title) => h("td", { class: kind, title }, content);
const number = (text) => cell(text, "number");

function overview() {
  const view = h("div", {}, h("div", { class: "tiles", id: "tiles" }), h("div", { class: "charts" }, make_charts(CHARTS)));
  return view;
}

function refresh_overview() {
  const tile = (label, value, format) => h("div", { class: "tile" }, h("b", {}, value === null ? "–" : format(value)), h("span", {}, label));
  const tiles = $("tiles");
  if (!tiles) return;
  fill(tiles, tile("commands a second", last("commands"), count),
    tile("time of a write (p99)", highest("write_p99", 10), nanos),
    tile("last sync to disk", last("log_sync"), micros),
    tile("lag of the slowest follower", last("follower_lag"), micros),
    tile("time of a read (p99)", highest("read_p99", 10), nanos),
    tile("clients", last("clients"), count),
    tile("resident memory", last("memory_resident"), bytes),
    tile("of one processor", last("cpu_user") === null ? null : last("cpu_user") + last("cpu_system"), FORMATS.per_mille));
  draw_charts();
}

const cluster_page = () => h("div", {}, h("div", { class: "card", id: "nodes" }), h("div", { class: "card", id: "groups" }));

/** Slots of a group: after moves they are many runs, and the replicas beside them are what the page is about. */
function slots_cell(text) {
  const runs = text.split(",");
  return runs.length <= 3 ? cell(text, "nowrap") : cell(`${runs.slice(0, 2).join(",")} and ${runs.length - 2} more`, "nowrap", text);
}

const STATES = { here: "good", up: "good", down: "bad", leaving: "warn", joining: "warn", removed: "warn" };

function refresh_cluster() {
  const cluster = state.cluster;
  if (!cluster || !$("nodes")) return;
  const rows = cluster.nodes.map((node) => h("tr", {},
    cell([node.clients || node.id, node.state === "here" ? h("span", { class: "soft" }, " (this node)") : null,
      node.zone ? h("span", { class: "soft" }, ` zone ${node.zone}`) : null].filter(Boolean)),
    cell(node.state === "here" ? "up" : node.state, STATES[node.state]), number(node.leads.length), number(node.votes), number(node.learns),
    cell(node.state === "here" ? "–" : node.linked ? "up" : "cut", node.linked ? "good" : "bad"), number(node.links),
    cell(node.last_cut || "–", "wide"), cell(node.cluster, "nowrap"), cell(node.name, "mono nowrap")));
  fill($("nodes"), h("h2", {}, "Nodes"), table([["clients"], ["state"], ["leads", "number"], ["votes in", "number"],
    ["learns", "number"], ["link"], ["made", "number"], ["last cut"], ["other nodes"], ["id"]], rows, "no nodes"));
  const columns = cluster.nodes;
  const matrix = cluster.groups.map((group) => {
    const cells = columns.map((node) => {
      const follower = group.followers.find((follower) => follower.node === node.id);
      const learns = group.learners.includes(node.id);
      if (group.leader === node.id) return cell(h("span", { class: "cell lead", title: "leads" }, "leads"));
      // Where nobody leads, what is known of followers is of the past.
      if (group.leader === null && group.voters.includes(node.id)) {
        return group.not_heard.includes(node.id) ? cell(h("span", { class: "cell bad", title: "this node does not hear it" }, "silent"))
          : cell(h("span", { class: "cell", title: "heard; nobody tells how far it is" }, "heard"));
      }
      if (!follower && !group.voters.includes(node.id) && !learns) return cell("");
      if (!follower) return cell(h("span", { class: "cell", title: "voter; nobody tells how far it is" }, "?"));
      const title = `${learns ? "does not vote yet; " : ""}${follower.behind_entries} entries (${bytes(follower.behind_bytes)}) behind, heard ${millis(follower.silent_ms)} ago, ${follower.feed}`;
      if (!follower.active) return cell(h("span", { class: "cell bad", title }, "silent"));
      if (follower.feed === "checkpoint") return cell(h("span", { class: "cell warn", title }, "is given all"));
      const style = follower.lag_ms >= 1000 || follower.feed === "disk" ? "warn" : "good";
      return cell(h("span", { class: `cell ${style}`, title }, follower.lag_ms === 0 ? "✓" : millis(follower.lag_ms), learns ? " learns" : ""));
    });
    const remark = group.leader === null ? `no leader for ${millis(group.leaderless_ms)}`
      : group.to_give > 0 ? `${group.to_give} slots to give` : group.here === "serving" || group.here === "following" ? "" : group.here;
    return h("tr", {}, cell(group.group), slots_cell(group.slots), cells, number(group.term), number(group.last),
      cell(remark, group.leader === null ? "bad" : ""));
  });
  fill($("groups"), h("h2", {}, "Groups and their replicas"),
    h("p", { class: "soft" }, "✓ is as far as its leader, a time is how far behind, silent is not heard. Leaders tell this once a second."),
    table([["group"], ["slots"], ...columns.map((node) => [node.clients || node.id]), ["term", "number"], ["last entry", "number"], [""]], matrix, "no groups", "matrix"));
}

function timeline_page() {
  const charts = charts_of("read_calls", "log_sync", "follower_lag", "stalled");
  return h("div", {}, h("div", { class: "charts" }, make_charts(charts)), h("div", { class: "card", id: "events" }));
}

function refresh_timeline() {
  draw_charts();
  if (!$("events")) return;
  const mark = state.mark_ms;
  const all = state.timeline;
  const nearest = mark === null || all.length === 0 ? null
    : all.reduce((best, event) => (Math.abs(event.unix_ms - mark) < Math.abs(best.unix_ms - mark) ? event : best));
  const rows = all.map((event) => h("tr", { class: event === nearest ? "mark" : null, id: event === nearest ? "marked" : null },
    cell(moment(event.unix_ms), "nowrap mono"), cell(node_name(event.node), "nowrap"),
    cell(h("span", { class: `kind ${event.kind === "refusal" ? "bad" : event.kind === "slow" || event.kind === "link" ? "warn" : "soft"}` }, event.kind)),
    cell(event.group === null ? "" : event.group), cell(with_names(event.text), "wide")));
  fill($("events"), h("h2", {}, "What has happened, and why"),
    table([["when"], ["who tells"], ["kind"], ["group"], ["what, and why"]], rows, "Nothing has happened yet."));
  if (nearest && state.scroll) { $("marked").scrollIntoView({ block: "center" }); state.scroll = false; }
}

const stalls_page = () => h("div", {}, h("div", { class: "charts" }, make_charts(charts_of("stalled", "cpu_user"))), h("div", { class: "card", id: "stalls" }));

function refresh_stalls() {
  draw_charts();
  const box = $("stalls");
  if (!box) return;
  if (!state.stalls) { fill(box, h("p", { class: "bad" }, state.stalls_error || "")); return; }
  const { count: all, total_us, missed, latest } = state.stalls;
  const rows = latest.map((stall) => h("tr", {}, cell(moment(stall.unix_ms), "nowrap mono"), number(stall.core), number(micros(stall.took_us)),
    cell(blame(stall), "wide"), cell(stall.work, "mono nowrap"), number(micros(stall.ran_us)), number(micros(stall.waited_us)), number(micros(stall.stolen_us)),
    number(stall.major_faults), number([stall.pressure_cpu_us, stall.pressure_io_us, stall.pressure_memory_us].map(micros).join(" / ")), number(micros(stall.window_us))));
  fill(box, h("h2", {}, "Stalls of 5 ms and more of a core of this node"),
    h("p", { class: "soft" }, `${all} times since the start, ${micros(total_us)} in all${missed ? `; ${missed} more could not be looked into` : ""}. ` +
      "Ran, waited and the rest are what the machine did in a window around each."),
    table([["when"], ["core", "number"], ["how long", "number"], ["why"], ["what it did"], ["ran", "number"], ["waited", "number"], ["stolen", "number"],
      ["page faults", "number"], ["pressure: CPU / disk / memory", "number"], ["window", "number"]], rows, "None so far."));
}

const page_with = (id, title, lead) => () => h("div", { class: "card" }, h("h2", {}, title), lead ? h("p", { class: "soft" }, lead) : null, h("div", { id }));

async function refresh_slow() {
  const answer = await ask("/api/slowlog");
  const rows = answer.reply.map(([id, at, took, words, address, name]) => h("tr", {}, cell(moment(at * 1000).slice(0, -4), "nowrap mono"),
    number(micros(took)), cell(words.join(" "), "wide mono"), cell(address, "nowrap"), cell(name), number(id)));
  fill($("slow"), table([["when"], ["took", "number"], ["command"], ["client"], ["name"], ["number", "number"]], rows, "No command was slower than slowlog-log-slower-than."));
}

async function refresh_clients() {
  const answer = await ask("/api/clients");
  const all = answer.reply.trim().split("\n").filter(Boolean).map((line) => {
    const client = {};
    for (const part of line.split(" ")) { const at = part.indexOf("="); client[part.slice(0, at)] = part.slice(at + 1); }
    return client;
  });
  const shown = all.sort((a, b) => Number(b["tot-mem"] || 0) - Number(a["tot-mem"] || 0)).slice(0, 500);
  const rows = shown.map((client) => h("tr", {}, number(client.id), cell(client.addr, "nowrap"), cell(client.name), cell(client.user),
    cell(client.cmd, "mono"), number(seconds(Number(client.age))), number(seconds(Number(client.idle))), number(bytes(Number(client["tot-mem"] || 0))),
    number(bytes(Number(client.omem || 0))), cell(client.flags, "mono")));
  fill($("clients"), h("p", { class: "soft" }, `${all.length} clients, those with the most memory first${all.length > 500 ? "; 500 are shown" : ""}.`),
    table([["id", "number"], ["address"], ["name"], ["user"], ["last command"], ["connected", "number"], ["idle", "number"], ["memory", "number"],
      ["output", "number"], ["flags"]], rows, "none"));
}

const hot_page = () => h("div", {}, h("div", { class: "charts" }, make_charts(charts_of("hottest_key", "cpu_user", "read_calls"))),
  h("div", { class: "card" }, h("h2", {}, "Keys that take the most"), h("p", { class: "soft" },
    "Of this node's clients, in the last one to two minutes; estimated from a sample. The commands of one key run on one core, however many there are."),
  h("div", { id: "hot" })));

async function refresh_hot() {
  draw_charts();
  if (!is_due("hot", 5000)) return;
  const { window_ms, calls, time_us, keys: found } = await ask("/api/hotkeys");
  const box = $("hot");
  if (!box) return;
  const part = (value, of) => (of > 0 ? `${(100 * Math.min(value / of, 1)).toFixed(1)} %` : "–");
  const rows = found.map((key) => h("tr", {}, cell(h("button", { type: "button", class: "mono", onclick: () => show_key(key) }, key.name || "(empty)"), "wide"),
    number(part(key.time_us, window_ms * 1000)), number(part(key.time_us, time_us)), number(part(key.calls, calls)),
    number(`${count(Math.round(key.calls / Math.max(window_ms / 1000, 1)))}/s`), number(key.calls > 0 ? micros(key.time_us / key.calls) : "–")));
  fill(box, table([["key"], ["of one core's time", "number"], ["of all time", "number"], ["of all calls", "number"], ["calls", "number"], ["a call takes", "number"]],
    rows, "No key stands out: none has more than 3 % of the calls or of the time."));
}

const operations_page = () => h("div", {}, h("div", { class: "card", id: "moves" }), h("div", { class: "card", id: "copies" }));

const text_or = (error) => h("p", { class: "bad" }, error);

async function refresh_operations() {
  const told = (path) => ask(path).catch((error) => ({ error: error.message }));
  const [plan, info] = await Promise.all([told("/api/plan"), told("/api/info")]);
  if (!$("moves")) return;
  show_moves(plan);
  show_copies(info);
}

function show_moves(plan) {
  const cluster = state.cluster;
  const names = (nodes) => nodes.map(node_name).join(", ");
  const differ = (one, other) => [...one].sort().join() !== [...other].sort().join();
  const moving = (cluster?.groups || []).filter((group) => group.placed.length > 0 && differ(group.placed, group.voters)).map((group) => {
    const given = group.followers.filter((follower) => follower.feed === "checkpoint")
      .map((follower) => `${node_name(follower.node)} has ${bytes(Math.max(0, group.bytes - follower.behind_bytes))} of ${bytes(group.bytes)}`);
    return h("tr", {}, number(group.group), cell(names(group.voters), "wide"), cell(names(group.placed), "wide"), cell(given.join("; ") || "–", "wide"));
  });
  const steps = (plan.reply || []).map((step) => h("tr", {}, number(step.group), cell(names(step.nodes), "wide"), number(bytes(step.bytes)),
    number(step.seconds > 0 ? seconds(step.seconds) : "–"), cell(with_names(step.reason), "wide")));
  const stages = { writing: "writes a checkpoint", due: "waits for its turn to write a checkpoint" };
  const at_work = (cluster?.nodes || []).filter((node) => stages[node.checkpoint]).map((node) => h("p", {}, `${node_name(node.id)} ${stages[node.checkpoint]}.`));
  fill($("moves"), h("h2", {}, "Groups that move"),
    cluster && !cluster.balancing ? h("p", { class: "warn" }, "The balancer is off: groups stay where they are.") : null,
    table([["group", "number"], ["is on"], ["goes to"], ["how far"]], moving, "No group moves."),
    h("h2", {}, "What the balancer would do next"),
    plan.error ? text_or(plan.error) : table([["group", "number"], ["to"], ["bytes", "number"], ["takes", "number"], ["because"]], steps, "Nothing: each node holds its share."),
    h("h2", {}, "Checkpoints"), at_work.length > 0 ? at_work : h("p", { class: "soft" }, "No node writes one, and none waits for its turn."));
}

function show_copies(info) {
  if (info.error) { fill($("copies"), h("h2", {}, "Backups, archive, sites"), text_or(info.error)); return; }
  const fields = new Map(info.reply.split("\r\n").map((line) => { const at = line.indexOf(":"); return [line.slice(0, at), line.slice(at + 1)]; }));
  const field = (name) => fields.get(name) || "";
  const ago = (age_s) => (age_s < 0 ? "never" : `${seconds(age_s)} ago`);
  const list = (rows) => h("dl", {}, rows.filter((row) => row[1] !== "").flatMap(([name, value, style]) => [h("dt", {}, name), h("dd", { class: style }, value)]));
  const backups = fields.has("backups_kept") ? list([
    ["made by", field("backup_maker") === "1" ? "this node" : "the node that leads group 0"],
    ["now", field("backup_in_progress") === "1" ? "one is made" : "none is made"],
    ["the newest", ago(Number(field("backup_last_good_age_s"))), Number(field("backup_last_good_age_s")) < 0 ? "warn" : ""],
    ["kept", field("backups_kept")], ["made and failed since the start", `${field("backups_made")} and ${field("backups_failed")}`],
    ["the last failure", field("backup_last_fault"), "bad"],
  ]) : h("p", { class: "soft" }, "None are scheduled (backup-dir).");
  const archive = field("archive_state") === "off" ? h("p", { class: "soft" }, "None is kept (archive).") : list([
    ["state", field("archive_state"), field("archive_state") === "ok" ? "good" : "bad"], ["what is wrong", field("archive_fault"), "bad"],
    ["behind", `${millis(Number(field("archive_lag_ms")))}, ${count(Number(field("archive_lacking_entries")))} entries`],
    ["never archived", Number(field("archive_lost_entries")) > 0 ? `${field("archive_lost_entries")} entries` : "", "bad"],
    ["written", `${bytes(Number(field("archive_bytes_written")))} for ${bytes(Number(field("archive_entry_bytes")))}`],
  ]);
  const followers = [...fields].filter(([name]) => /^site_follower\d+$/.test(name)).map(([, line]) => {
    const parts = Object.fromEntries(line.split(",").map((part) => part.split("=")));
    return h("tr", {}, cell(parts.address, "nowrap"), cell(parts.state), number(millis(Number(parts.lag_ms))), number(bytes(Number(parts.pending_bytes))), number(parts.ratio));
  });
  const near = field("site_backlog") === "on" ? [list([
    ["kept for others", `${bytes(Number(field("site_backlog_bytes")))} of ${field("site_backlog_bytes_max")}`], ["what is wrong", field("site_backlog_fault"), "bad"]]),
  table([["cluster that follows"], ["state"], ["behind", "number"], ["waiting", "number"], ["ratio", "number"]], followers, "No cluster follows from this node.")] : [];
  const far = fields.has("site_follows") ? [list([
    ["follows", field("site_follows")], ["state", field("site_state")], ["behind", millis(Number(field("site_lag_ms")))],
    ["not received", bytes(Number(field("site_pending_bytes")))], ["cuts", field("site_line_cuts")], ["the last cut", field("site_last_cut")]])] : [];
  const sites = near.length + far.length > 0 ? near.concat(far) : h("p", { class: "soft" }, "This cluster follows none, and keeps nothing for one that follows.");
  fill($("copies"), h("h2", {}, "Scheduled backups"), backups, h("h2", {}, "Archive"), archive, h("h2", {}, "Sites"), sites);
}

const keys = { cursor: "0", found: [], is_done: false, pattern: "", database: "0", run: 0, by_size: false, looked_at: 0 };

function keys_page() {
  const form = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); search(); } },
    h("label", { class: "grow" }, "Begins with, or a pattern with * and ?", h("input", { id: "pattern", name: "pattern", value: keys.pattern, spellcheck: "false", autocapitalize: "off" })),
    h("label", {}, "Database", h("input", { id: "database", type: "number", min: "0", value: keys.database })),
    h("label", {}, "Order", h("select", { id: "by-size" }, h("option", { value: "", selected: !keys.by_size }, "as found"),
      h("option", { value: "1", selected: keys.by_size }, "largest first"))),
    h("button", { type: "submit", class: "primary" }, "Find"));
  return h("div", { class: "card" }, h("h2", {}, "Keys"), h("p", { class: "soft" }, "You see, and can change, what your user has permission for."), form,
    h("div", { id: "keys-list", "aria-live": "polite" }));
}

function search() {
  const text = $("pattern").value;
  Object.assign(keys, { cursor: "0", found: [], is_done: false, pattern: text, database: $("database").value || "0", run: keys.run + 1,
    by_size: $("by-size").value === "1", looked_at: 0 });
  more_keys();
}

const LARGEST_SHOWN = 200;

/**
 * Walks until there is a page of keys more, for ten seconds at most, and shows how far it is. For the largest keys it
 * walks through all, and gives others nine tenths of the time.
 */
async function more_keys() {
  const run = keys.run;
  let shown = Date.now();
  const pattern = /[*?[\\]/.test(keys.pattern) ? keys.pattern : `${keys.pattern}*`;
  const [end, wanted] = keys.by_size ? [Infinity, Infinity] : [Date.now() + 10000, keys.found.length + 100];
  try {
    do {
      const began = Date.now();
      const query = new URLSearchParams({ match: pattern, cursor: keys.cursor, db: keys.database, sizes: keys.by_size ? "1" : "" });
      const answer = await ask(`/api/keys?${query}`);
      if (run !== keys.run) return;
      keys.cursor = answer.cursor;
      keys.found.push(...answer.keys);
      keys.looked_at += answer.keys.length;
      keys.is_done = answer.cursor === "0";
      if (keys.by_size) keep_largest();
      if (Date.now() - shown > 1000) { shown = Date.now(); show_keys(); }
      if (keys.by_size && !keys.is_done) await sleep(9 * (Date.now() - began));
    } while (!keys.is_done && keys.found.length < wanted && Date.now() < end && state.page === "keys" && run === keys.run);
    if (run === keys.run) show_keys();
  } catch (error) {
    if ($("keys-list")) fill($("keys-list"), h("p", { class: "bad" }, error.message));
  }
}

const size_of = (key) => (typeof key.memory === "number" ? key.memory : -1);

function keep_largest() {
  keys.found.sort((a, b) => size_of(b) - size_of(a));
  keys.found.length = Math.min(keys.found.length, LARGEST_SHOWN);
}

const ttl = (ms) => (typeof ms !== "number" ? ms : ms < 0 ? "–" : millis(ms));

function show_keys() {
  const box = $("keys-list");
  if (!box) return;
  const rows = keys.found.slice(0, 5000).map((key) => h("tr", {}, cell(h("button", { type: "button", class: "mono", onclick: () => show_key(key) }, key.name || "(empty)"), "wide"),
    keys.by_size ? number(typeof key.memory === "number" ? bytes(key.memory) : key.memory ?? "–") : null, cell(key.type), number(ttl(key.ttl_ms))));
  const more = keys.by_size ? h("p", { class: "soft" }, `${count(keys.looked_at)} keys looked at${keys.is_done ? "; that is all" : ", and the walk goes on while this page is open"}. The ${LARGEST_SHOWN} largest are shown.`)
    : keys.is_done ? h("p", { class: "soft" }, `${keys.found.length} found; that is all.`)
    : h("p", {}, `${keys.found.length} found so far. `, h("button", { type: "button", onclick: () => more_keys() }, "More"));
  fill(box, table([["name"], ...(keys.by_size ? [["memory", "number"]] : []), ["type"], ["time to live", "number"]], rows, "None so far."), more);
}

// ---- one key, and its changes ----

/** Bytes as a server is told them, `%XX` for what is no plain text: of text, or of what was shown of a key. */
const id_of = (shown) => (shown !== null && typeof shown === "object" ? shown.id : encodeURIComponent(String(shown)));
const text_of = (shown) => {
  if (shown === null || typeof shown !== "object") return String(shown);
  if (Array.isArray(shown)) return `[${shown.map(text_of).join(", ")}]`;
  return `${shown.text}${shown.more ? `… (${shown.more} bytes more)` : ""}`;
};

function bytes_of(id) {
  const bytes = [];
  for (let place = 0; place < id.length; place += 1) {
    if (id[place] === "%") { bytes.push(parseInt(id.slice(place + 1, place + 3), 16)); place += 2; } else bytes.push(id.charCodeAt(place));
  }
  return Uint8Array.from(bytes);
}
const id_of_bytes = (bytes) => Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");

function decoded(bytes) {
  try { return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes); } catch { return null; }
}

/** Text that a field of a form returns as it was: no ends of lines that browsers replace, no characters that are not seen. */
const is_plain = (text) => text !== null && !/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\ufeff]/.test(text);
const ESCAPES = { 9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\" };

/** Any bytes as text with escapes. */
function escaped(bytes) {
  let text = "";
  for (let place = 0; place < bytes.length;) {
    const byte = bytes[place];
    const length = byte < 0x80 ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    const character = decoded(bytes.subarray(place, place + length));
    if (ESCAPES[byte]) text += ESCAPES[byte];
    else if (character !== null && is_plain(character)) { text += character; place += length - 1; } else text += `\\x${byte.toString(16).padStart(2, "0")}`;
    place += 1;
  }
  return text;
}

/** What `escaped` makes text of. */
function unescaped(text) {
  const bytes = [];
  for (const part of text.matchAll(/\\x([0-9a-fA-F]{2})|\\([ntr\\])|(\\)|([^\\]+)/g)) {
    if (part[1]) bytes.push(parseInt(part[1], 16));
    else if (part[2]) bytes.push({ n: 10, t: 9, r: 13, "\\": 92 }[part[2]]);
    else if (part[3]) throw new Error("A backslash is written as \\\\; other escapes are \\n, \\r, \\t and \\xNN.");
    else bytes.push(...new TextEncoder().encode(part[4]));
  }
  return Uint8Array.from(bytes);
}

const ESCAPES_LABEL = "with escapes (\\n, \\xNN, \\\\)";

/** A field for a value of any bytes, with `id()` for what is written there. Where text would not do, it has escapes. */
function value_field(label, shown, rows) {
  const bytes = shown === undefined ? new Uint8Array() : bytes_of(id_of(shown));
  const plain = decoded(bytes);
  const text = h("textarea", { rows, spellcheck: "false", autocapitalize: "off", autocomplete: "off", class: "mono" });
  const box = h("input", { type: "checkbox", checked: !is_plain(plain), disabled: !is_plain(plain) });
  text.value = is_plain(plain) ? plain : escaped(bytes);
  const written = () => (box.checked ? unescaped(text.value) : new TextEncoder().encode(text.value));
  box.addEventListener("change", () => {
    try {
      const now = box.checked ? new TextEncoder().encode(text.value) : unescaped(text.value);
      if (!box.checked && !is_plain(decoded(now))) throw new Error("This is no plain text.");
      text.value = box.checked ? escaped(now) : decoded(now);
      text.setCustomValidity("");
    } catch (error) {
      box.checked = !box.checked;
      text.setCustomValidity(error.message);
      text.reportValidity();
    }
  });
  const element = h("div", { class: "grow field" }, h("label", {}, label, text), h("label", { class: "check" }, box, ESCAPES_LABEL));
  return { element, id: () => id_of_bytes(written()), focus: () => text.focus() };
}

const detail = { key: null, answer: null };

async function show_key(key) {
  detail.key = key;
  $("detail-title").textContent = key.name || "(empty)";
  fill($("detail-body"), h("p", { class: "soft" }, "…"));
  if (!$("detail").open) $("detail").showModal();
  await load_key();
}

/** Shows the key as it is now, below a sentence about what was done. */
async function load_key(done) {
  const { key } = detail;
  try {
    const answer = await ask(`/api/key?name=${key.id}&db=${encodeURIComponent(keys.database)}`);
    if (key !== detail.key) return;
    detail.answer = answer;
    fill($("detail-body"), h("p", { id: "done", class: "good", role: "status" }, done || ""), h("dl", {}, [["type", answer.type], ["time to live", ttl_of(answer)], ["length", answer.length],
      ["memory", typeof answer.memory === "number" ? bytes(answer.memory) : answer.memory]]
      .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value === null ? "–" : text_of(value))])),
    h("div", { class: "row" }, key_buttons(answer)), h("div", { id: "edit" }), value_of(answer));
  } catch (error) {
    if (key === detail.key) fill($("detail-body"), h("p", { class: "bad", role: "alert" }, error.message));
  }
}

const ttl_of = (answer) => (answer.deadline_ms > 0 ? `${ttl(answer.ttl_ms)}, until ${moment(answer.deadline_ms).slice(0, -4)}` : ttl(answer.ttl_ms));
const may = (name) => detail.answer.may.includes(name);

function key_buttons(answer) {
  const button = (text, action) => h("button", { type: "button", onclick: action }, text);
  const is_known = typeof answer.deadline_ms === "number";
  return [
    may("set") && !answer.is_refused && answer.length <= answer.edit_bytes_max ? button("Change value", () => edit_string(answer)) : null,
    ...ADDITIONS.filter(([name]) => may(name)).map(([name, text, fields]) => button(text, () => edit_addition(name, text, fields))),
    may("expire") && is_known ? button("Set time to live", () => edit_deadline(answer)) : null,
    may("persist") && is_known && answer.deadline_ms >= 0 ? button("Remove deadline", () => attempt({ do: "persist", was: answer.deadline_ms }, "It has no deadline any more.")) : null,
    may("delete") ? button("Delete key", () => confirm_change(`Delete ${detail.key.name || "(empty)"}? This cannot be undone.`, "Delete", { do: "delete", shown: answer.shown }, null)) : null,
  ].filter(Boolean);
}

/** A form in the place for it; `fields` are elements, and `submit` gives what is changed, or throws why not. */
function edit(title, fields, label, submit) {
  const error = h("p", { id: "edit-error", class: "bad", role: "alert" });
  const send = async (event) => {
    event.preventDefault();
    error.textContent = "";
    try {
      const [change, done] = submit();
      await commit(change, done);
    } catch (problem) { error.textContent = problem.message; }
  };
  const cancel = h("button", { type: "button", onclick: () => { fill($("edit")); } }, "Cancel");
  fill($("edit"), h("form", { class: "edit", onsubmit: send }, h("h3", {}, title), h("div", { class: "row" }, fields), error,
    h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, label), cancel)));
  $("edit").scrollIntoView({ block: "nearest" });
}

function edit_string(answer) {
  const value = value_field("Value", answer.value, 8);
  edit("Change value", [value.element], "Save", () => [{ do: "set", was_id: id_of(answer.value), value_id: value.id() }, "Saved."]);
  value.focus();
}

const UNITS = [[1000, "seconds"], [60000, "minutes"], [3600000, "hours"], [86400000, "days"]];

function edit_deadline(answer) {
  const amount = h("input", { type: "number", min: "1", step: "1", required: true });
  const unit = h("select", {}, UNITS.map(([value, text]) => h("option", { value }, text)));
  edit("Set time to live", [h("label", {}, "From now on", amount), h("label", {}, "Unit", unit)], "Save",
    () => [{ do: "expire", was: answer.deadline_ms, ttl_ms: Number(amount.value) * Number(unit.value) }, "It has a deadline."]);
  amount.focus();
}

const ADDITIONS = [
  ["add-field", "Add field", ["field", "value"]], ["append", "Append element", ["value"]],
  ["add-member", "Add member", ["value"]], ["add-scored", "Add member", ["field", "score"]],
];

function edit_addition(name, title, names) {
  const label = { field: name === "add-scored" ? "Member" : "Field", value: name === "add-member" ? "Member" : "Value" };
  const score = score_field("");
  const fields = names.map((field) => (field === "score" ? null : [field, value_field(label[field], undefined, field === "field" ? 1 : 3)])).filter(Boolean);
  edit(title, [...fields.map(([, field]) => field.element), names.includes("score") ? score.element : null].filter(Boolean), "Add", () => {
    const change = { do: name };
    for (const [field, input] of fields) change[`${field}_id`] = input.id();
    if (names.includes("score")) change.score = score.text();
    return [change, "Added."];
  });
  fields[0][1].focus();
}

function score_field(value) {
  const input = h("input", { value, required: true, pattern: "\\s*[-+]?(\\d+\\.?\\d*([eE][-+]?\\d+)?|\\.\\d+([eE][-+]?\\d+)?|inf)\\s*", title: "a number, inf or -inf" });
  return { element: h("label", {}, "Score", input), text: () => input.value.trim(), focus: () => input.focus() };
}

/** What can be done with an element of what is shown. */
function element_buttons(answer, row) {
  if (row.some((item) => id_of(item) === undefined)) return cell("");
  const change = (text, action) => h("button", { type: "button", onclick: action }, text);
  const [first, second] = row;
  const made = [];
  const remove = (name, what, words) => {
    if (may(name)) made.push(change("Remove", () => confirm_change(`Remove ${what}?`, "Remove", { do: name, ...words }, "Removed.")));
  };
  const revalue = (name, title, shown, words) => {
    if (!may(name)) return;
    made.push(change("Change", () => {
      const value = value_field("Value", shown, 4);
      edit(title, [value.element], "Save", () => [{ do: name, ...words, was_id: id_of(shown), value_id: value.id() }, "Saved."]);
      value.focus();
    }));
  };
  if (answer.type === "hash") {
    revalue("set-field", `Change ${text_of(first)}`, second, { field_id: id_of(first) });
    remove("remove-field", text_of(first), { field_id: id_of(first), was_id: id_of(second) });
  } else if (answer.type === "list") {
    revalue("set-element", `Change the element at ${first}`, second, { index: first });
    remove("remove-element", `the element at ${first}`, { index: first, was_id: id_of(second) });
  } else if (answer.type === "set") {
    remove("remove-member", text_of(second), { was_id: id_of(second) });
  } else if (answer.type === "zset") {
    if (may("set-score")) {
      made.push(change("Change", () => {
        const score = score_field(second);
        edit(`Change the score of ${text_of(first)}`, [score.element], "Save", () => [{ do: "set-score", field_id: id_of(first), was: second, score: score.text() }, "Saved."]);
        score.focus();
      }));
    }
    remove("remove-scored", text_of(first), { field_id: id_of(first), was: second });
  }
  return cell(made, "actions");
}

function confirm_change(question, label, change, done) {
  edit(question, [], label, () => [change, done]);
  $("edit").querySelector("button").focus();
}

/** Names that end in `_id` have bytes, which are written as such already. */
async function commit(change, done) {
  const words = Object.entries(change).map(([name, value]) => (name.endsWith("_id") ? `${name.slice(0, -3)}=${value}` : `${name}=${encodeURIComponent(value)}`));
  const body = [`name=${detail.key.id}`, `db=${encodeURIComponent(keys.database)}`, ...words].join("&");
  const headers = { "Content-Type": "application/x-www-form-urlencoded", "X-Holdfast-Token": await session_token() };
  try {
    await ask("/api/change", { method: "POST", headers, body });
  } catch (error) {
    if (!error.message.startsWith("CONFLICT")) throw error;
    return show_conflict(change);
  }
  if (change.do === "delete") {
    keys.found = keys.found.filter((key) => key.id !== detail.key.id);
    $("detail").close();
    show_keys();
    return undefined;
  }
  return load_key(done);
}

/** Changes what needs no form. */
const attempt = (change, done) => commit(change, done).catch((problem) => fill($("edit"), h("p", { class: "bad", role: "alert" }, problem.message)));

/** Shows what is there now, and leaves what was written for another decision. */
async function show_conflict(change) {
  const form = $("edit").firstChild;
  await load_key();
  const says = h("p", { class: "warn", role: "alert" }, "It has changed since it was shown, and nothing was done.");
  fill($("edit"), says);
  if (change.do === "delete" && detail.answer) {
    const again = () => attempt({ do: "delete", shown: detail.answer.shown }, null);
    const anyway = () => attempt({ do: "delete" }, null);
    $("edit").append(h("div", { class: "row" }, h("button", { type: "button", onclick: again }, "Delete what is shown now"),
      h("button", { type: "button", onclick: anyway }, "Delete, even if it changes")));
  } else if (change.value_id !== undefined && form) {
    $("edit").append(h("p", { class: "soft" }, "What you had written:"), h("pre", {}, escaped(bytes_of(change.value_id))));
  }
  $("edit").append(h("p", { class: "soft" }, "What is there now:"));
}

const session_token = async () => (await ask("/api/session")).token;

function value_of(answer) {
  const value = answer.value;
  if (value === null) return h("p", { class: "soft" }, "Too large to be shown.");
  if (answer.type === "string" || answer.is_refused) return h("pre", { class: "value" }, text_of(value));
  const of = (count) => h("p", { class: "soft" }, count < answer.length ? `${count} of ${answer.length}` : "");
  const items = answer.type === "hash" || answer.type === "set" ? value[1] : value;
  if (!Array.isArray(items)) return h("pre", {}, text_of(value));
  let rows, heads;
  if (answer.type === "hash") {
    heads = [["field"], ["value"]];
    rows = items.flatMap((item, index) => (index % 2 === 0 ? [[item, items[index + 1]]] : []));
  } else if (answer.type === "zset" || answer.type === "stream") {
    heads = answer.type === "zset" ? [["member"], ["score", "number"]] : [["id"], ["fields"]];
    rows = items;
  } else {
    heads = [answer.type === "list" ? ["place", "number"] : [""], ["value"]];
    rows = items.map((item, index) => [answer.type === "list" ? index : "", item]);
  }
  return h("div", {}, of(rows.length), table([...heads, [""]], rows.slice(0, 1000).map((row) => h("tr", {},
    row.map((item) => cell(text_of(item), typeof item === "number" ? "number mono" : "wide mono")), answer.type === "stream" ? null : element_buttons(answer, row))), "empty"));
}

// ---- doctor ----

const doctor_page = () => h("div", { class: "card" }, h("h2", {}, "Doctor"),
  h("p", { class: "soft" }, "Examines this node and its host with the checks of holdfast doctor, for 20 seconds. It changes nothing; it writes up to 64 MiB to a temporary file on the disk of the data."),
  h("div", { class: "row" }, h("button", { type: "button", class: "primary", id: "examine", onclick: () => examine() }, "Examine this node")),
  h("div", { id: "doctor" }));

async function examine() {
  $("examine").disabled = true;
  try {
    await ask("/api/doctor", { method: "POST", headers: { "X-Holdfast-Token": await session_token() }, body: "" });
  } catch (error) {
    fill($("doctor"), h("p", { class: "bad", role: "alert" }, error.message));
    $("examine").disabled = false;
    return;
  }
  due.doctor = 0;
  await refresh_page();
}

let told = "";

async function refresh_doctor() {
  if (!is_due("doctor", 1000)) return;
  let answer;
  try {
    answer = await ask("/api/doctor");
  } catch (error) {
    // What a user may not do is not offered.
    if (error.status === 403 && $("examine")) $("examine").hidden = true;
    throw error;
  }
  const box = $("doctor");
  if (!box) return;
  $("examine").hidden = false;
  $("examine").disabled = answer.state === "running";
  if (answer.state === "running") {
    const left = Math.max(0, answer.window_s - answer.passed_s);
    const words = `${answer.is_own ? "The examination is being made" : "Another user examines this node"}: ${left >= 1 ? `${Math.ceil(left)} s to go` : "its last answers come in"}.`;
    told = "";
    fill(box, h("p", { role: "status" }, words), h("progress", { max: answer.window_s, value: Math.min(answer.passed_s, answer.window_s), "aria-label": "Progress" }));
    return;
  }
  // A table that stays as it is can be read, and selected.
  const now = JSON.stringify([answer.state, answer.at_ms, answer.why]);
  if (now === told && box.firstChild) return;
  told = now;
  if (answer.state === "failed") fill(box, h("p", { class: "bad", role: "alert" }, `The examination failed: ${answer.why}`));
  else if (answer.state === "done") fill(box, report_of(answer));
  else fill(box);
}

const VERDICTS = { guilty: "bad", fine: "good", unknown: "soft" };

function report_of({ at_ms, report }) {
  const order = (check) => (check.verdict === "guilty" ? check.rank : check.verdict === "fine" ? 1000 : 2000);
  const rows = [...report.checks].sort((a, b) => order(a) - order(b)).map((check) => h("tr", {},
    cell([check.title, h("br"), h("span", { class: "soft mono" }, check.check)], "check"), cell(h("span", { class: `kind ${VERDICTS[check.verdict]}` }, check.verdict)),
    cell(check.value || "–", "wide"), cell(check.reference || "–", "wide"),
    cell([check.detail, check.advice ? h("div", {}, h("strong", {}, "To do: "), check.advice) : null].filter(Boolean), "wide")));
  return [h("p", { id: "diagnosis", class: `diagnosis ${report.guilty > 0 ? "bad" : "good"}`, role: "status" }, report.verdict),
    h("p", { class: "soft" }, `Begun ${moment(at_ms).slice(0, -4)}, took ${report.seconds.toFixed(1)} s. ${report.guilty} guilty, ${report.fine} fine, ${report.unknown} unknown.`),
    table([["guilty, if"], ["verdict"], ["value"], ["reference"], ["detail"]], rows, "no checks", "checks")];
}

const PAGES = [
  ["overview", "Overview", overview, refresh_overview],
  ["cluster", "Cluster", cluster_page, refresh_cluster],
  ["timeline", "Timeline", timeline_page, refresh_timeline],
  ["stalls", "Stalls", stalls_page, refresh_stalls],
  ["slow", "Slow commands", page_with("slow", "Slow commands", "Of this node's clients, the latest first."), refresh_slow],
  ["clients", "Clients", page_with("clients", "Clients of this node"), refresh_clients],
  ["keys", "Keys", keys_page, () => {}],
  ["hot", "Hot keys", hot_page, refresh_hot],
  ["operations", "Operations", operations_page, refresh_operations],
  ["doctor", "Doctor", doctor_page, refresh_doctor],
];

function show_page() {
  const name = location.hash.slice(1);
  const page = PAGES.find((page) => page[0] === name) || PAGES[0];
  state.page = page[0];
  state.scroll = true;
  if (state.page !== "timeline") state.mark_ms = null;
  canvases = [];
  $("tip")?.remove();
  fill($("nav"), PAGES.map(([id, title]) => h("a", { href: `#${id}`, "aria-current": id === state.page ? "page" : null }, title)));
  // On a phone there is not room for all of them.
  $("nav").querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${page[1]} – Holdfast`;
  fill($("view"), page[2]());
  if (state.page === "keys" && keys.found.length > 0) show_keys();
  if (state.page === "keys" && keys.by_size && !keys.is_done && keys.looked_at > 0) { keys.run += 1; more_keys(); }
  due.hot = 0;
  due.doctor = 0;
  told = "";
  refresh_page();
}

async function refresh_page() {
  const page = PAGES.find((page) => page[0] === state.page);
  try {
    await page[3]();
  } catch (error) {
    const box = $(state.page);
    if (box) fill(box, h("p", { class: "bad" }, error.message));
  }
}

// ---- time goes by ----

const due = {};
const is_due = (name, interval_ms) => {
  const now = Date.now();
  if (now < (due[name] || 0)) return false;
  due[name] = now + interval_ms;
  return true;
};

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function poll() {
  for (;;) {
    if (!document.hidden) {
      const wishes = [];
      if (is_due("cluster", 1000)) {
        wishes.push(ask("/api/cluster").then((answer) => {
          state.cluster = answer.reply;
          state.cluster_error = null;
        }, (error) => { if (!error.message.startsWith("LOST")) state.cluster_error = error.message; }));
      }
      const step_ms = state.history ? state.history.step_ms : 1000;
      if (is_due("history", Math.max(2000, Math.min(step_ms, 30000)))) {
        const to = Date.now() + 86400000;
        const query = `/api/history?from=${Date.now() - state.range_s * 1000 - 60000}&to=${to}&points=1000`;
        wishes.push(ask(query).then((answer) => { state.history = answer; }, () => {}));
      }
      if (is_due("timeline", 3000)) {
        wishes.push(ask("/api/timeline").then((answer) => { state.timeline = answer.reply; }, () => {}));
      }
      if (is_due("stalls", 5000)) {
        wishes.push(ask("/api/stalls").then((answer) => { state.stalls = answer.reply; state.stalls_error = null; }, (error) => { state.stalls_error = error.message; }));
      }
      await Promise.all(wishes);
      const own = (state.cluster?.nodes || []).find((node) => node.state === "here");
      $("where").textContent = `${own?.clients || location.host}${state.user && state.user !== "default" ? `, as ${state.user}` : ""}`;
      show_verdict();
      const is_slow = ["slow", "clients", "operations"].includes(state.page);
      if (is_slow ? is_due("page", 5000) : wishes.length > 0) await refresh_page();
    }
    await sleep(500);
  }
}

// ---- the keyboard ----

const RANGES = [[300, "5 minutes"], [900, "15 minutes"], [3600, "1 hour"], [21600, "6 hours"], [86400, "24 hours"]];
fill($("range"), RANGES.map(([value, text]) => h("option", { value, selected: value === state.range_s }, text)));
const choose_range = (value) => {
  state.range_s = value;
  $("range").value = String(value);
  due.history = 0;
};
$("range").addEventListener("change", () => choose_range(Number($("range").value)));

const step_range = (by) => {
  const place = RANGES.findIndex(([value]) => value === state.range_s) + by;
  if (RANGES[place]) choose_range(RANGES[place][0]);
};
const SHORTCUTS = [
  ["1 … 9, 0", "go to a page, from the left"],
  ["[ and ]", "show less or more time"],
  ["/", "find keys"],
  ["?", "show this"],
  ["Esc", "close a window"],
];
fill($("shortcuts"), SHORTCUTS.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)]));
$("help-button").addEventListener("click", () => $("help").showModal());
document.addEventListener("keydown", (event) => {
  const is_typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (is_typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const page = /^\d$/.test(event.key) ? PAGES[(Number(event.key) + 9) % 10] : null;
  if (page) location.hash = `#${page[0]}`;
  else if (event.key === "[") step_range(-1);
  else if (event.key === "]") step_range(1);
  else if (event.key === "?") $("help").showModal();
  else if (event.key === "/") {
    event.preventDefault();
    location.hash = "#keys";
    setTimeout(() => $("pattern")?.focus(), 50);
  }
});
window.addEventListener("hashchange", () => { if (location.hash !== "#main") show_page(); });
window.addEventListener("resize", draw_charts);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw_charts);
show_page();
ask("/api/session").then((answer) => { state.user = answer.user; $("logout").hidden = !was_typed(); }, () => {}).finally(poll);
