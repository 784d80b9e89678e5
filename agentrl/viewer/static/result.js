// What an evaluation came to, as a card.

import { counted, duration, h, short } from "./dom.js";

/** The card of a `result.json`; null where there is none, as before the evaluation has ended. */
export function resultCard(result, title = "Result") {
  if (!result) return null;
  const several = Object.entries({ "pass@": result.pass_at, "pass^": result.pass_hat })
    .flatMap(([name, values]) => Object.entries(values ?? {}).filter(([k]) => name === "pass@" || k !== "1").map(([k, value]) => [`${name}${k}`, short(value)]));
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
