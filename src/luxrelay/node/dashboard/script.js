// The dashboard of a node: one WebSocket in, the page out. Text of peers only ever becomes text.
"use strict";

const SAMPLES_MAX = 180;
const MESSAGES_MAX = 200;
const LATENCY_SAMPLES = 60;
const RETRY_FIRST_MS = 500;
const RETRY_MOST_MS = 5000;
const SILENCE_MS = 15000;
const DOORS = ["gossip", "publish", "sync"];

const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const LONELY_S = 60, LATE_MS = 500, FULL_PERCENT = 90;  // from here on it is worth a word

const page = { state: null, alarm: "", samples: [], bounds: [], messages: [], paused: false, retryMs: RETRY_FIRST_MS, heard: 0, socket: null };

// ---------------------------------------------------------------- words

function say(id, text) {
  const node = at(id);
  if (node.textContent !== text) node.textContent = text;
}

function amount(value) {
  if (value >= 1e6) return one.format(value / 1e6) + " M";
  return value >= 100 || Number.isInteger(value) ? whole.format(value) : one.format(value);
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return (unit && bytes < 100 ? one : whole).format(bytes) + " " + units[unit];
}

function span(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min" + (s < 600 && s % 60 ? " " + (s % 60) + " s" : "");
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

function ago(ms, now) {
  return ms ? span(Math.max(0, now - ms) / 1000) + " ago" : "never";
}

const short = (id) => (id.startsWith("0x") ? id.slice(2) : id).slice(0, 10) + "…";

function hue(text) {
  let sum = 7;
  for (let i = 0; i < text.length; i += 1) sum = (sum * 31 + text.charCodeAt(i)) >>> 0;
  return sum % 360;
}

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function shape(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function swatch(text) {
  const node = make("span", "swatch");
  node.style.background = `hsl(${hue(text)} 62% 55%)`;
  node.setAttribute("aria-hidden", "true");
  return node;
}

// ---------------------------------------------------------------- numbers from samples

function rates() {
  const found = [];
  for (let i = 1; i < page.samples.length; i += 1) {
    const before = page.samples[i - 1], after = page.samples[i];
    const seconds = Math.max(0.2, (after.ms - before.ms) / 1000);
    const entry = { ms: after.ms };
    for (const door of DOORS) entry[door] = Math.max(0, after.accepted[door] - before.accepted[door]) / seconds;
    entry.all = DOORS.reduce((sum, door) => sum + entry[door], 0);
    found.push(entry);
  }
  return found;
}

function recently(name) {
  const last = page.samples.at(-1), first = page.samples.at(-Math.min(page.samples.length, LATENCY_SAMPLES));
  return Math.max(0, last[name] - first[name]);
}

function percentile(share) {
  if (page.samples.length < 2) return null;
  const last = page.samples.at(-1).latency;
  const first = page.samples.at(-Math.min(page.samples.length, LATENCY_SAMPLES)).latency;
  const counts = last.map((value, i) => value - first[i]);
  const total = counts.at(-1);
  if (total <= 0) return null;
  const place = counts.findIndex((count) => count >= share * total);
  return place < page.bounds.length ? page.bounds[place] : Infinity;
}

const within = (ms) => ms === null ? "–" : ms === Infinity ? "> 30 s" : ms >= 1000 ? one.format(ms / 1000) + " s" : ms + " ms";

// ---------------------------------------------------------------- pictures

function drawSpark(series) {
  const svg = at("rate-spark");
  const shown = series.slice(-60);
  const top = Math.max(1, ...shown.map((entry) => entry.all));
  const step = 100 / Math.max(1, 59);
  const begin = 100 - (shown.length - 1) * step;
  const points = shown.map((entry, i) => `${(begin + i * step).toFixed(2)} ${(31 - 28 * entry.all / top).toFixed(2)}`);
  svg.setAttribute("viewBox", "0 0 100 34");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren(...(points.length > 1 ? [shape("path", { d: "M" + points.join("L") })] : []));
}

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value) || 10 * power;
}

