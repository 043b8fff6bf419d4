// Ask, keep, draw. Polls: the gateway answers 304 while nothing is new, and nothing is asked while nobody looks.

import { Refused, ask, forgetAnswers, key } from "./api.js";
import { Chart } from "./chart.js";
import { Fleet } from "./fleet.js";
import { ago, choice, count, make, rate, seconds, share } from "./format.js";
import { HeatMap, MODES, describe } from "./heatmap.js";
import * as panels from "./panels.js";

const LOOK = 5_000, LONGEST = 60_000, HISTORY = 60_000, BATCHES = 15_000; // milliseconds
const OLD = 30; // seconds after which what is shown is old
const SPANS = { "1 h": "1h", "6 h": "6h", "2 days": "2d" };
const $ = (id) => document.getElementById(id);

const fleet = new Fleet();
let live = []; // what was told since the history's last row
let history = null, span = "1h", ordered = [], opened = null;
let wait = LOOK, timer = 0, asking = false, nextHistory = 0, nextBatches = 0, said = "";

// --- the map and the charts ---

const map = new HeatMap($("map"), $("tip"), fleet, openReplica, (one) => { $("cursor").textContent = describe(one); });
const pickMode = choice($("modes"), MODES, "State", (name) => {
  map.mode = name;
  redraw();
});

const DRAWN = [
  "time", "unready", "ill", "running", "waiting", "tokens_rate", "ttft_p50", "ttft_p99", "utilization", "memory", "kv",
];
const of = (group, ...names) => (data) => ({ time: data[group].time, columns: names.map((name) => data[group][name]) });
const charts = [
  ["Replicas", ["not ready", "ready but ill"], count, of("fleet", "unready", "ill")],
  ["Sequences", ["run", "wait"], count, of("fleet", "running", "waiting")],
  ["Tokens a second", ["tokens"], count, of("fleet", "tokens_rate")],
  ["Time to the first token", ["p50", "p99"], seconds, of("fleet", "ttft_p50", "ttft_p99")],
  ["Requests a second", ["good", "failed", "told to wait"], rate, of("clients", "ok_rate", "failed_rate", "too_many_rate")],
  ["In use", ["accelerators", "memory", "KV cache"], share, of("fleet", "utilization", "memory", "kv")],
].map(([title, lines, shown, pick]) => ({ chart: new Chart($("charts"), title, lines, shown), pick }));
choice($("spans"), Object.keys(SPANS), "1 h", (name) => {
  span = SPANS[name];
  history = null;
  nextHistory = 0;
  if (key.get()) look();
});

// A row of the fleet's figures as the history would have it.
function sample(glance) {
  const [row] = glance.rows;
  const known = (value) => (value < 0 ? null : value);
  return {
    time: glance.figures_at, unready: row.wanted - row.ready, ill: row.ill, running: row.running, waiting: row.waiting,
    tokens_rate: row.token_rate, ttft_p50: row.recent.ttft?.p50 ?? null, ttft_p99: row.recent.ttft?.p99 ?? null,
    utilization: known(row.utilization), memory: known(row.memory), kv: known(row.kv),
    epoch: glance.epoch, clients: glance.clients,
  };
}

// Requests of about the last minute, from counts that only grow; of the history while there are not two looks at one
// broker; null without it.
function requests() {
  const last = live.at(-1);
  const first = live.find((one) => one.epoch === last?.epoch && one.time >= last.time - 65);
  if (!last || !first || last.time <= first.time) return lately(history?.clients);
  const spent = last.time - first.time;
  const grown = (name) => Math.max(0, last.clients[name] - first.clients[name]);
  return { rate: grown("ended") / spent, failed: grown("failed") / Math.max(1, grown("ended")), tooMany: grown("too_many") / spent };
}

function lately(rows) {
  const [ok, failed, tooMany] = ["ok_rate", "failed_rate", "too_many_rate"].map((name) => rows?.[name].at(-1) ?? 0);
  const all = ok + failed + tooMany;
  return rows?.time.length ? { rate: all, failed: all ? failed / all : 0, tooMany } : null;
}

function drawCharts() {
  const data = history ?? { step: 10, seconds: 3600, fleet: {}, clients: {} };
  const until = Math.max(fleet.glance?.at ?? 0, data.fleet.time?.at(-1) ?? 0) || Date.now() / 1000;
  const since = (data.fleet.time?.at(-1) ?? 0) + data.step;
  const fresh = live.filter((one) => one.time >= since);
  const merged = { fleet: {}, clients: { time: [], ok_rate: [], failed_rate: [], too_many_rate: [], ...data.clients } };
  for (const name of DRAWN) {
    merged.fleet[name] = [...(data.fleet[name] ?? []), ...fresh.map((one) => one[name])];
  }
  for (const { chart, pick } of charts) {
    chart.set({ ...pick(merged), from: until - data.seconds, until, step: data.step });
  }
}

// --- asking ---

