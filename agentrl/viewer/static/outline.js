// The tree of a session, drawn as one: a row for each node, lines for its branches. Only rows in sight are elements.

import { h, short, svg } from "./dom.js";
import { colourOf } from "./players.js";
import { shown } from "./text.js";

const ROW = 28, LANE = 14, SPARE = 10;
const MARKS = { assistant: "◆", user: "●", tool: "■", system: "○", developer: "○" };

export class Outline {
  /** `selected` is called with the number of a node that was chosen. */
  constructor(selected) {
    this.selected = selected;
    this.rows = h("div", { class: "rows" });
    this.element = h("div", { class: "outline", role: "tree", "aria-label": "Nodes", tabindex: 0, onscroll: () => this.paint(), onkeydown: (event) => this.key(event) }, this.rows);
    new ResizeObserver(() => this.paint()).observe(this.element);
  }

  /** Lay the tree out: depth first, each branch but a node's first child in a lane further right. */
  draw(session) {
    this.nodes = session.nodes;
    this.policies = session.policies.length > 1 ? session.policies : null;
    this.replays = new Map((session.replay?.done ?? []).filter((each) => each.own).map((each) => [each.start, each]));
    this.outcomes = new Map(session.branches.map((branch) => [branch.end - 1, branch]));
    this.children = new Map();
    for (const node of this.nodes) this.children.set(node.parent, [...(this.children.get(node.parent) ?? []), node.id]);
    this.order = [];
    this.lane = new Map();
    let free = 0;
    const waiting = [...(this.children.get(null) ?? [])].reverse().map((id) => [id, null]);
    while (waiting.length) {
      const [id, above] = waiting.pop();
      const firstborn = above !== null && this.children.get(above)[0] === id;
      this.lane.set(id, firstborn ? this.lane.get(above) : free++);
      this.order.push(id);
      // the first child is taken last: its line goes straight down, and the others leave it above
      const [first, ...others] = this.children.get(id) ?? [];
      if (first !== undefined) waiting.push([first, id], ...others.reverse().map((other) => [other, id]));
    }
    this.place = new Map(this.order.map((id, at) => [id, at]));
    this.rows.style.setProperty("height", `${this.order.length * ROW}px`);
    this.chosen = this.path = null;
    this.paint();
  }

  leafBelow(id) {
    for (let below = this.children.get(id); below; below = this.children.get(id)) id = below.at(-1);
    return id;
  }

  pathTo(leaf) {
    const path = [];
    for (let id = leaf; id !== null; id = this.nodes[id].parent) path.push(id);
    return path.reverse();
  }

  select(id, leaf) {
    this.chosen = id;
    this.path = new Set(this.pathTo(leaf));
    this.follow(id);
  }

  /** Mark the node that is being read, and keep it in sight. */
  follow(id) {
    this.reading = id;
    if (!this.place?.has(id)) return;
    const top = this.place.get(id) * ROW;
    if (top < this.element.scrollTop || top + ROW > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = top - this.element.clientHeight / 2;
    this.paint();
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = Math.min(Math.max((this.place.get(this.chosen) ?? 0) + by, 0), this.order.length - 1);
    this.selected(this.order[at]);
  }

  paint() {
    if (!this.order) return;
    const first = Math.max(Math.floor(this.element.scrollTop / ROW) - SPARE, 0);
    const last = Math.min(first + Math.ceil((this.element.clientHeight || 600) / ROW) + 2 * SPARE, this.order.length);
    const inside = this.order.slice(first, last);
    const lanes = Math.min(Math.max(...inside.map((id) => this.lane.get(id)), 0) + 1, 24);
    this.rows.replaceChildren(this.lines(inside, first, last, lanes), ...inside.map((id) => this.row(this.nodes[id], lanes)));
  }

  x(id) {
    return Math.min(this.lane.get(id), 23) * LANE + LANE / 2 + 2;
  }

  /** Lines from nodes in sight, and through it, to their parents. */
  lines(inside, first, last, lanes) {
    const edges = [];
    for (const id of this.order) {
      const { parent } = this.nodes[id];
      if (parent === null || this.place.get(id) < first || this.place.get(parent) >= last) continue;
      const [x, y, px, py] = [this.x(id), this.place.get(id) * ROW + ROW / 2, this.x(parent), this.place.get(parent) * ROW + ROW / 2];
      const bend = Math.max(py, y - ROW / 2);
      edges.push(svg("path", { d: x === px ? `M${px},${py}V${y}` : `M${px},${py}V${bend - 6}Q${px},${bend} ${px + 6 * Math.sign(x - px)},${bend}H${x - 6 * Math.sign(x - px)}Q${x},${bend} ${x},${y}`,
        class: this.path?.has(id) ? "edge on" : "edge" }));
    }
    return svg("svg", { class: "edges", width: lanes * LANE + 6, height: this.order.length * ROW, "aria-hidden": "true" }, edges);
  }

  /** What the first node of a replay begins with. */
  replayed(id) {
    const replay = this.replays.get(id);
    return replay ? `replay${replay.seed ? `, seed ${replay.seed}` : ""}${replay.model ? ` by ${shown(replay.model)}` : ""} · ` : null;
  }

  row(node, lanes) {
    const on = this.path?.has(node.id), outcome = this.outcomes.get(node.id);
    const reward = node.reward ?? outcome?.reward ?? null;
    return h("div", {
      class: ["node", on && "on", this.chosen === node.id && "chosen", this.reading === node.id && "reading", node.role], role: "treeitem", "aria-selected": String(this.chosen === node.id), "data-node": node.id,
      style: { top: `${this.place.get(node.id) * ROW}px`, "padding-left": `${lanes * LANE + 6}px` }, onclick: () => this.selected(node.id),
    }, h("span", { class: "mark", style: { left: `${this.x(node.id) - 6}px`, ...(this.policies && node.policy ? { color: colourOf(node.policy, this.policies) } : {}) }, "aria-hidden": "true" }, MARKS[node.role] ?? "●"),
    h("span", { class: "preview" }, h("span", { class: "quiet" }, this.replayed(node.id), `${node.agent !== "agent" ? `${shown(node.agent)} · ` : ""}${node.role} `, node.excluded && node.parent === null ? "no credit · " : null), shown(node.preview) || (node.copy_of === null ? "" : `copy of node ${node.copy_of}`)),
    reward === null ? null : h("span", { class: "badge reward" }, short(reward)));
  }
}