function drawChart(series) {
  const svg = at("chart");
  const width = svg.clientWidth || 800, height = svg.clientHeight || 230;
  const left = 44, bottom = 22, topRoom = 8;
  const high = ceiling(Math.max(4, ...series.map((entry) => entry.all)));
  const step = (width - left) / (SAMPLES_MAX - 1);
  const x = (i) => width - (series.length - 1 - i) * step;
  const y = (value) => topRoom + (height - bottom - topRoom) * (1 - value / high);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const level = y(high * share);
    parts.push(shape("line", { class: "grid", x1: left, x2: width, y1: level, y2: level }));
    const label = shape("text", { x: left - 8, y: level + 4, "text-anchor": "end" });
    label.textContent = amount(high * share);
    parts.push(label);
  }
  for (const [seconds, words] of [[180, "3 min ago"], [120, "2 min"], [60, "1 min"], [0, "now"]]) {
    const place = Math.max(left, width - (seconds / SAMPLES_MAX) * (width - left));
    const label = shape("text", { x: place, y: height - 5, "text-anchor": seconds ? (seconds === 180 ? "start" : "middle") : "end" });
    label.textContent = words;
    parts.push(label);
  }
  const base = series.map(() => 0);
  for (const door of DOORS) {
    if (series.length < 2) break;
    const upper = series.map((entry, i) => base[i] + entry[door]);
    const there = upper.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`);
    const back = base.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`).reverse();
    parts.push(shape("path", { class: door, d: `M${there.join("L")}L${back.join("L")}Z` }));
    upper.forEach((value, i) => { base[i] = value; });
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
  const now = series.at(-1);
  if (now) svg.setAttribute("aria-label", `Last second: ${amount(now.gossip)} by gossip, ${amount(now.publish)} published here, ${amount(now.sync)} by catch-up; most in three minutes ${amount(Math.max(...series.map((entry) => entry.all)))}`);
}

// ---------------------------------------------------------------- panels

function showSamples() {
  const series = rates();
  const lately = series.slice(-5);
  const mean = lately.length ? lately.reduce((sum, entry) => sum + entry.all, 0) / lately.length : 0;
  say("rate", amount(mean));
  drawSpark(series);
  drawChart(series);
  if (page.samples.length > 1) {
    const received = recently("received"), again = recently("duplicates");
    say("dup", received ? one.format(100 * again / received) + " %" : "0 %");
    const refused = recently("rejected");
    say("rejected", refused ? whole.format(refused) + " rejected in a minute" : "none rejected in a minute");
  }
  say("p99", within(percentile(0.99)));
  at("p99").className = (percentile(0.99) || 0) > LATE_MS ? "warn" : "";
  showAlarm();
  const half = percentile(0.5);
  say("p50", half === null ? "no gossip in the last minute" : "half below " + within(half));
}

function showState(state) {
  const { info, store, net } = state;
  say("name", info.name);
  document.title = `${info.name} · LuxRelay`;
  say("network", "network " + info.network);
  say("version", "version " + info.version);
  say("uptime", "up " + span(state.uptimeS));
  health(state.healthy ? "good" : "bad", state.healthy ? "Ready" : state.fault || "Not ready");
  say("peers", whole.format(net.connected));
  const meshes = Object.values(net.mesh);
  const meshed = meshes.length ? Math.max(...meshes) : 0;
  say("mesh-sum", `${whole.format(meshed)} in the mesh`);
  say("peers-note", `${whole.format(meshes.length)} topic${meshes.length === 1 ? "" : "s"}, ${whole.format(net.pending)} in validation`);
  say("stored", amount(store.messages));
  say("stored-max", `messages`);
  const used = Math.min(100, 100 * store.sizeBytes / store.maxBytes);
  const meter = at("store-meter");
  meter.setAttribute("aria-valuenow", used.toFixed(1));
  meter.setAttribute("aria-valuetext", `${size(store.sizeBytes)} of ${size(store.maxBytes)}`);
  meter.title = meter.getAttribute("aria-valuetext");
  meter.firstElementChild.style.width = used + "%";
  say("window", store.windowS ? span(store.windowS) : "–");
  say("stored-note", `${size(store.sizeBytes)} of ${size(store.maxBytes)}`);
  page.state = state;
  showAlarm();
  showCare(state);
  showSpaces(state);
  showPeers(net);
}

