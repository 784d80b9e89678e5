// Sessions beside each other, those of a group or of a task in several runs: how each went on, and where they first differ.

import { Conversation } from "./conversation.js";
import { api, counted, h, link, short } from "./dom.js";
import { Outline } from "./outline.js";
import { scored } from "./scores.js";
import { shown } from "./text.js";

const MOST = 16;
const MARKED = "differs"; // the name of the highlight in the style sheet

export async function showGroup(main, view) {
  const { run, item: group } = view;
  const { rows, total } = await api("sessions", { run, group, sort: "sample", limit: MOST }, view.signal);
  await showTogether(main, view, `Group ${shown(group)}`, rows.map((row) => [run, row.id]), total);
}

/** A task's sessions in several runs: those of their last evaluations, or of their training; the samples of a number beside each other. */
export async function showTask(main, view) {
  const task = view.asked.get("task");
  const { steps } = await api("changes", { run: view.runs }, view.signal);
  const chosen = (at) => (steps ? { phase: "eval", step: steps[at] ?? "" } : { phase: "train" });
  // named twice: a single value with two dots in it would be a range
  const found = await Promise.all(view.runs.map((run, at) => api("sessions", { run, task: [task, task], ...chosen(at), sort: "sample", limit: MOST }, view.signal)));
  const rows = found.flatMap(({ rows }, at) => rows.map((row) => [view.runs[at], row.id, row.sample]));
  rows.sort((one, other) => one[2] - other[2]); // in the order of the runs where equal
  await showTogether(main, view, `Task ${shown(task)}`, rows.slice(0, MOST), found.reduce((sum, { total }) => sum + total, 0));
}

/** Sessions, given as pairs of run and id. */
async function showTogether(main, view, title, found, total) {
  const sessions = await Promise.all(found.map(([run, id]) => api("session", { run, id }, view.signal)));
  const paths = sessions.map((session) => pathOf(session));
  const common = sharedLength(sessions, paths);
  const several = new Set(found.map(([run]) => run)).size > 1;
  const columns = await Promise.all(sessions.map(async (session, at) => {
    const [run] = found[at];
    const conversation = new Conversation({ ...view, run, item: session.id }, session);
    const name = several ? `${run}, ${session.id}` : session.id;
    conversation.element.setAttribute("aria-label", `Conversation of ${shown(name)}`);
    if (paths[at].length) await conversation.show(paths[at], null, false);
    if (sessions.length > 1) card(conversation.element, paths[at][common])?.classList.add("parts");
    return h("section", { "aria-label": name }, h("h2", {}, h("a", { href: link(["run", run, "session", session.id]), "data-row": session.id }, `${several ? `${run}, ` : ""}sample ${session.sample}`),
      h("span", { class: ["badge", session.status] }, session.status.replace("_", " ")), h("span", { class: "badge reward" }, "score ", scored(session))), conversation.element);
  }));
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, title), h("span", { class: "quiet" }, sessions.length
    ? `${total > found.length ? `${found.length} of ${total}` : total} sessions of ${shown(sessions[0].task.id)}; the first ${common} messages are the same` : "has no sessions.")), h("div", { class: "together" }, columns));
  mark(columns, paths, common);
}

/** The tasks whose scores changed from one run to another, each with a link to their sessions beside each other. */
export async function changedTasks(view) {
  const { about, tasks, total, failed } = await api("changes", { run: view.runs }, view.signal).catch((error) => ({ failed: error }));
  if (failed?.name === "AbortError") throw failed;
  if (failed) return h("p", { class: "quiet" }, failed.message);
  const row = ({ task, scores, sessions }) => h("tr", {},
    h("th", { scope: "row" }, h("a", { href: link(["compare"], { run: view.runs, task }), "data-row": task }, shown(task))),
    scores.map((score, at) => h("td", { class: "number", title: counted(sessions[at], "session") }, short(score))), h("td", { class: "number" }, short(scores[1] - scores[0])));
  return h("section", { class: "card" }, h("p", { class: "quiet" }, `${total ? `${counted(total, "task")} of ${about} changed` : `No task of ${about} has another mean score`}${total > tasks.length ? `; the ${tasks.length} that changed most` : ""}.`),
    tasks.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "task"), [...view.runs, "change"].map((name) => h("th", { class: "number" }, name)))), h("tbody", {}, tasks.map(row)))) : null);
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