async function look() {
  if (asking || document.hidden || !key.get()) return;
  asking = true;
  clearTimeout(timer);
  try {
    const known = fleet.layout ? `?layout=${fleet.layout.id}` : "";
    const glance = await ask(`/dashboard/data/glance${known}`, "glance");
    if (glance) take(glance);
    const now = Date.now();
    if (now >= nextHistory) {
      nextHistory = now + HISTORY;
      history = (await ask(`/dashboard/data/history?span=${span}`)) ?? history;
      live = live.filter((one) => one.time > Date.now() / 1000 - 300);
    }
    if (now >= nextBatches) {
      nextBatches = now + BATCHES;
      ordered = (await ask("/v1/batches?limit=8")).data;
    }
    wait = LOOK;
    said = "";
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) return leave(error.message);
    said = error instanceof Refused ? error.message : "the gateway does not answer";
    wait = Math.min(LONGEST, 2 * wait);
  } finally {
    asking = false;
    timer = setTimeout(look, wait);
  }
  if (fleet.glance) redraw(); // what came before something failed, too
  return tell();
}

function take(glance) {
  fleet.take(glance);
  if (live.at(-1)?.time !== glance.figures_at) live.push(sample(glance));
}

function redraw() {
  if (!fleet.glance) return;
  const { glance } = fleet;
  $("name").textContent = glance.deployment;
  $("model").textContent = glance.model;
  $("emulated").hidden = !glance.model.startsWith("emulated");
  document.title = `${glance.rows[0].ready}/${glance.rows[0].wanted} ${glance.deployment}`;
  $("map-title").textContent = `${count(fleet.size)} replicas on ${count(fleet.tasks.length)} nodes`;
  panels.figures($("figures"), glance, requests());
  map.draw();
  $("legend").replaceChildren(...map.legend().map(([colour, text, many]) => {
    const patch = make("i");
    patch.style.background = `var(--${colour})`;
    return make("span", {}, patch, text, many === null ? "" : make("b", {}, count(many)));
  }));
  panels.alerts($("alerts"), glance.alerts);
  panels.ill($("ill"), fleet, (one) => map.pick(one));
  panels.batches($("batches"), glance.batches, ordered);
  drawCharts();
  tell();
}

// How old is what is shown?
function tell() {
  const at = fleet.glance?.at, now = Date.now() / 1000;
  const old = at === undefined || now - at > OLD;
  $("pulse").className = `pulse ${said ? "lost" : old ? "old" : ""}`;
  $("pulse").textContent = said || (at === undefined ? "asking" : `as of ${ago(at, now)}`);
}

// --- the story of one thing ---

function show(title, body) {
  $("detail-title").textContent = title;
  $("detail-body").replaceChildren(body);
  $("detail").hidden = false;
}

async function open(title, fill) {
  const mine = (opened = {});
  show(title, make("p", { cls: "quiet" }, "asking"));
  try {
    await fill();
  } catch (error) {
    if (opened === mine) show(title, make("p", { cls: "bad" }, error.message));
  }
  if (opened === mine) $("detail").focus({ preventScroll: false });
}

function openReplica(one) {
  const { pool } = one.task;
  return open(`Replica ${pool}/${one.slot}`, async () => {
    const mine = opened;
    const story = await ask(`/dashboard/data/replica?pool=${encodeURIComponent(pool)}&slot=${one.slot}`);
    if (opened === mine) panels.replica($("detail-body"), fleet.find(pool, one.slot), story, Date.now() / 1000);
  });
}

function openRequest(id) {
  return open(`Request ${id}`, async () => {
    const mine = opened;
    const found = await ask(`/dashboard/data/request?id=${encodeURIComponent(id)}`);
    if (opened === mine) panels.request($("detail-body"), found);
  });
}

function close() {
  opened = null;
  $("detail").hidden = true;
  map.selected = null;
  map.draw();
  $("map").focus();
}

// --- the door ---

function enter() {
  $("door").hidden = true;
  $("room").hidden = false;
  redraw();
  look();
}

function leave(why = "") {
  clearTimeout(timer);
  key.forget();
  forgetAnswers();
  Object.assign(fleet, new Fleet());
  [live, history, ordered, opened, nextHistory, nextBatches] = [[], null, [], null, 0, 0];
  $("detail").hidden = true;
  $("room").hidden = true;
  $("door").hidden = false;
  $("door-said").textContent = why;
  $("key").value = "";
  $("key").focus();
}

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set($("key").value.trim());
  enter();
});
$("leave").addEventListener("click", () => leave());
$("detail-close").addEventListener("click", close);
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("request").value.trim();
  if (id) openRequest(id);
});

// --- looks and keys ---

const THEMES = ["dark", "light"];
function paint(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  redraw();
}
paint(localStorage.getItem("exahpc.theme") ?? THEMES[Number(!matchMedia("(prefers-color-scheme: dark)").matches)]);
$("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("exahpc.theme", next);
  paint(next);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("room").hidden) return;
  if (event.key === "Escape" && !$("detail").hidden) close();
  if (event.target instanceof HTMLInputElement) return;
  if (event.key === "/") {
    event.preventDefault();
    $("request").focus();
  } else if (event.key >= "1" && event.key <= String(MODES.length)) {
    pickMode(Number(event.key) - 1);
  }
});
document.addEventListener("visibilitychange", look);
setInterval(tell, 1000);

if (key.get()) enter();
else leave();