// What an operator should know before anything else, each with what it means.
function concerns(state) {
  const { catchUp, store, gc, archive, net } = state, found = [];
  const used = 100 * store.sizeBytes / store.maxBytes;
  const late = percentile(0.99), refused = page.samples.length > 1 ? recently("rejected") : 0;
  const warnings = state.warnings || [];
  if (!state.healthy) found.push(["Not ready.", state.fault || warnings[0] || "The log says why."]);
  for (const each of warnings) found.push(["The network says:", each + "."]);
  if (!net.connected && state.uptimeS > LONELY_S) found.push(["No peer is connected.", "Nothing is heard from other relays, and what is published stays here."]);
  for (const each of state.namespaces) if (each.missing) found.push([`${whole.format(each.missing)} ${each.missing === 1 ? "message is" : "messages are"} missing in ${each.topic || short(each.id)}.`, "No peer has brought them yet; its lanes below say where."]);
  if (catchUp.runs && !catchUp.complete) found.push(["Catch-up is behind.", "A relay of sync.peers is away, or has not what is missing."]);
  if (late !== null && late > LATE_MS) found.push([late === Infinity ? "Messages come late: 1 in 100 takes more than 30 s." : `Messages come late: 99 % within ${within(late)}.`, "Below 500 ms is healthy; the node, a peer or a sender's clock is slow."]);
  if (refused) found.push([`${whole.format(refused)} ${refused === 1 ? "message was" : "messages were"} rejected in the last minute.`, "Refused in the table of peers says who sends them."]);
  if (used > FULL_PERCENT) found.push([`The store is ${whole.format(used)} % full.`, "Soon the oldest messages go before their time."]);
  if (store.refused) found.push([`${whole.format(store.refused)} messages found no room.`, "A namespace has its quota, or the disk is full."]);
  if (gc.clockMovedMs) found.push(["The clock has jumped.", "Nothing is deleted until it is steady; set the machine's time."]);
  if (archive.lost) found.push([`${whole.format(archive.lost)} messages went before the archive had read them.`, "Run the archive more often, or give the store more room."]);
  return found;
}

function showAlarm() {
  if (!page.state) return;
  const found = concerns(page.state), list = at("alarm-list");
  at("alarm").hidden = !found.length;
  const words = JSON.stringify(found);
  if (page.alarm === words) return;  // a screen reader says it once
  page.alarm = words;
  list.replaceChildren(...found.map(([what, why]) => { const line = make("li"); line.append(make("b", "", what), " " + why); return line; }));
}

function clockText(clock) {
  if (!clock.peers) return "no peer has told its clock";
  const side = clock.offset_ms < 0 ? "behind" : "ahead";
  return `${(Math.abs(clock.offset_ms) / 1000).toFixed(1)} s ${side}, of ${clock.peers}${clock.state === "unknown" ? ": too few to believe" : `, spread ${(clock.spread_ms / 1000).toFixed(1)} s`}`;
}

function showCare(state) {
  const { gc, archive, catchUp, store } = state;
  const rows = [
    ["Catch-up", catchUp.complete == null ? "no peers to ask" : (catchUp.complete ? "complete" : (catchUp.runs ? "behind" : "not yet")), catchUp.complete === false && Boolean(catchUp.runs)],
    ["Clock against peers", clockText(state.clock || {}), state.clock && (state.clock.state === "off" || state.clock.state === "wrong")],
    ["Missing messages", whole.format(state.namespaces.reduce((sum, each) => sum + each.missing, 0)), state.namespaces.some((each) => each.missing)],
    ["Fetched by catch-up", whole.format(catchUp.stored || 0), false],
    ["Calls that failed", whole.format(catchUp.failures || 0), false],
    ["Deletion cycles", whole.format(gc.cycles) + (gc.running ? ", one runs" : ""), false],
    ["Deleted in time", whole.format(gc.deleted), false],
    ["Made room", whole.format(store.evicted), store.evicted > 0],
    ["Refused, no room", whole.format(store.refused), store.refused > 0],
    ["Archive follows", archive.handoffs ? whole.format(archive.handoffs) + " namespaces" : "none", false],
    ["Waiting for it", whole.format(archive.held), false],
    ["Read from memory", one.format(store.hitRate * 100) + " %", false],
    ["Clock", gc.clockMovedMs ? "jumped " + span(Math.abs(gc.clockMovedMs) / 1000) : "steady", gc.clockMovedMs !== 0],
  ];
  const list = at("care");
  if (list.children.length !== rows.length * 2) list.replaceChildren(...rows.flatMap(([name]) => [make("dt", "", name), make("dd")]));
  rows.forEach(([name, text, warn], i) => {
    const term = list.children[2 * i], value = list.children[2 * i + 1];
    if (term.textContent !== name) term.textContent = name;
    if (value.textContent !== text) value.textContent = text;
    value.className = warn ? "warn" : "";
  });
}

function fact(words, value, warn) {
  const node = make("span", warn ? "warn" : "");
  if (words) node.append(make("b", "", value), " " + words);
  else node.textContent = value;
  return node;
}

