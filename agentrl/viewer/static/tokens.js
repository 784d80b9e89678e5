// The tokens of a message, coloured by one of their numbers.

import { h, short } from "./dom.js";
import { shown } from "./text.js";

const KINDS = { logp: "log-probability", trained: "mask", support: "choice of tokens", version: "policy version", advantage: "advantage", ratio: "ratio", difference: "engine–trainer difference" };
const UNRECORDED = "the run did not record the trainer's log-probabilities (record_logprobs=true)";
const MOST = 20000;

/** A view of a message's tokens (columns, see the server's `tokens`); the address keeps what colours them. */
export function tokenView(columns, view) {
  const kind = h("select", { "aria-label": "Colour by", onchange: () => {
    view.keep({ colour: kind.value === "logp" ? null : kind.value });
    paint();
  } }, Object.entries(KINDS).map(([value, title]) => h("option", { value }, title)));
  kind.value = view.asked.get("colour") ?? "logp";
  const advantage = meanAdvantage(columns.origin), { trainer, support } = columns;
  /** The trainer's log-probability minus the engine's; null where either is not known. */
  const gap = (at) => (trainer && trainer.logp[at] !== null && columns.logp[at] !== null ? trainer.logp[at] - columns.logp[at] : null);
  /** The same, where both had the same weights. */
  const difference = (at) => (trainer && columns.version[at] === trainer.version ? gap(at) : null);
  const note = h("span", { class: "quiet small" }), facts = h("div", { class: "small facts-line", "aria-live": "polite" }, "Point at a token, or move with the arrow keys.");
  const count = Math.min(columns.id.length, MOST);
  const spans = Array.from({ length: count }, (_, at) => h("span", { class: "token", tabindex: at ? -1 : 0, onmouseenter: () => tell(at), onfocus: () => tell(at) }, text(columns, at)));
  const place = h("div", { class: "token-text", onkeydown: (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = spans.indexOf(document.activeElement);
    if (!by || at < 0) return;
    event.preventDefault();
    spans[Math.min(Math.max(at + by, 0), count - 1)].focus();
  } }, spans, columns.id.length > MOST ? ` … ${columns.id.length - MOST} more tokens` : null);

  function tell(at) {
    const logp = columns.logp[at];
    facts.textContent = [`token ${columns.position + at} of its path`, `id ${columns.id[at]}`, logp === null ? "not sampled" : `log p ${short(logp)} (p ${short(Math.exp(logp))})`,
      columns.trained[at] ? "trained" : ["not trained", columns.untrainable[at]].filter(Boolean).join(": "), drawnFrom(support, columns.logp, at), columns.version[at] === null ? null : `version ${columns.version[at]}`,
      gap(at) === null ? null : `trainer's log p ${short(trainer.logp[at])}, ratio ${short(Math.exp(gap(at)))}${difference(at) === null ? "" : `, difference ${short(difference(at))}`}`].filter(Boolean).join(" · ");
  }

  function paint() {
    const versions = [...new Set(columns.version.filter((version) => version !== null))];
    const differences = spans.map((_, at) => difference(at)).filter((each) => each !== null), widest = Math.max(...differences.map(Math.abs), 1e-9);
    spans.forEach((span, at) => {
      const colour = { logp: () => columns.logp[at] !== null && heat(columns.logp[at]), trained: () => (columns.trained[at] ? "var(--goodsoft)" : columns.untrainable[at] && "var(--badsoft)"),
        support: () => support && support.sizes[at] !== null && `color-mix(in srgb, var(--good) ${Math.round((50 * Math.log(support.sizes[at])) / Math.log(Math.max(support.vocabulary, 2)))}%, transparent)`,
        advantage: () => columns.trained[at] && advantage !== null && `color-mix(in srgb, var(${advantage < 0 ? "--bad" : "--good"}) ${Math.round(Math.min(Math.abs(advantage), 1.5) * 30)}%, transparent)`,
        ratio: () => gap(at) !== null && signed(gap(at), 0.5), difference: () => difference(at) !== null && signed(difference(at), widest),
        version: () => columns.version[at] !== null && `color-mix(in srgb, var(--c${versions.indexOf(columns.version[at]) % 8}) 22%, transparent)` }[kind.value]();
      span.style.setProperty("background", colour || "transparent");
    });
    note.textContent = { logp: "redder: less likely", trained: `green: trained on${untrained(columns)}`, support: support ? `greener: drawn from more tokens, of ${support.vocabulary.toLocaleString("en")}` : "the turn has no record of what its tokens were drawn from", advantage: advantage === null ? "no step trained on it" : `mean advantage ${short(advantage)}`, version: versions.length ? `versions ${versions.join(", ")}` : "not sampled",
      ratio: trainer ? `of the trainer's probability (version ${trainer.version}, before step ${trainer.step}) to the engine's; green: over 1, red: under 1` : UNRECORDED,
      difference: !trainer ? UNRECORDED : differences.length ? `the trainer's log p minus the engine's, at most ${short(widest)} nats; green: the trainer's is larger` : `older weights than the trainer's version ${trainer.version} drew all of it: see the ratio` }[kind.value];
  }

  paint();
  return h("div", { class: "tokens" }, h("div", { class: "head" }, h("label", {}, "colour by", kind), note), place, facts, origin(columns));
}

