// The tokens of a message, coloured by one of their numbers.

import { h, short } from "./dom.js";
import { shown } from "./text.js";

const KINDS = { logp: "log-probability", trained: "mask", version: "policy version" };
const MOST = 20000;

/** A view of a message's tokens (columns, see the server's `tokens`); the address keeps what colours them. */
export function tokenView(columns, view) {
  const kind = h("select", { "aria-label": "Colour by", onchange: () => {
    view.keep({ colour: kind.value === "logp" ? null : kind.value });
    paint();
  } }, Object.entries(KINDS).map(([value, title]) => h("option", { value }, title)));
  kind.value = view.asked.get("colour") ?? "logp";
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
      columns.trained[at] ? "trained" : "not trained", columns.version[at] === null ? null : `version ${columns.version[at]}`].filter(Boolean).join(" · ");
  }

  function paint() {
    const versions = [...new Set(columns.version.filter((version) => version !== null))];
    spans.forEach((span, at) => {
      const colour = { logp: () => columns.logp[at] !== null && heat(columns.logp[at]), trained: () => columns.trained[at] && "var(--goodsoft)",
        version: () => columns.version[at] !== null && `color-mix(in srgb, var(--c${versions.indexOf(columns.version[at]) % 8}) 22%, transparent)` }[kind.value]();
      span.style.setProperty("background", colour || "transparent");
    });
    note.textContent = { logp: "redder: less likely", trained: "green: trained on", version: versions.length ? `versions ${versions.join(", ")}` : "not sampled" }[kind.value];
  }

  paint();
  return h("div", { class: "tokens" }, h("div", { class: "head" }, h("label", {}, "colour by", kind), note), place, facts);
}

/** From none at probability 1 to full at about 0.2 %. */
function heat(logp) {
  return `color-mix(in srgb, var(--bad) ${Math.round(Math.min(-logp / 6, 1) * 55)}%, transparent)`;
}

function text(columns, at) {
  const own = columns.text[at];
  return own === null ? `${columns.id[at]} ` : shown(own).replaceAll("\n", "⏎\n") || "∅";
}
