// What stands beside the map: alerts, replicas that are not well, batches, the story of a replica or a request.

import { WELL } from "./fleet.js";
import { ago, count, make, rate, seconds, share } from "./format.js";

const MOST = 12; // of one kind
const BAD = new Set(["tripped", "silent", "down", "missing", "restarting", "degraded", "probing"]);

export function figures(place, glance, requests) {
  const fleet = glance.rows[0], { clients } = glance;
  const seen = clients.recent.ttft ?? fleet.recent.ttft;
  const short = fleet.ready < fleet.wanted;
  const cells = [
    ["Replicas ready", count(fleet.ready), ` of ${count(fleet.wanted)}`, short ? "warn" : ""],
    ["Not well", count(fleet.ill + fleet.silent), fleet.silent ? ` ${count(fleet.silent)} silent` : "", fleet.ill + fleet.silent ? "warn" : ""],
    ["Sequences", count(fleet.running), fleet.waiting ? ` ${count(fleet.waiting)} wait` : " none waits", ""],
    ["Tokens a second", count(fleet.token_rate), "", ""],
    ["Requests a second", rate(requests?.rate), "", ""],
    ["Failed", requests ? `${(100 * requests.failed).toFixed(requests.failed ? 1 : 0)} %` : "–", requests?.tooMany ? ` ${rate(requests.tooMany)}/s told to wait` : "", requests?.failed > 0.01 ? "bad" : ""],
    ["First token", seconds(seen?.p50), seen ? ` p99 ${seconds(seen.p99)}` : "", ""],
    ["Accelerators busy", share(fleet.utilization), fleet.memory >= 0 ? ` memory ${share(fleet.memory)}` : "", ""],
  ];
  place.replaceChildren(make("dl", { cls: "figures" }, ...cells.map(([name, value, more, cls]) =>
    make("div", { cls: "figure" }, make("dt", {}, name), make("dd", { cls }, value, make("small", {}, more))))));
}

export function alerts(place, found) {
  const loud = found.filter((one) => one.state === "firing" || one.state === "resolving");
  const soon = found.filter((one) => one.state === "pending");
  const item = (one) => make("li", { cls: one.state === "pending" ? "warn" : "bad" },
    make("div", { cls: "row" }, make("strong", {}, one.name.replace("_", " ")), make("span", {}, `${one.state}, ${seconds(one.seconds)}`)),
    make("div", {}, one.text));
  const rest = found.length - loud.length - soon.length;
  place.replaceChildren(
    ...(loud.length + soon.length ? [make("ul", { cls: "rows", role: "alert" }, ...[...loud, ...soon].map(item))] : []),
    make("p", { cls: "quiet" }, loud.length + soon.length ? `${rest} other rules are quiet.` : `All ${rest} rules are quiet.`));
}

export function ill(place, fleet, open) {
  const found = [...fleet.replicas()].filter((one) => !WELL.has(one.state));
  const rank = (one) => (one.state === "missing" ? 1 : 0);
  found.sort((a, b) => rank(a) - rank(b));
  if (!found.length) {
    place.replaceChildren(make("p", { cls: "quiet" }, "Every replica is ready, loading or draining."));
    return;
  }
  const item = (one) => make("li", { cls: "row" },
    make("button", { cls: "link", type: "button", onclick: () => open(one) }, `${one.task.pool}/${one.slot}`),
    make("span", { cls: "quiet" }, one.task.node),
    make("span", {}, dot(one.state), one.state));
  const more = found.length - MOST;
  place.replaceChildren(make("ul", { cls: "rows" }, ...found.slice(0, MOST).map(item)),
    ...(more > 0 ? [make("p", { cls: "quiet" }, `… and ${count(more)} more: N on the map goes through them.`)] : []));
}

function dot(state) {
  const found = make("i", { cls: "dot" });
  found.style.background = `var(--s-${state})`;
  return found;
}

export function batches(place, running, ordered) {
  const bar = (name, state, total, ok, failed, more) => make("li", {},
    make("div", { cls: "row" }, make("span", { cls: "mono" }, name), make("span", {}, state)),
    make("progress", { max: Math.max(1, total), value: ok + failed, "aria-label": `${name}: ${ok + failed} of ${total} rows` }),
    make("div", { cls: "row quiet" }, make("span", {}, `${count(ok + failed)} of ${count(total)} rows${more}`),
      make("span", { cls: failed ? "bad" : "" }, failed ? `${count(failed)} failed` : "")));
  const here = running.map((one) => bar(one.batch, one.state, one.total, one.ok, one.failed, one.leased ? `, ${count(one.leased)} in work` : ""));
  const mine = ordered.map((one) => bar(one.id, one.status.replace("_", " "), one.request_counts.total, one.request_counts.completed, one.request_counts.failed, ""));
  const part = (title, items) => (items.length ? [make("h3", {}, title), make("ul", { cls: "rows" }, ...items)] : []);
  const all = [...part("At the broker", here), ...part("Ordered with this key", mine)];
  place.replaceChildren(...(all.length ? all : [make("p", { cls: "quiet" }, "None.")]));
}

function times(number) {
  return number === 1 ? "once" : `${count(number)} times`;
}

function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== "" && value != null);
  return make("table", {}, make("tbody", {}, ...rows.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)))));
}

export function replica(place, one, story, now) {
  const { state } = story;
  const service = state?.service;
  const health = story.health === "healthy" ? story.health : `${story.health}: ${story.why}`;
  const bad = BAD.has(one?.state) ? "bad" : "";
  place.replaceChildren(
    facts([
      ["State", make("span", { cls: bad }, one?.state ?? state?.phase ?? "missing")],
      ["Health", health],
      ["Node", `${story.node}${one?.task.switch ? ` (${one.task.switch})` : ""}`],
      ["Job", story.job],
      ["Version", story.version],
      ["Task", [story.heard ? "is heard" : "is not heard", story.restarts ? `started again ${times(story.restarts)}` : "", story.words].filter(Boolean).join("; ")],
      ...(state ? [
        ["Incarnation", `${state.incarnation}${state.restarts ? `, restarted ${times(state.restarts)}` : ""}`],
        ["Sequences", `${state.running} run, ${state.waiting} wait`],
        ["Tokens", `${count(state.tokens)}, ${rate(state.token_rate)} a second`],
        ["Requests", `${count(service.served)} served, ${count(service.failed)} failed`],
        ["Latency", service.samples ? `first token ${seconds(service.ttft)}, then ${seconds(service.tbt)}` : "not measured yet"],
        ["Accelerators", service.utilization < 0 ? "" : `${share(service.utilization)} busy, ${share(service.memory)} of memory`],
        ["Last words", state.story],
      ] : []),
    ]),
    make("h3", {}, "What happened"),
    story.moments.length
      ? make("ul", { cls: "lines" }, ...[...story.moments].reverse().map((moment) =>
        make("li", {}, make("span", { cls: "quiet" }, `${ago(moment.at, now)}  `), moment.text)))
      : make("p", { cls: "quiet" }, "Nothing since this broker began."));
}

export function request(place, found) {
  if (!found.lines.length) {
    place.replaceChildren(make("p", { cls: "quiet" },
      "Nothing is logged of it. A request is logged when something went wrong, or when its client sent traceparent with the sampled flag."));
    return;
  }
  place.replaceChildren(make("ul", { cls: "lines" }, ...found.lines.map(({ file, line }) =>
    make("li", {}, make("div", { cls: "quiet mono" }, file), make("div", { cls: "mono" }, line)))));
}