function showSpaces(state) {
  const box = at("spaces");
  if (box.contains(document.activeElement) && document.activeElement !== box) return keepFocus(box, () => fillSpaces(box, state));
  fillSpaces(box, state);
}

function keepFocus(box, fill) {
  const label = document.activeElement.getAttribute("aria-label");
  const top = document.activeElement.scrollTop;
  fill();
  for (const each of box.querySelectorAll("[tabindex]")) if (each.getAttribute("aria-label") === label) { each.focus({ preventScroll: true }); each.scrollTop = top; }
}

function fillSpaces(box, state) {
  const tops = new Map([...box.querySelectorAll(".wide")].map((each) => [each.getAttribute("aria-label"), each.scrollTop]));
  const spaces = state.namespaces.map((each) => {
    const space = make("div", "space");
    const title = make("div", "title");
    title.append(make("strong", "", each.topic || "namespace"), make("span", "mono", short(each.id)));
    const facts = make("div", "facts");
    facts.append(fact(each.messages === 1 ? "message" : "messages", whole.format(each.messages)), fact(each.lanes === 1 ? "sender" : "senders", whole.format(each.lanes) + (each.more ? "+" : "")), fact("", size(each.sizeBytes)), fact("", "newest " + ago(each.latestMs, state.ms)));
    if (each.missing) facts.append(fact("missing", whole.format(each.missing), true));
    space.append(title, facts);
    if (each.heads.length) space.append(lanesTable(each, state.ms));
    return space;
  });
  box.replaceChildren(...(spaces.length ? spaces : [make("p", "empty", "This node carries no namespace.")]));
  for (const each of box.querySelectorAll(".wide")) each.scrollTop = tops.get(each.getAttribute("aria-label")) || 0;
}

function lanesTable(space, now) {
  const wide = make("div", "wide");
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", `Lanes of ${space.topic || space.id}`);
  const table = make("table");
  const caption = make("caption", "hidden", `Heads of the lanes of ${space.topic || space.id}`);
  const head = make("thead"), row = make("tr");
  for (const [name, right] of [["Lane", 0], ["Head", 1], ["Complete to", 1], ["From", 1], ["Held", 1], ["Gaps", 1], ["Newest", 1]]) {
    const cell = make("th", right ? "n" : "", name);
    cell.scope = "col";
    row.append(cell);
  }
  head.append(row);
  const body = make("tbody");
  for (const lane of space.heads) {
    const line = make("tr");
    const id = make("td", "mono");
    id.append(swatch(lane.id), lane.lane ? short(lane.id) : "the namespace itself");
    id.title = lane.id;
    line.append(id, make("td", "n", whole.format(lane.latestSeq)), make("td", "n", whole.format(lane.contiguousSeq)), make("td", "n", whole.format(lane.earliestSeq)), make("td", "n", whole.format(lane.messages)), make("td", lane.gaps ? "n warn" : "n", lane.gaps ? `${whole.format(lane.gaps)} (${whole.format(lane.missing)})` : "0"), make("td", "n", ago(lane.latestMs, now)));
    body.append(line);
  }
  table.append(caption, head, body);
  wide.append(table);
  return wide;
}

const TERMS = [["credit", "credit", 1], ["topic_penalty", "penalties", -1], ["application", "application", 1], ["colocation", "same address", -1], ["behaviour", "behaviour", -1]];

function showPeers(net) {
  at("peers-empty").hidden = net.peers.length > 0;
  const rows = net.peers.map((peer) => {
    const line = make("tr");
    const id = make("td", "mono");
    id.append(swatch(peer.peerId), peer.peerId.slice(0, 6) + "…" + peer.peerId.slice(-6));
    id.title = peer.peerId;
    const terms = make("td");
    const list = make("div", "terms");
    for (const [name, words, sign] of TERMS) {
      const value = peer.score ? peer.score[name] * sign : 0;
      if (value) list.append(make("span", value < 0 ? "minus" : "", `${words} ${value > 0 ? "+" : "−"}${one.format(Math.abs(value))}`));
    }
    if (!list.children.length) list.append(make("span", "", "neutral"));
    terms.append(list);
    line.append(id, make("td", peer.score && peer.score.score < 0 ? "n warn" : "n", peer.score ? one.format(peer.score.score) : "–"), terms, make("td", "n", whole.format(peer.accepted || 0)), make("td", "n", whole.format(peer.duplicates || 0)), make("td", "n", whole.format((peer.rejected || 0) + (peer.malformed || 0))), make("td", "n", size(peer.bytesIn || 0)), make("td", "n", size(peer.bytesOut || 0)), make("td", "n", whole.format(peer.queuedFrames || 0)));
    return line;
  });
  at("peer-rows").replaceChildren(...rows);
}

