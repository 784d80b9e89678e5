// What an evaluation came to, as a card.

import { counted, duration, h, short } from "./dom.js";

/** The card of a `result.json`; null where there is none, as before the evaluation has ended. */
export function resultCard(result, title = "Result") {
  if (!result) return null;
  const several = Object.entries({ "pass@k": result.pass_at, "pass^k": result.pass_hat })
    .map(([name, values]) => [name, Object.entries(values ?? {}).map(([k, value]) => `${short(value)} (k=${k})`).join(", ") || null]);
  const facts = [
    ["Policy", result.policy],
    ["Mean", `${short(result.mean)}${result.low == null ? "" : ` (95% CI ${short(result.low)} to ${short(result.high)}${result.caution ? `; ${result.caution}` : ""})`}`],
    ...several,
    ["Sessions", `${result.sessions} of ${counted(result.tasks, "task")}${result.split ? `, split ${result.split}` : ""}, in ${duration(result.seconds)}`],
    ["Cost", result.cost == null ? null : short(result.cost)],
    ["Errors", Object.entries(result.errors ?? {}).filter(([, count]) => count).map(([name, count]) => `${name.replace("_", " ")} ${count}`).join(", ") || null],
    ["Finding", result.finding],
    ["Edited scores", result.edits?.length || null],
  ].filter(([, value]) => value !== null && value !== undefined);
  return h("section", { class: "card" }, h("h2", {}, title), h("dl", { class: "facts" }, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}
