// The sessions of a group beside each other: how each went on, and where they first differ.

import { Conversation } from "./conversation.js";
import { api, h, link, short } from "./dom.js";
import { Outline } from "./outline.js";
import { shown } from "./text.js";

const MOST = 16;

export async function showGroup(main, view) {
  const { run, item: group } = view;
  const { rows } = await api("sessions", { run, group, sort: "sample", limit: MOST }, view.signal);
  const sessions = await Promise.all(rows.map((row) => api("session", { run, id: row.id }, view.signal)));
  const paths = sessions.map((session) => pathOf(session));
  const common = sharedLength(sessions, paths);
  const columns = await Promise.all(sessions.map(async (session, at) => {
    const conversation = new Conversation({ ...view, item: session.id }, session);
    if (paths[at].length) await conversation.show(paths[at], null, false);
    if (sessions.length > 1) conversation.element.querySelector(`[data-message="${paths[at][common]}"]`)?.classList.add("parts");
    return h("section", { "aria-label": session.id }, h("h2", {}, h("a", { href: link(["run", run, "session", session.id]), "data-row": session.id }, `sample ${session.sample}`),
      h("span", { class: ["badge", session.status] }, session.status.replace("_", " ")), h("span", { class: "badge reward" }, `score ${short(session.score)}`)), conversation.element);
  }));
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, `Group ${shown(group)}`), h("span", { class: "quiet" }, sessions.length
    ? `${sessions.length} sessions of ${shown(sessions[0].task.id)}; the first ${common} messages are the same` : "has no sessions.")), h("div", { class: "together" }, columns));
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
