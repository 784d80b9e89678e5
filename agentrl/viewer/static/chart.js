// One chart: several curves over steps or hours, with hover, keys, smoothing, log scale, PNG and CSV.

import { download, duration, h, short, svg } from "./dom.js";

const WIDTH = 460, HEIGHT = 210, LEFT = 52, RIGHT = 10, TOP = 10, BOTTOM = 24;
const MOST_POINTS = 500;
let made = 0;
export const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];

/**
 * A chart of `title`.
 *
 * `curves` are {label, x, y, steps}, and `colour` where it is not by place: equally long lists, in which y may have null; `opened(curve, index)` is called with a
 * point that was clicked.
 */
export class Chart {
  constructor(title, opened) {
    this.title = title;
    this.opened = opened;
    this.curves = [];
    this.options = {};
    this.plot = `plot-${made++}`;
    this.picture = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", tabindex: 0, role: "img",
      onpointermove: (event) => this.hover(this.nearest(event)), onpointerleave: () => this.hover(null), onblur: () => this.hover(null),
      onclick: (event) => this.open(this.nearest(event)), onkeydown: (event) => this.key(event),
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("figure", { class: "card figure", "data-chart": title },
      h("figcaption", {}, h("span", { class: "grow" }, title),
        h("button", { type: "button", class: "plain small", "aria-label": `${title} as PNG`, onclick: () => this.png() }, "PNG"),
        h("button", { type: "button", class: "plain small", "aria-label": `${title} as CSV`, onclick: () => this.csv() }, "CSV")),
      this.picture, this.tip);
  }

  /** Show these curves; options are {log, smooth, by}. */
  draw(curves, options) {
    this.curves = curves.filter((curve) => curve.y.some((value) => value !== null));
    this.options = options;
    this.smoothed = this.curves.map((curve) => smooth(curve.y, options.smooth));
    this.bounds();
    this.picture.replaceChildren(...this.grid(), ...this.lines(), (this.mark = svg("g", { class: "mark" })));
    const ends = this.curves.map((curve) => `${curve.label}: ${short(curve.y.findLast((value) => value !== null))}`);
    this.picture.setAttribute("aria-label", `${this.title}; newest value of ${ends.join(", ") || "no run"}`);
  }

  bounds() {
    const values = this.curves.flatMap((curve, at) => (this.options.smooth ? [...this.smoothed[at]] : curve.y)).filter((y) => y !== null);
    this.log = this.options.log && values.some((y) => y > 0); // else there is nothing that a logarithm could show
    const ys = this.log ? values.filter((y) => y > 0) : values;
    const xs = this.curves.flatMap((curve) => [curve.x[0], curve.x.at(-1)]);
    let [low, high] = ys.length ? extent(ys) : [0, 1];
    if (this.log) [low, high] = [Math.log10(low), Math.log10(high)];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    this.y = { low: low - room, high: high + room };
    const [first, last] = xs.length ? extent(xs) : [0, 1];
    this.x = { low: first, high: last > first ? last : first + 1 };
    const span = this.x.high - this.x.low;
    this.unit = this.options.by !== "hours" ? { size: 1, name: "" } : span < 0.05 ? { size: 3600, name: " s" } : span < 3 ? { size: 60, name: " min" } : { size: 1, name: " h" };
  }

  atX(x) {
    return LEFT + ((x - this.x.low) / (this.x.high - this.x.low)) * (WIDTH - LEFT - RIGHT);
  }

  atY(y) {
    const value = this.log ? (y > 0 ? Math.log10(y) : this.y.low) : y;
    return HEIGHT - BOTTOM - ((value - this.y.low) / (this.y.high - this.y.low)) * (HEIGHT - TOP - BOTTOM);
  }

