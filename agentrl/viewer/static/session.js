// One session: what is known of it, its tree, and the conversation along one path.

import { Conversation } from "./conversation.js";
import { api, copy, counted, duration, folded, h, link, short } from "./dom.js";
import { readable, shown, tree as jsonTree } from "./text.js";
import { notesCard } from "./notes.js";
import { Outline } from "./outline.js";
import { replaysCard } from "./replay.js";
import { scoreCard, scored } from "./scores.js";
import { sums } from "./timings.js";

export async function showSession(main, view) {
  const { run, item: id, asked } = view;
  let session = await api("session", { run, id }, view.signal);
  const conversation = new Conversation(view, session);
  const outline = new Outline((node) => select(node, true));

  /** Show the path through a node: down to the newest leaf below it. */
  function select(node, byUser) {
    if (byUser) view.keep({ node });
    const leaf = outline.leafBelow(node);
    outline.select(node, leaf);
    return conversation.show(outline.pathTo(leaf), node, byUser);
  }

  const newest = () => (session.branches[0]?.end ?? session.nodes.length) - 1; // of a forked session: of its own path
  const chosen = () => Math.min(asked.has("node") ? Number(asked.get("node")) : newest(), session.nodes.length - 1);
  const leaf = () => outline.leafBelow(chosen());
  const copies = [["json", "JSON"], ["openai", "OpenAI messages"], ["pytest", "pytest case"]].map(([as, title]) =>
    h("button", { type: "button", onclick: async () => copy(await api("copy", { run, id, as, node: leaf() }), as === "pytest" ? "test_session.py" : "session.json") }, title));
  const facts = h("div"), replays = h("div"), edit = h("div"), notes = h("div", {}, notesCard({ run, id }, session.note, session.writable));
  const title = h("span"), place = h("span", { class: "quiet" });
  const tree = folded(view, [h("b", {}, "Tree"), place], outline.element);
  const side = h("section", { class: "card tree", "aria-label": "Tree" }, tree);
  tree.addEventListener("toggle", () => outline.follow(outline.reading));

  const drawReplays = () => replays.replaceChildren(...[replaysCard(view, session, (leaf) => select(leaf, true))].filter(Boolean));

  function drawScore() {
    edit.replaceChildren(...[scoreCard({ run, id }, session, async () => {
      session = conversation.session = await api("session", { run, id }, view.signal);
      draw();
    })].filter(Boolean));
  }

  function draw() {
    drawReplays();
    drawScore();
    facts.replaceChildren(about(session, run));
    title.textContent = `Reward ${short(session.reward)}, task ${shown(session.task.id)}`;
    outline.draw(session);
    side.hidden = session.nodes.length === 0;
  }

  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, shown(session.id)), h("span", { class: ["badge", session.status] }, session.status.replace("_", " ")),
      session.group ? h("a", { href: link(["run", run, "group", session.group]) }, "its group") : null, h("span", { class: "grow" }),
      h("span", { class: "quiet" }, "Copy as"), copies),
    folded(view, title, facts, edit, notes, replays), h("div", { class: "split" }, side, conversation.element));
  const goesOn = () => session.status === "open" || Boolean(session.replay.job && !session.replay.job.ended);

  async function refresh() {
    const fresh = await api("session", { run, id }, view.signal);
    const grown = fresh.nodes.length !== session.nodes.length || fresh.status !== session.status;
    session = conversation.session = fresh;
    view.live(goesOn());
    if (!grown) return drawReplays();
    draw();
    await select(chosen(), false);
  }

  conversation.replayed = refresh;
  conversation.read = (id) => {
    outline.follow(id);
    place.textContent = `message ${conversation.path.indexOf(id) + 1} of ${conversation.path.length}`;
  };
  draw();
  if (session.nodes.length) await select(chosen(), asked.has("node"));
  view.live(goesOn());
  view.every(async () => goesOn() && refresh());
}

function about(session) {
  const rewards = Object.entries(session.rewards);
  const times = Object.entries(sums(session)).sort((a, b) => b[1] - a[1]);
  const total = Math.max(...times.map(([, value]) => value));
  const data = Object.keys(session.task.data).length ? h("details", {}, h("summary", {}, "Task"), jsonTree(session.task.data)) : null;
  const info = Object.keys(session.info).length ? h("details", {}, h("summary", {}, "Info"), jsonTree(session.info)) : null;
  return h("section", { class: "card about" },
    h("div", { class: "columns" },
      h("dl", { class: "facts" }, fact("Task", shown(session.task.id)), fact("Environment", session.environment),
        fact("Phase", [session.phase, session.step === null ? null : `begun after ${counted(session.step, "step")}`].filter(Boolean).join(", ")),
        fact("Seed", session.seed)),
      h("dl", { class: "facts" }, fact("Reward", short(session.reward)), session.score !== session.reward || session.edits.length ? fact("Score", scored(session)) : null,
        session.edits.map((edit) => fact("Edited score", `${short(edit.was)} to ${short(edit.score)}, ${shown(edit.who)}, ${edit.when}: ${shown(edit.why)}`)),
        rewards.map(([name, value]) => fact(shown(name), short(value))),
        Object.entries(session.agent_rewards).map(([name, value]) => fact(`${shown(name)} (agent)`, short(value)))),
      times.length ? h("div", { class: "times" }, times.map(([name, value]) => h("div", {}, h("span", { class: "quiet" }, name), h("div", { class: "bar wide" },
        h("div", { style: { width: `${Math.min(100, (100 * value) / (total || 1))}%` } })), h("span", { class: "number" }, duration(value))))) : null,
      h("dl", { class: "facts" }, Object.entries(session.counters).filter(([, value]) => value).map(([name, value]) => fact(shown(name), value)))),
    session.error ? h("div", { class: "error block" }, readable(session.error)) : null, data, info);
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
