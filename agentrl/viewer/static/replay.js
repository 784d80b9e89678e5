// Replays of a session: asking for one at a turn, its progress, and what came of those that are done.

import { counted, duration, h, post, say, short } from "./dom.js";
import { shown } from "./text.js";

/** What is asked before a replay begins; `started` is called once it is under way. */
export function replayForm(view, session, turn, started) {
  const seeds = h("select", { "aria-label": "Seeds" }, h("option", { value: "same" }, "the recorded seeds, to reproduce it"), h("option", { value: "other" }, "other seeds, to compare"));
  const n = h("input", { type: "number", min: 1, max: 64, value: 1, class: "end", "aria-label": "Replays" });
  const model = h("input", { type: "text", placeholder: "the turn's weights", "aria-label": "Another model" });
  const trust = h("input", { type: "checkbox" });
  const minutes = h("input", { type: "number", min: 1, value: 15, class: "end", "aria-label": "Minutes at most" });
  const trouble = h("span", { class: "error", role: "alert" });

  async function start(event) {
    event.preventDefault();
    const used = session.replay.done.filter((each) => each.turn === turn).map((each) => Number(each.seed ?? 0));
    const seed = seeds.value === "other" ? Math.max(0, ...used) + 1 : null;
    try {
      await post("replay", { run: view.run, id: session.id }, { turn, n: Number(n.value), seed, model: model.value || null, minutes: Number(minutes.value), trust: trust.checked });
      await started();
    } catch (error) {
      trouble.textContent = error.message;
    }
  }

  return h("form", { class: "replay-form", "aria-label": `Replay turn ${turn}`, onsubmit: start }, h("label", {}, "with", seeds), h("label", {}, n, "times"),
    h("label", {}, "by", model), h("label", {}, "for at most", minutes, "minutes"),
    h("label", { title: "Only where you trust whoever made this run: its code can do whatever you can" }, trust, "run the code that its settings name"),
    h("button", {}, "Start"), trouble);
}

/** The replay under way, or the last one, and all that are done; `open` shows one by its last node. Null without any. */
export function replaysCard(view, session, open) {
  const { job, done, values } = session.replay;
  if (!job && !done.length) return null;
  return h("section", { class: "card replays", "aria-label": "Replays" }, h("h2", {}, "Replays"), job ? progress(view, session, job) : null,
    done.length ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["Turn", "Seed", "Model", "Ended", "Turns", "Score", "Messages"].map((title) => h("th", {}, title)))),
      h("tbody", {}, done.map((each) => row(each, open))))) : null,
    values.map((each) => h("p", { class: "small" }, `Value of turn ${each.turn}${each.model ? ` with ${shown(each.model)}` : ""}: ${short(each.mean)} ± ${short(each.error)}, mean and standard error of ${counted(each.n, "replay")}.`)));
}

function row(each, open) {
  const same = each.own === 0 && each.status !== "open";
  return h("tr", {}, h("td", {}, each.turn), h("td", {}, each.seed ?? "as recorded"), h("td", {}, each.model ? shown(each.model) : ""),
    h("td", {}, h("span", { class: ["badge", each.status] }, each.status.replace("_", " ")), each.error ? h("span", { class: "small error" }, ` ${shown(each.error)}`) : null),
    h("td", {}, each.turns), h("td", {}, short(each.score)),
    h("td", {}, each.leaf === null ? null : h("button", { type: "button", onclick: () => open(each.leaf) }, same ? "the recorded session again, bit for bit" : `Show its ${counted(each.own, "own message")}`)));
}

function progress(view, session, job) {
  const cancel = async () => {
    await post("replay/cancel", { run: view.run, id: session.id }, {});
    say("The replay is being cancelled.");
  };
  return h("div", { class: "progress", role: "status" }, h("p", {}, h("span", { class: ["badge", job.ended ? (job.ended === "done" ? "completed" : "infra_error") : "open"] }, job.ended || "under way"),
    ` turn ${job.request.turn}, ${duration(job.seconds)} of at most ${counted(job.request.minutes, "minute")} `, job.ended ? null : h("button", { type: "button", onclick: cancel }, "Cancel")),
  h("pre", { class: "text code" }, job.lines.map(shown).join("\n")));
}
