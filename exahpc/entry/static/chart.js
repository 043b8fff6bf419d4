// Small line charts on one time axis. No library: six of them need a few lines of drawing, and no build.

import { clock, make } from "./format.js";

const TALL = 96, LEFT = 42, BOTTOM = 16, TOP = 6;
const GAP = 3.5; // missing rows after which a line is broken

export class Chart {
  // lines: names; shown: a value as text.
  constructor(place, title, lines, shown) {
    Object.assign(this, { title, lines, shown });
    this.canvas = make("canvas", { role: "img" });
    this.keys = lines.map((name, at) => make("span", { cls: `key k${at}` }, name));
    place.append(make("figure", { cls: "chart" }, make("figcaption", {}, make("strong", {}, title), ...this.keys), this.canvas));
    this.data = { time: [], columns: lines.map(() => []), from: 0, until: 1, step: 1 };
    this.pointed = null;
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  // time: Unix seconds; columns: a list of values (null: unknown) for each line.
  set(data) {
    this.data = data;
    this.draw();
  }

  point(x) {
    this.pointed = x;
    this.draw();
  }

  draw() {
    const { time, columns, from, until, step } = this.data;
    const width = this.canvas.parentElement.clientWidth;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = width * scale;
    this.canvas.height = TALL * scale;
    this.canvas.style.height = `${TALL}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const top = nice(Math.max(0, ...columns.flat().filter((value) => value != null)));
    const x = (at) => LEFT + ((at - from) / (until - from)) * (width - LEFT - 2);
    const y = (value) => TOP + (1 - value / top) * (TALL - TOP - BOTTOM);

    pen.font = "10.5px system-ui, sans-serif";
    pen.lineWidth = 1;
    for (const part of [0, 0.5, 1]) {
      pen.strokeStyle = colour("line");
      pen.beginPath();
      pen.moveTo(LEFT, Math.round(y(part * top)) + 0.5);
      pen.lineTo(width, Math.round(y(part * top)) + 0.5);
      pen.stroke();
      pen.fillStyle = colour("quiet");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      if (time.length) pen.fillText(this.shown(part * top), LEFT - 5, y(part * top));
    }
    pen.textBaseline = "bottom";
    pen.textAlign = "left";
    pen.fillText(clock(from), LEFT, TALL);
    pen.textAlign = "right";
    pen.fillText(clock(until), width - 1, TALL);
    if (!time.length) {
      pen.textAlign = "center";
      pen.fillText("nothing yet", (LEFT + width) / 2, TALL / 2);
    }

    columns.forEach((values, at) => {
      pen.strokeStyle = colour(`c${at}`);
      pen.lineWidth = 1.5;
      pen.lineJoin = "round";
      pen.beginPath();
      let last = -Infinity;
      values.forEach((value, index) => {
        if (value == null) return;
        if (time[index] - last > GAP * step) pen.moveTo(x(time[index]), y(value));
        else pen.lineTo(x(time[index]), y(value));
        last = time[index];
      });
      pen.stroke();
    });
    this.tell(pen, x, colour);
  }

  // The values under the pointer, or the last ones.
  tell(pen, x, colour) {
    const { time, columns } = this.data;
    let index = time.length - 1;
    if (this.pointed !== null && time.length) {
      index = time.reduce((best, at, i) => (Math.abs(x(at) - this.pointed) < Math.abs(x(time[best]) - this.pointed) ? i : best), 0);
      pen.strokeStyle = colour("quiet");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(Math.round(x(time[index])) + 0.5, TOP);
      pen.lineTo(Math.round(x(time[index])) + 0.5, TALL - BOTTOM);
      pen.stroke();
    }
    const texts = this.lines.map((name, at) => `${name} ${this.shown(columns[at][index] ?? null)}`);
    this.keys.forEach((element, at) => { element.textContent = texts[at]; });
    this.canvas.setAttribute("aria-label", `${this.title}: ${texts.join(", ")}`);
  }
}

function nice(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * unit).find((step) => step >= value * 0.999);
}
