// Numbers and times as people read them, and elements made without HTML: nothing that came with data is ever parsed.

export function count(value) {
  if (value == null) return "–";
  if (value >= 1e6) return `${short(value / 1e6)}M`;
  if (value >= 1e5) return `${short(value / 1e3)}k`;
  return Math.round(value).toLocaleString("en");
}

function short(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function rate(value) {
  if (value == null) return "–";
  return value > 0 && value < 10 ? value.toFixed(1) : count(value);
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 0.0005) return "0 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${Math.round(value)} s`;
}

export function share(value) {
  return value == null || value < 0 ? "–" : `${Math.round(value * 100)} %`;
}

export function ago(then, now) {
  const age = Math.max(0, Math.round(now - then));
  if (age < 60) return `${age} s ago`;
  if (age < 3600) return `${Math.round(age / 60)} min ago`;
  return age < 172800 ? `${Math.round(age / 3600)} h ago` : `${Math.round(age / 86400)} days ago`;
}

export function clock(time) {
  return new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

export function make(tag, options = {}, ...children) {
  const { cls, ...attributes } = options;
  const element = document.createElement(tag);
  if (cls) element.className = cls;
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== ""));
  return element;
}

// A row of buttons of which one is on; arrows move between them.
export function choice(place, names, first, chosen) {
  const buttons = names.map((name) => make("button", { type: "button", role: "radio" }, name));
  const pick = (index) => {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-checked", String(at === index));
      button.tabIndex = at === index ? 0 : -1;
    });
    chosen(names[index]);
  };
  buttons.forEach((button, at) => {
    button.addEventListener("click", () => pick(at));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const next = (at + step + names.length) % names.length;
      pick(next);
      buttons[next].focus();
    });
  });
  place.replaceChildren(...buttons);
  pick(names.indexOf(first));
  return pick;
}
