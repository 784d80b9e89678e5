// Scores of an evaluation that people change: how they are shown, and where they are changed.

import { h, post, say, short } from "./dom.js";
import { shown } from "./text.js";

/** The score of a session or of its row: of one that was edited the last, with the measured one beside it. */
export function scored({ score, edits }) {
  const edit = edits.at(-1);
  return edit ? h("span", { title: `edited by ${shown(edit.who)}: ${shown(edit.why)}` }, short(edit.score), h("span", { class: "quiet" }, ` (measured ${short(edits[0].was)})`)) : short(score);
}

/** A card that changes a session's score; null where that can't be done. `changed` is called afterwards. */
export function scoreCard(parameters, session, changed) {
  if (!session.editable) return null;
  const was = session.edits.at(-1)?.score ?? session.score;
  const score = h("input", { type: "number", step: "any", required: true, value: String(was), "aria-label": "New score" });
  const why = h("input", { type: "text", required: true, maxlength: 1000, placeholder: "Reason", "aria-label": "Reason" });
  const who = h("input", { type: "text", required: true, maxlength: 100, placeholder: "Your name", "aria-label": "Your name" });
  const trouble = h("span", { class: "error", role: "alert" });

  async function submit(event) {
    event.preventDefault();
    try {
      await post("score", parameters, { score: Number(score.value), was, why: why.value, who: who.value });
    } catch (error) {
      trouble.textContent = error.message;
      return;
    }
    say("Saved.");
    await changed();
  }

  return h("form", { class: "card notes", "aria-label": "Edit the score", onsubmit: submit },
    h("div", { class: "head" }, h("b", {}, "Edit the score"), score, why, who, h("button", {}, "Save"), trouble));
}