  grid() {
    const parts = [];
    for (const tick of this.log ? logTicks(this.y.low, this.y.high) : ticks(this.y.low, this.y.high, 4)) {
      const y = HEIGHT - BOTTOM - ((tick - this.y.low) / (this.y.high - this.y.low)) * (HEIGHT - TOP - BOTTOM);
      parts.push(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid" }),
        svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, short(this.log ? 10 ** tick : tick)));
    }
    const { size, name } = this.unit;
    for (const tick of ticks(this.x.low * size, this.x.high * size, 5)) {
      parts.push(svg("text", { x: this.atX(tick / size), y: HEIGHT - 6, "text-anchor": "middle" }, `${short(tick)}${name}`));
    }
    return parts;
  }

  /** The curves, cut off where raw values lie beyond the axis of the smoothed ones. */
  lines() {
    const plot = { x: LEFT - 2, y: TOP - 4, width: WIDTH - LEFT - RIGHT + 4, height: HEIGHT - TOP - BOTTOM + 6 };
    const drawn = this.curves.flatMap((curve, at) => {
      const colour = this.colour(at);
      const faint = this.options.smooth ? this.line(curve.x, curve.y, colour, "faint") : [];
      return [...faint, ...this.line(curve.x, this.smoothed[at], colour, "line")];
    });
    return [svg("clipPath", { id: this.plot }, svg("rect", plot)), svg("g", { "clip-path": `url(#${this.plot})` }, drawn)];
  }

  colour(at) {
    return this.curves[at].colour ?? `var(${COLOURS[at % COLOURS.length]})`;
  }

  line(x, y, colour, kind) {
    const points = thin(x, y).map(([a, b]) => `${this.atX(a).toFixed(1)},${this.atY(b).toFixed(1)}`);
    if (points.length === 1) {
      const [cx, cy] = points[0].split(",");
      return [svg("circle", { cx, cy, r: 2.5, fill: colour })];
    }
    return [svg("polyline", { points: points.join(" "), class: kind, stroke: colour })];
  }

  nearest(event) {
    const box = this.picture.getBoundingClientRect();
    const px = ((event.clientX - box.left) / box.width) * WIDTH, py = ((event.clientY - box.top) / box.height) * HEIGHT;
    let best = null;
    this.curves.forEach((curve, at) => {
      const index = closest(curve.x, this.x.low + ((px - LEFT) / (WIDTH - LEFT - RIGHT)) * (this.x.high - this.x.low), curve.y);
      if (index === null) return;
      const away = Math.hypot(this.atX(curve.x[index]) - px, (this.atY(this.smoothed[at][index] ?? curve.y[index]) - py) / 3);
      if (!best || away < best.away) best = { at, index, away };
    });
    return best;
  }

  hover(point) {
    this.point = point;
    this.mark?.replaceChildren(); // none is there before the first drawing
    this.tip.hidden = point === null;
    if (!point) return;
    const { at, index } = point, chosen = this.curves[at], x = chosen.x[index];
    this.mark.append(svg("line", { x1: this.atX(x), x2: this.atX(x), y1: TOP, y2: HEIGHT - BOTTOM, class: "hair" }));
    const rows = this.curves.map((curve, place) => {
      const near = place === at ? index : closest(curve.x, x, curve.y);
      if (near === null) return null;
      const colour = this.colour(place);
      this.mark.append(svg("circle", { cx: this.atX(curve.x[near]), cy: this.atY(this.smoothed[place][near] ?? curve.y[near]), r: 3.2, fill: colour }));
      return h("div", { class: place === at && this.curves.length > 1 ? "chosen" : null }, h("i", { style: { background: colour } }), `${curve.label} `, h("b", {}, short(curve.y[near])),
        this.options.smooth ? h("span", { class: "quiet" }, ` (${short(this.smoothed[place][near])})`) : null);
    });
    const when = this.options.by === "hours" ? `step ${chosen.steps[index]}, ${duration(x * 3600)}` : `step ${chosen.steps[index]}`;
    this.tip.replaceChildren(h("div", { class: "quiet" }, when), ...rows.filter(Boolean));
    const share = this.atX(x) / WIDTH;
    this.tip.style.setProperty("left", share < 0.5 ? `${share * 100 + 3}%` : "auto");
    this.tip.style.setProperty("right", share < 0.5 ? "auto" : `${(1 - share) * 100 + 3}%`);
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && this.point) this.open(this.point);
    if (!by || !this.curves.length) return;
    event.preventDefault();
    const at = this.point?.at ?? 0, y = this.curves[at].y;
    let index = this.point ? this.point.index + by : y.length - 1;
    while (index > 0 && index < y.length - 1 && y[index] === null) index += by;
    this.hover({ at, index: Math.min(Math.max(index, 0), y.length - 1) });
  }

  open(point) {
    if (point) this.opened(this.curves[point.at], point.index);
  }

  csv() {
    const unit = this.options.by === "hours" ? "hours" : "step";
    const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const rows = this.curves.flatMap((curve) => curve.y.map((y, at) => [quoted(curve.label), curve.steps[at], curve.x[at], y ?? ""].join(",")));
    download(`${this.name()}.csv`, [`run,step,${unit === "step" ? "x" : unit},${quoted(this.title)}`, ...rows, ""].join("\n"), "text/csv");
  }

  /** The picture at twice its size, with a title and a legend; colours are those of the page. */
  async png() {
    const style = getComputedStyle(document.documentElement);
    const copied = this.picture.cloneNode(true);
    const legend = 18 * this.curves.length;
    copied.setAttribute("viewBox", `0 ${-24} ${WIDTH} ${HEIGHT + 24 + legend}`);
    copied.setAttribute("width", WIDTH * 2);
    copied.setAttribute("height", (HEIGHT + 24 + legend) * 2);
    copied.prepend(svg("rect", { x: 0, y: -24, width: "100%", height: "100%", fill: style.getPropertyValue("--card") }));
    copied.append(svg("text", { x: LEFT, y: -8, "font-weight": "bold" }, this.title));
    this.curves.forEach((curve, at) => copied.append(
      svg("rect", { x: LEFT, y: HEIGHT + 4 + at * 18, width: 10, height: 10, fill: `var(${COLOURS[at % COLOURS.length]})` }),
      svg("text", { x: LEFT + 16, y: HEIGHT + 13 + at * 18 }, curve.label)));
    for (const part of copied.querySelectorAll("*")) plain(part, style);
    const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copied)], { type: "image/svg+xml" }));
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: image.width, height: image.height });
    canvas.getContext("2d").drawImage(image, 0, 0);
    URL.revokeObjectURL(url);
    canvas.toBlob((blob) => download(`${this.name()}.png`, blob), "image/png");
  }

  name() {
    return this.title.replaceAll(/[^\w.-]+/g, "-");
  }
}