/** Of the last step that trained it; null where none did. */
function meanAdvantage(known) {
  const credit = known?.trained.at(-1)?.credit;
  if (!credit) return null;
  const weight = credit.reduce((sum, [, each]) => sum + each, 0);
  return weight ? credit.reduce((sum, [value, each]) => sum + value * each, 0) / weight : credit[0][0];
}

/** How many tokens one was drawn from; null where nothing is recorded. */
function drawnFrom(support, logps, at) {
  if (!support || logps[at] === null) return null;
  const size = support.sizes[at];
  return size === null ? "drawn from an unknown number of tokens" : `drawn from ${size.toLocaleString("en")} of ${support.vocabulary.toLocaleString("en")} tokens`;
}

/** The reasons of tokens that can't be trained, with how many have each. */
function untrained({ untrainable }) {
  const counts = new Map();
  for (const reason of untrainable.filter(Boolean)) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return counts.size ? `; red: can't be trained: ${[...counts].map(([reason, count]) => `${count} (${reason})`).join(", ")}` : "";
}

/** What drew the tokens, under which weights, and what they were trained with. */
function origin({ origin: known, support, version }) {
  if (!known) return null;
  const drawn = [...new Set(version.filter((each) => each !== null))];
  const seen = new Set();
  const weights = known.weights.map((each) => {
    if (!each) return "weights that the record does not have";
    const sums = [...new Set(Object.values(each.checksums))].filter(Boolean).map((sum) => sum.slice(0, 12)).join(" ≠ ");
    return `version ${each.version}${each.incarnation ? `, incarnation ${each.incarnation}` : ""} on ${each.engine}, ${sums ? `checksum ${sums}` : "without a checksum"}, older caches ${each.caches}`;
  }).filter((text) => !seen.has(text) && seen.add(text));
  const given = Object.entries(known.sampling).filter(([name, value]) => value !== null && value !== false && !(Array.isArray(value) && !value.length) && name !== "record");
  const rows = [["Drawn by", known.engines.length ? known.engines.map(shown).join(", ") : drawn.length ? "the run's engine" : "no engine"], ["Weights", weights.join("; ")],
    ["Sampling", given.map(([name, value]) => `${name} ${Array.isArray(value) ? value.map(String).map(shown).join(" ") : shown(value)}`).join(", ")],
    ...(support ? [["Drawn by the rule", shown(support.rule)]] : []),
    ["Trained", known.trained.length ? known.trained.map((each) => `in step ${each.step} on version ${each.version}, ${each.credit.map(([value, weight]) => `advantage ${short(value)} of weight ${short(weight)}`).join(" and ")}`).join("; ") : "by no step so far"]];
  return h("dl", { class: "facts small" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** Green above 0, red below, full at `whole` on either side. */
function signed(value, whole) {
  return `color-mix(in srgb, var(${value < 0 ? "--bad" : "--good"}) ${Math.round(Math.min(Math.abs(value) / whole, 1) * 50)}%, transparent)`;
}

/** From none at probability 1 to full at about 0.2 %. */
function heat(logp) {
  return `color-mix(in srgb, var(--bad) ${Math.round(Math.min(-logp / 6, 1) * 55)}%, transparent)`;
}

function text(columns, at) {
  const own = columns.text[at];
  return own === null ? `${columns.id[at]} ` : shown(own).replaceAll("\n", "⏎\n") || "∅";
}
