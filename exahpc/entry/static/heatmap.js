// Every replica as a square: a column for each node, nodes in bands. Drawn on a canvas: 3,072 of them in a few ms.

import { WELL } from "./fleet.js";
import { seconds, share } from "./format.js";

const LARGEST = 20, SMALLEST = 3;
const TALL = 560; // pixels that the map takes at most, unless the smallest squares need more
const HEAD = 16; // of a band
const SLOW = 10; // seconds to the first token that have the darkest colour

export const MODES = ["State", "Load", "Latency", "KV cache", "Version"];

export class HeatMap {
  // picked: called with a replica that was chosen; moved: with the one under the keyboard's cursor.
  constructor(canvas, tip, fleet, picked, moved) {
    Object.assign(this, { canvas, tip, fleet, picked, moved });
    this.mode = "State";
    this.columns = [];
    this.cursor = null;
    this.selected = null;
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => {
      const found = this.at(event.offsetX, event.offsetY);
      if (found) this.pick(found);
    });
    canvas.addEventListener("keydown", (event) => this.press(event));
    canvas.addEventListener("blur", () => this.draw());
    canvas.addEventListener("focus", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  // --- where things are ---

  place() {
    const width = this.canvas.parentElement.clientWidth;
    for (let size = LARGEST; ; size -= 1) {
      const height = this.fit(size, width);
      if (height <= TALL || size === SMALLEST) return { size, width, height };
    }
  }

  fit(size, width) {
    const gap = size > 5 ? 1 : 0;
    const pitch = size + gap + (size > 5 ? 2 : 1);
    this.pitch = pitch;
    this.step = size + gap;
    this.columns = [];
    this.bands = [];
    let top = 0;
    for (const pool of this.fleet.layout.pools) {
      const tasks = this.fleet.tasks.filter((task) => task.pool === pool);
      const across = Math.max(1, Math.floor(width / pitch));
      for (let from = 0; from < tasks.length; from += across) {
        const band = tasks.slice(from, from + across);
        this.bands.push({ top, pool, first: band[0], last: band[band.length - 1] });
        band.forEach((task, at) => this.columns.push({ task, x: at * pitch, y: top + HEAD }));
        top += HEAD + Math.max(...band.map((task) => task.count)) * this.step + 6;
      }
    }
    return top;
  }

  at(x, y) {
    const column = this.columns.find(
      (one) => x >= one.x && x < one.x + this.pitch && y >= one.y && y < one.y + one.task.count * this.step,
    );
    return column ? this.fleet.replica(column.task, column.task.first + Math.floor((y - column.y) / this.step)) : null;
  }

  // --- drawing ---

  draw() {
    if (!this.fleet.layout) return;
    const { size, width, height } = this.place();
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const colours = this.colours();
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    pen.fillStyle = colours.quiet;
    for (const band of this.bands) pen.fillText(this.title(band), 0, band.top + 1, width);
    for (const { task, x, y } of this.columns) {
      for (let at = 0; at < task.count; at += 1) {
        const one = this.fleet.replica(task, task.first + at);
        const colour = this.colour(one, colours);
        if (colour) {
          pen.fillStyle = colour;
          pen.fillRect(x, y + at * this.step, size, size);
        } else { // nothing to measure there
          pen.fillStyle = colours.state("missing");
          const inset = Math.max(1, Math.floor(size / 3));
          pen.fillRect(x + inset, y + at * this.step + inset, size - 2 * inset, size - 2 * inset);
        }
      }
    }
    this.frame(pen, this.selected, size, colours.ink, 2);
    if (document.activeElement === this.canvas) this.frame(pen, this.cursor, size, colours.accent, 2);
  }

  title({ pool, first, last }) {
    const nodes = first === last ? first.node : `${first.node} – ${last.node}`;
    const leaves = first.switch ? `   ${first.switch}${last.switch === first.switch ? "" : ` – ${last.switch}`}` : "";
    return `${pool}   ${nodes}${leaves}`;
  }

  frame(pen, place, size, colour, thick) {
    if (!place) return;
    const column = this.columns.find(
      ({ task }) => task.pool === place.pool && task.first <= place.slot && place.slot < task.first + task.count,
    );
    if (!column) return;
    const y = column.y + (place.slot - column.task.first) * this.step;
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    pen.strokeRect(column.x - 1, y - 1, size + 2, size + 2);
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const kept = new Map();
    const of = (name) => {
      if (!kept.has(name)) kept.set(name, style.getPropertyValue(`--${name}`).trim());
      return kept.get(name);
    };
    return { of, quiet: of("quiet"), ink: of("ink"), accent: of("accent"), state: (name) => of(`s-${name}`) };
  }

  colour(one, colours) {
    const ramp = (value) => colours.of(`r${Math.min(5, Math.max(0, Math.floor(value * 5.999)))}`);
    switch (this.mode) {
      case "State": return colours.state(one.state);
      case "Version": return one.state === "missing" ? null : colours.of(`v${one.task.versionNumber % 6}`);
      case "Load": return !one.serving ? null : one.load > 1 ? colours.of("over") : ramp(one.load);
      case "KV cache": return !one.serving || one.kv === null ? null : ramp(one.kv);
      default: return !one.serving || one.ttft === null ? null : ramp(Math.log1p(10 * one.ttft) / Math.log1p(10 * SLOW));
    }
  }

  // What the colours mean: [colour name or null, text, how many or null].
  legend() {
    const ramp = (texts) => texts.map((text, at) => [`r${at}`, text, null]);
    switch (this.mode) {
      case "State": {
        const counts = this.fleet.counts();
        return this.fleet.layout.states.filter((name) => counts.has(name))
          .map((name) => [`s-${name}`, name, counts.get(name)]);
      }
      case "Version": {
        const counts = new Map();
        for (const task of this.fleet.tasks) counts.set(task.versionNumber, (counts.get(task.versionNumber) ?? 0) + task.count);
        return [...counts].map(([at, many]) => [`v${at % 6}`, this.fleet.layout.versions[at] || "first version", many]);
      }
      case "Latency": {
        const edge = (at) => seconds(Math.expm1((at / 6) * Math.log1p(10 * SLOW)) / 10);
        return [...ramp([0, 1, 2, 3, 4, 5].map((at) => `from ${edge(at)}`)), ["s-missing", "not measured", null]];
      }
      default: {
        const over = this.mode === "Load" ? [["over", "more than it runs at once", null]] : [];
        const steps = ["0", "17", "33", "50", "67", "83"].map((text) => `from ${text} %`);
        return [...ramp(steps), ...over, ["s-missing", "does not serve", null]];
      }
    }
  }

  // --- hands ---

  hover(event) {
    const one = this.at(event.offsetX, event.offsetY);
    this.tip.hidden = !one;
    if (!one) return;
    this.tip.textContent = describe(one);
    const room = this.canvas.parentElement.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, event.offsetX + 14))}px`;
    this.tip.style.top = `${event.offsetY + 16}px`;
  }

  pick(one) {
    this.selected = this.cursor = { pool: one.task.pool, slot: one.slot };
    this.draw();
    this.picked(one);
  }

  press(event) {
    const now = this.cursor && this.fleet.find(this.cursor.pool, this.cursor.slot);
    if (event.key === "Enter" && now) return this.pick(now);
    const next = this.next(event.key, now);
    if (!next) return undefined;
    event.preventDefault();
    this.cursor = { pool: next.task.pool, slot: next.slot };
    this.draw();
    return this.moved(next);
  }

  next(key, now) {
    const { tasks } = this.fleet;
    if (!tasks.length) return null;
    const at = (task, offset) => task && this.fleet.replica(task, task.first + Math.min(offset, task.count - 1));
    if (key === "n" || key === "N") return this.nextIll(now);
    if (!now) return key.startsWith("Arrow") || key === "Home" ? at(tasks[0], 0) : null;
    const offset = now.slot - now.task.first;
    switch (key) {
      case "ArrowRight": return at(tasks[now.task.index + 1], offset);
      case "ArrowLeft": return at(tasks[now.task.index - 1], offset);
      case "ArrowDown": return offset + 1 < now.task.count ? at(now.task, offset + 1) : null;
      case "ArrowUp": return offset > 0 ? at(now.task, offset - 1) : null;
      case "Home": return at(tasks[0], 0);
      case "End": return at(tasks[tasks.length - 1], offset);
      default: return null;
    }
  }

  nextIll(now) {
    const all = [...this.fleet.replicas()];
    const from = now ? now.task.at + now.slot - now.task.first + 1 : 0;
    return [...all.slice(from), ...all.slice(0, from)].find((one) => !WELL.has(one.state)) ?? null;
  }
}

export function describe(one) {
  const where = `${one.task.pool}/${one.slot} on ${one.task.node || "no node"}`;
  if (!one.serving) return `${where}\n${one.state}`;
  const ttft = one.ttft === null ? "" : `, first token in ${seconds(one.ttft)}`;
  return `${where}\n${one.state}, load ${share(one.load)}, KV cache ${share(one.kv)}${ttft}`;
}