/** Write what the style sheet says of an element into it: a picture alone has no style sheet. */
function plain(part, style) {
  const kind = part.getAttribute("class");
  const looks = { grid: { stroke: "var(--line)" }, line: { fill: "none", "stroke-width": 1.8 }, faint: { fill: "none", opacity: 0.25 } }[kind] ?? {};
  for (const [name, value] of Object.entries(looks)) part.setAttribute(name, value);
  if (part.tagName === "text") {
    part.setAttribute("font-family", "sans-serif");
    part.setAttribute("font-size", 11);
    part.setAttribute("fill", "var(--quiet)");
  }
  for (const name of ["stroke", "fill"]) {
    const variable = part.getAttribute(name)?.match(/^var\((.*)\)$/)?.[1];
    if (variable) part.setAttribute(name, style.getPropertyValue(variable).trim());
  }
}

/** An exponential moving average, corrected for its beginning; nulls stay. */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
}

/** Pairs without nulls; of many, the least and the greatest of each stretch, so that no peak is lost. */
function thin(x, y) {
  const pairs = [];
  for (let at = 0; at < y.length; at++) if (y[at] !== null && y[at] !== undefined) pairs.push([x[at], y[at]]);
  if (pairs.length <= MOST_POINTS) return pairs;
  const size = Math.ceil(pairs.length / (MOST_POINTS / 2)), kept = [];
  for (let start = 0; start < pairs.length; start += size) {
    const part = pairs.slice(start, start + size);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The index whose x is the nearest, among those with a value. */
function closest(x, wanted, y) {
  let low = 0, high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    x[middle] < wanted ? (low = middle) : (high = middle);
  }
  const first = Math.abs(x[low] - wanted) <= Math.abs(x[high] - wanted) ? low : high;
  for (let away = 0; away < x.length; away++) {
    for (const index of [first - away, first + away]) if (y[index] !== null && y[index] !== undefined) return index;
  }
  return null;
}

/** Exponents of ten between two of which the values are round: powers of ten, where there are few also 2 and 5 times these, or any. */
function logTicks(low, high) {
  const tens = Math.max(1, Math.ceil((high - low) / 4)), digits = high - low > 2 ? [1] : high - low > 0.8 ? [1, 2, 5] : null;
  if (!digits) return ticks(10 ** low, 10 ** high, 4).filter((value) => value > 0).map(Math.log10);
  const found = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const digit of digits) if (power % tens === 0 && power + Math.log10(digit) >= low && power + Math.log10(digit) <= high) found.push(power + Math.log10(digit));
  }
  return found;
}

/** About `count` round numbers between two. */
function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
  return found;
}
