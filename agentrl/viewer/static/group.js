// The sessions of a group beside each other: how each went on, and where they first differ.

import { Conversation } from "./conversation.js";
import { api, h, link, short } from "./dom.js";
import { Outline } from "./outline.js";
import { shown } from "./text.js";

const MOST = 16;
const MARKED = "differs"; // the name of the highlight in the style sheet

export async function showGroup(main, view) {
  const { run, item: group } = view;
  const { rows, total } = await api("sessions", { run, group, sort: "sample", limit: MOST }, view.signal);
  const sessions = await Promise.all(rows.map((row) => api("session", { run, id: row.id }, view.signal)));
  const paths = sessions.map((session) => pathOf(session));
  const common = sharedLength(sessions, paths);
  const columns = await Promise.all(sessions.map(async (session, at) => {
    const conversation = new Conversation({ ...view, item: session.id }, session);
    if (paths[at].length) await conversation.show(paths[at], null, false);
    if (sessions.length > 1) card(conversation.element, paths[at][common])?.classList.add("parts");
    return h("section", { "aria-label": session.id }, h("h2", {}, h("a", { href: link(["run", run, "session", session.id]), "data-row": session.id }, `sample ${session.sample}`),
      h("span", { class: ["badge", session.status] }, session.status.replace("_", " ")), h("span", { class: "badge reward" }, `score ${short(session.score)}`)), conversation.element);
  }));
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, `Group ${shown(group)}`), h("span", { class: "quiet" }, sessions.length
    ? `${total > MOST ? `${MOST} of ${total}` : total} sessions of ${shown(sessions[0].task.id)}; the first ${common} messages are the same` : "has no sessions.")), h("div", { class: "together" }, columns));
  mark(columns, paths, common);
}

const card = (column, node) => column.querySelector(`[data-message="${node}"]`);

/** Mark in the messages from place `common` on what not all sessions have there: what is between a common beginning and end. */
function mark(columns, paths, common) {
  if (!CSS.highlights) return;
  const ranges = [];
  for (let place = common; place < Math.max(...paths.map((path) => path.length)); place++) {
    const bodies = columns.map((column, at) => card(column, paths[at][place])?.querySelector(".body")).filter(Boolean);
    const texts = bodies.map((body) => body.textContent), [first] = texts;
    const room = Math.min(...texts.map((text) => text.length));
    let start = 0, end = 0;
    while (start < room && texts.every((text) => text[start] === first[start])) start++;
    while (end < room - start && texts.every((text) => text.at(-1 - end) === first.at(-1 - end))) end++;
    ranges.push(...bodies.map((body, at) => rangeOf(body, start, texts[at].length - end)).filter(Boolean));
  }
  CSS.highlights.set(MARKED, new Highlight(...ranges));
}

/** The characters from `start` to `end` of an element's text; null for none. */
function rangeOf(element, start, end) {
  if (end <= start) return null;
  const range = document.createRange(), walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let done = 0, begun = false;
  for (let node = walker.nextNode(); node; done += node.length, node = walker.nextNode()) {
    if (!begun && start < done + node.length) {
      range.setStart(node, start - done);
      begun = true;
    }
    if (begun && end <= done + node.length) {
      range.setEnd(node, end - done);
      return range;
    }
  }
  return null;
}

/** The newest path of a session. */
function pathOf(session) {
  if (!session.nodes.length) return [];
  const outline = new Outline(() => {});
  outline.draw(session);
  return outline.pathTo(outline.leafBelow(0));
}

/** How many messages all sessions begin with: the same role and tokens. */
function sharedLength(sessions, paths) {
  const key = (at, place) => {
    const node = sessions[at].nodes[paths[at][place]];
    return node ? `${node.role} ${node.digest}` : null;
  };
  let place = 0;
  while (paths.every((path, at) => place < path.length && key(at, place) === key(0, place))) place++;
  return sessions.length ? place : 0;
}
