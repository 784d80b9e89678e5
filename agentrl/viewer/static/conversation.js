// The messages along one path as a chat, and their tokens.

import { api, h, short, whenSeen } from "./dom.js";
import { json, readable, shown, tree } from "./text.js";
import { tokenView } from "./tokens.js";

const BATCH = 40;
const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

export class Conversation {
  constructor(view, session) {
    this.view = view;
    this.session = session;
    this.element = h("section", { class: "chat", "aria-label": `Conversation of ${shown(session.id)}` });
    this.path = [];
  }

  /** Show the messages of a path (node numbers from the root), and bring one into sight; null for none. */
  async show(path, chosen, scroll) {
    const kept = path.findIndex((id, at) => this.path[at] !== id);
    const same = kept === -1 && path.length === this.path.length;
    if (!same) {
      this.path = path;
      this.stop?.();
      this.done = 0;
      this.end = h("p", { class: "quiet" });
      this.element.replaceChildren(this.end);
    }
    if (this.done === 0 || this.done <= path.indexOf(chosen)) while ((await this.more()) && this.done <= path.indexOf(chosen));
    if (!same && this.done < path.length) this.stop = whenSeen(this.end, () => this.more());
    this.element.querySelectorAll(".message.chosen").forEach((each) => each.classList.remove("chosen"));
    const card = this.element.querySelector(`[data-message="${chosen}"]`);
    card?.classList.add("chosen");
    if (scroll) card?.scrollIntoView({ block: "nearest" });
  }

  /** Load the next messages; whether there are more. */
  async more() {
    const path = this.path, { run, item: id, signal } = this.view;
    const wanted = path.slice(this.done, this.done + BATCH);
    if (!wanted.length) return false;
    const found = await api("messages", { run, id, node: wanted }, signal);
    if (path !== this.path) return false;
    this.done += found.length;
    this.end.before(...found.map((each) => this.message(each)));
    this.end.textContent = this.done < path.length ? `${path.length - this.done} more messages …` : "";
    return this.done < path.length;
  }

  message({ id, message, tools }) {
    const node = this.session.nodes[id];
    const text = h("div", { class: "body" }, content(message), (message.tool_calls ?? []).map(toolCall));
    if (message.reasoning_content) text.prepend(h("details", { class: "reasoning" }, h("summary", {}, `Reasoning, ${message.reasoning_content.length.toLocaleString("en")} characters`), readable(message.reasoning_content)));
    if (tools.length) text.prepend(h("details", { class: "tools" }, h("summary", {}, `${tools.length} tools: ${tools.map((tool) => shown(tool.function?.name ?? "?")).join(", ")}`), tree(tools)));
    const button = h("button", { type: "button", class: "plain small count", "aria-pressed": "false", "aria-label": `Tokens of message ${id}`, onclick: () => this.toggle(id, text, button) }, `${node.tokens} tokens`);
    return h("article", { class: ["message", message.role], "data-message": id },
      h("header", {}, h("b", {}, message.role), node.agent === "agent" ? null : h("span", {}, shown(node.agent)), message.name ? h("code", {}, shown(message.name)) : null,
        node.copy_of === null ? null : h("span", { class: "badge" }, `copy of node ${node.copy_of}`),
        node.finish === "length" ? h("span", { class: "badge truncated" }, "cut by a limit") : null,
        node.reward === null ? null : h("span", { class: "badge" }, `reward ${short(node.reward)}`), h("span", { class: "grow" }),
        node.sampled ? h("span", { class: "quiet small" }, [`mean log p ${short(node.logp)}`, `version ${[...new Set(node.versions)].join(", ")}`, node.trained ? null : "not trained",
          node.temperature === 1 ? null : `temperature ${node.temperature}`].filter(Boolean).join(" · ")) : null, button),
      text);
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

function content({ content: value }) {
  if (!value) return null;
  if (typeof value === "string") return readable(value);
  return value.map((part) => (part.type === "text" ? readable(part.text ?? "") : image(part.image_url?.url ?? "")));
}

/** Only what is in the session itself is shown: nothing is fetched from elsewhere. */
function image(url) {
  return IMAGE.test(url) ? h("img", { src: url, alt: "An image in the conversation", class: "picture" }) : h("code", {}, `image at ${shown(url.slice(0, 300))}`);
}

function toolCall(call) {
  const parsed = json(call.function.arguments);
  return h("div", { class: "call" }, h("div", { class: "call-name" }, "calls ", h("code", {}, shown(call.function.name))),
    parsed === undefined ? readable(call.function.arguments) : tree(parsed), call.error ? h("div", { class: "error" }, shown(call.error)) : null);
}