function messageRow(message) {
  const row = make("li", "new");
  const by = make("span", "by");
  by.append(message.topic || short(message.id), ` · ${short(message.sender)} · ${whole.format(message.seq)} · ${message.door === "sync" ? "catch-up" : message.door}`);
  const time = make("time", "", clock.format(message.storedAt));
  time.dateTime = new Date(message.storedAt).toISOString();
  let text = make("p", "text", message.text ?? "");
  if (message.text === null) text = message.hex === null ? make("p", "text none", `${size(message.bytes)}, not here yet`) : make("p", "text bytes mono", message.bytes ? `${message.hex}${message.bytes > 32 ? "…" : ""}  (${size(message.bytes)})` : "(empty)");
  row.append(swatch(message.sender), by, time, text);
  return row;
}

function showMessages(fresh) {
  for (const message of fresh) page.messages.unshift(message);
  page.messages.length = Math.min(page.messages.length, MESSAGES_MAX);
  if (!page.paused) drawMessages(fresh);
}

function wanted(message) {
  const words = at("filter").value.trim().toLowerCase();
  return !words || [message.text, message.topic, message.sender, message.id].some((each) => (each || "").toLowerCase().includes(words));
}

function drawMessages(fresh) {
  const list = at("messages");
  if (fresh) {
    const rows = fresh.filter(wanted).map(messageRow).reverse();
    list.prepend(...rows);
    while (list.children.length > MESSAGES_MAX) list.lastElementChild.remove();
  } else {
    list.replaceChildren(...page.messages.filter(wanted).map(messageRow));
  }
  at("messages-empty").hidden = list.children.length > 0;
  say("messages-empty", page.messages.length ? "No message contains that." : "Nothing is stored yet.");
}

// ---------------------------------------------------------------- the connection

function health(state, words) {
  const pill = at("health");
  if (pill.dataset.state !== state) pill.dataset.state = state;
  say("health-text", words);
}

function take(said) {
  page.heard = Date.now();
  if (said.type === "samples") {
    page.bounds = said.bounds;
    page.samples = said.samples;
    showSamples();
  } else if (said.type === "state") {
    const last = page.samples.at(-1);
    if (!last || said.sample.ms > last.ms) page.samples.push(said.sample);
    if (page.samples.length > SAMPLES_MAX) page.samples.shift();
    showSamples();
    showState(said);
  } else if (said.type === "messages") {
    if (said.first) { page.messages = []; drawMessages(); }
    showMessages(said.messages);
  }
}

async function connect() {
  const token = sessionStorage.getItem("token") || "";
  try {
    const answer = await fetch("/v1/peers", { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    if (answer.status === 401 || answer.status === 403) return ask(token ? "The node does not take this token." : "");
  } catch {
    return retry();
  }
  at("door").hidden = true;
  const protocols = token ? ["luxrelay.v1", "luxrelay.token." + token] : ["luxrelay.v1"];
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/dashboard/live`, protocols);
  page.socket = socket;
  page.heard = Date.now();
  socket.onmessage = (event) => { page.retryMs = RETRY_FIRST_MS; take(JSON.parse(event.data)); };
  socket.onclose = () => { if (page.socket === socket) retry(); };
}

function retry() {
  page.socket = null;
  health("waiting", "Reconnecting");
  setTimeout(connect, page.retryMs * (0.75 + Math.random() / 2));
  page.retryMs = Math.min(page.retryMs * 2, RETRY_MOST_MS);
}

function ask(words) {
  sessionStorage.removeItem("token");
  health("waiting", "Locked");
  at("door").hidden = false;
  say("door-text", words);
  at("token").focus();
}

// ---------------------------------------------------------------- what a person does

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  connect();
});

at("pause").addEventListener("click", () => {
  page.paused = !page.paused;
  at("pause").setAttribute("aria-pressed", String(page.paused));
  if (!page.paused) drawMessages();
});

at("filter").addEventListener("input", () => drawMessages());

at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

const theme = localStorage.getItem("theme");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
addEventListener("resize", () => { if (page.samples.length) drawChart(rates()); });
setInterval(() => { if (page.socket && Date.now() - page.heard > SILENCE_MS) page.socket.close(); }, 1000);
connect();
