// Policies: their colours, and how each fared against each other one.

import { COLOURS } from "./chart.js";
import { counted, h, short } from "./dom.js";
import { shown } from "./text.js";

/** The colour of a policy, or of an earlier version of one, among a run's policies. */
export function colourOf(policy, policies) {
  const at = policies.indexOf(policy.split("/")[0]);
  return `var(${COLOURS[(at < 0 ? policies.length : at) % COLOURS.length]})`;
}

/** A policy's name behind a square in its colour. */
export function named(policy, policies) {
  return h("span", { class: "policy" }, h("i", { style: { background: colourOf(policy, policies) } }), shown(policy));
}

/** A table of who played whom; null where fewer than two policies spoke. */
export function playersCard(found, policies) {
  if (found.policies.length < 2) return null;
  const cells = new Map(found.cells.map(([one, other, sessions, reward]) => [`${one}\n${other}`, { sessions, reward }]));
  const cell = (one, other) => {
    const met = cells.get(`${one}\n${other}`);
    return h("td", { class: "number" }, met ? [short(met.reward), h("div", { class: "small quiet" }, counted(met.sessions, "session"))] : "–");
  };
  return h("section", { class: "card players" }, h("h2", {}, "Who played whom"),
    h("p", { class: "quiet small" }, "The mean reward of a row's policy in the newest sessions that it shared with a column's."),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "policy"), found.policies.map((name) => h("th", { class: "number" }, named(name, policies))))),
      h("tbody", {}, found.policies.map((one) => h("tr", {}, h("th", { scope: "row" }, named(one, policies)), found.policies.map((other) => cell(one, other))))))));
}
