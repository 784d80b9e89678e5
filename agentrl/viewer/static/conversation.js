// The messages along one path as a chat, and their tokens.

import { api, counted, h, query, short, whenSeen } from "./dom.js";
import { json, readable, shown, tree } from "./text.js";
import { named } from "./players.js";
import { replayForm } from "./replay.js";
import { timingLine } from "./timings.js";
import { tokenView } from "./tokens.js";

const BATCH = 40;

export class Conversation {
  constructor(view, session) {
    this.view = view;
    this.session = session;
    this.element = h("section", { class: "chat", "aria-label": `Conversation of ${shown(session.id)}` });
    this.path = [];
    this.read = () => {}; // is called with the message at the top of the window
    const seen = new Set(), watched = (entry) => Number(entry.target.dataset.message);
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) seen[entry.isIntersecting && entry.target.isConnected ? "add" : "delete"](watched(entry));
      const first = this.path.find((id) => seen.has(id));
      if (first !== undefined) this.read(first);
    }, { rootMargin: "-60px 0px -60% 0px" });
    view.signal?.addEventListener("abort", () => this.watch.disconnect());
    this.replayed = null; // is called when a replay was started; without it none is offered
    this.first = this.done = 0;
  }

  /** Show the messages of a path (node numbers from the root), and bring one into sight; null for none. */
  async show(path, chosen, scroll) {
    const at = path.indexOf(chosen);
    const same = path.length === this.path.length && path.every((id, place) => this.path[place] === id);
    if (!same || (at >= 0 && (at < this.first || at >= this.done + BATCH))) this.begin(path, scroll ? at : 0);
    while ((this.done === this.first || this.done <= at) && (scroll || this.done === this.first) && (await this.more()));
    if (!this.stop && this.done < path.length) this.stop = whenSeen(this.end, () => this.more());
    this.element.querySelectorAll(".message.chosen").forEach((each) => each.classList.remove("chosen"));
    const card = this.element.querySelector(`[data-message="${chosen}"]`);
    card?.classList.add("chosen");
    if (scroll) card?.scrollIntoView({ block: "nearest" });
  }

  /** Empty the conversation; of a long path, what is far above the message at place `at` comes when it is asked for. */
  begin(path, at) {
    this.stop?.();
    this.stop = null;
    this.path = path;
    this.first = this.done = at > BATCH ? at - BATCH / 2 : 0;
    this.end = h("p", { class: "quiet" });
    this.earlier = h("button", { type: "button", hidden: this.first === 0, onclick: () => this.before() }, `${this.first} earlier messages`);
    this.element.replaceChildren(this.earlier, this.end);
  }

  /** Load the messages before the first one that is shown. */
  async before() {
    const start = Math.max(this.first - BATCH, 0), path = this.path;
    const cards = await this.cards(path.slice(start, this.first));
    if (path !== this.path) return;
    this.earlier.after(...cards);
    this.first = start;
    this.earlier.hidden = start === 0;
    this.earlier.textContent = `${start} earlier messages`;
  }

  /** Load the next messages; whether there are more. */
  async more() {
    const path = this.path;
    const cards = await this.cards(path.slice(this.done, this.done + BATCH));
    if (path !== this.path) return false;
    this.done += cards.length;
    this.end.before(...cards);
    this.end.textContent = this.done < path.length ? `${path.length - this.done} more messages …` : "";
    return cards.length > 0 && this.done < path.length;
  }

  async cards(ids) {
    const { run, item: id, signal } = this.view;
    return ids.length ? (await api("messages", { run, id, node: ids }, signal)).map((each) => this.message(each)) : [];
  }

  message({ id, message, tools }) {
    const node = this.session.nodes[id];
    const text = h("div", { class: "body" }, content(message, (place) => `/api/image?${query({ run: this.view.run, id: this.view.item, node: id, image: place })}`), (message.tool_calls ?? []).map(toolCall));
    if (message.reasoning_content) text.prepend(h("details", { class: "reasoning" }, h("summary", {}, `Reasoning, ${message.reasoning_content.length.toLocaleString("en")} characters`), readable(message.reasoning_content)));
    if (tools.length) text.prepend(h("details", { class: "tools" }, h("summary", {}, `${counted(tools.length, "tool")}: ${tools.map((tool) => shown(tool.function?.name ?? "?")).join(", ")}`), tree(tools)));
    const button = h("button", { type: "button", class: "plain small count", "aria-pressed": "false", "aria-label": `Tokens of message ${id}`, onclick: () => this.toggle(id, text, button) }, counted(node.tokens, "token"));
    const card = h("article", { class: ["message", message.role], "data-message": id },
      h("header", {}, h("b", {}, message.role), node.agent === "agent" ? null : h("span", {}, shown(node.agent)), node.policy && this.session.policies.length > 1 ? named(node.policy, this.session.policies) : null, message.name ? h("code", {}, shown(message.name)) : null,
        node.copy_of === null ? null : h("span", { class: "badge" }, `copy of node ${node.copy_of}`),
        node.excluded && node.parent === null ? h("span", { class: "badge" }, "beside the task: no credit (gateway.exclude)") : null,
        node.finish === "length" ? h("span", { class: "badge truncated" }, "cut by a limit") : null,
        node.reward === null ? null : h("span", { class: "badge" }, `reward ${short(node.reward)}`), h("span", { class: "grow" }), timingLine(node.timings),
        node.sampled ? h("span", { class: "quiet small" }, [`mean log p ${short(node.logp)}`, `version ${[...new Set(node.versions)].join(", ")}`, node.trained ? null : "not trained",
          node.temperature === 1 ? null : `temperature ${node.temperature}`].filter(Boolean).join(" · ")) : null, this.again(node), button),
      text);
    this.watch.observe(card);
    return card;
  }

  /** The button that replays a turn; null where it can't be. */
  again(node) {
    if (!this.replayed || node.turn === null || this.session.replay.refused) return null;
    const button = h("button", { type: "button", class: "plain small", "aria-label": `Replay turn ${node.turn}`, onclick: () => {
      const header = button.closest("header"), open = header.nextElementSibling.matches("form");
      if (open) header.nextElementSibling.remove();
      else header.after(replayForm(this.view, this.session, node.turn, () => {
        header.nextElementSibling.remove();
        return this.replayed();
      }));
    } }, "Replay");
    return button;
  }

  async toggle(id, text, button) {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(on));
    const card = text.parentElement;
    text.hidden = on;
    card.querySelector(".tokens")?.remove();
    if (on) card.append(tokenView(await api("tokens", { run: this.view.run, id: this.view.item, node: id }, this.view.signal), this.view));
  }
}

function content({ content: value }, address) {
  if (!value) return null;
  if (typeof value === "string") return readable(value);
  return value.map((part) => (part.type === "text" ? readable(part.text ?? "") : image(part.image_url ?? {}, address)));
}

/** Only what is in the session itself is shown, as the server decodes it: nothing is fetched from elsewhere. */
function image({ place, url = "" }, address) {
  if (place === undefined) return h("code", {}, `image at ${shown(url.slice(0, 300))}`);
  const found = h("img", { src: address(place), alt: "An image in the conversation", class: "picture" });
  found.addEventListener("error", () => found.replaceWith(h("code", {}, "an image that can't be decoded")));
  return found;
}

function toolCall(call) {
  const parsed = json(call.function.arguments);
  return h("div", { class: "call" }, h("div", { class: "call-name" }, "calls ", h("code", {}, shown(call.function.name))),
    parsed === undefined ? readable(call.function.arguments) : tree(parsed), call.error ? h("div", { class: "error" }, shown(call.error)) : null);
}
