// What models, tools and users wrote, made visible: control and direction characters as symbols, JSON folded, diffs coloured.

import { h } from "./dom.js";

// C0 and C1 controls but tab and newline; zero-width, direction and tag characters
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;
const LINES = 40, CHARACTERS = 4000;
const DIFF = /^(diff --git|--- .*\n\+\+\+ |@@ -\d)/m;

/** The text with characters that would not be seen, or would change how the rest reads, written as symbols. */
export function shown(text) {
  return String(text ?? "").replace(/\r\n/g, "\n").replace(HIDDEN, (char) => {
    const code = char.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** A text as it is best read: JSON as a tree, a diff in colours, fenced code apart, else plain; long ones are folded. */
export function readable(text) {
  const parsed = json(text);
  if (parsed !== undefined) return tree(parsed);
  const clean = shown(text);
  if (DIFF.test(clean)) return folded(clean, diff);
  return folded(clean, fenced);
}

/** The value of a text that is a JSON object or list. */
export function json(text) {
  if (!/^\s*[[{]/.test(text) || text.length > 1e6) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function folded(text, render) {
  const lines = text.split("\n");
  if (lines.length <= LINES && text.length <= CHARACTERS) return render(text);
  const start = lines.slice(0, LINES).join("\n").slice(0, CHARACTERS);
  const place = h("div", {}, render(start));
  place.append(h("button", { type: "button", class: "plain", onclick: () => place.replaceChildren(render(text)) },
    `… ${lines.length > LINES ? `${lines.length - LINES} more lines` : `${(text.length - CHARACTERS).toLocaleString("en")} more characters`}`));
  return place;
}

function diff(text) {
  return h("pre", { class: "text diff" }, text.split("\n").map((line) => {
    const kind = /^(\+\+\+|---|diff|index)/.test(line) ? "file" : { "+": "added", "-": "removed", "@": "place" }[line[0]];
    return h("span", { class: kind ?? null }, `${line}\n`);
  }));
}

function code(text) {
  return h("pre", { class: "text code" }, highlighted(text));
}

function fenced(text) {
  const parts = text.split(/^```([\w+-]*)\n([\s\S]*?)^```$/gm);
  if (parts.length === 1) return h("pre", { class: "text" }, text);
  return h("div", {}, parts.map((part, at) => {
    if (at % 3 === 1 || (at % 3 === 0 && !part.trim())) return null;
    return at % 3 === 2 ? code(part) : h("pre", { class: "text" }, part.replace(/^\n|\n$/g, ""));
  }));
}

const CODE = new RegExp([
  String.raw`(?<comment>#[^\n]*|\/\/[^\n]*|\/\*[\s\S]*?\*\/)`, String.raw`(?<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')`,
  String.raw`(?<number>\b\d[\d_.]*\b)`, String.raw`(?<word>\b(?:def|class|return|import|from|if|elif|else|for|while|in|not|and|or|is|with|as|try|except|finally|raise|yield|lambda|async|await|None|True|False|function|const|let|var|new|export|struct|fn|pub|use|match|public|static|void|int|null|true|false)\b)`,
].join("|"), "g");

/** Code in colours: comments, strings, numbers and the words that most languages share. */
export function highlighted(code) {
  const parts = [];
  let at = 0;
  for (const match of code.matchAll(CODE)) {
    const [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    parts.push(code.slice(at, match.index), h("span", { class: `code-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  return [...parts, code.slice(at)];
}

/** A JSON value; objects and lists can be folded, and those far down begin so. */
export function tree(value, depth = 0) {
  if (value === null || typeof value !== "object") {
    if (typeof value !== "string") return h("code", { class: "json-value" }, String(value));
    if (!value.includes("\n")) return h("code", { class: "json-text" }, `"${shown(value)}"`);
    const clean = shown(value);
    return folded(clean, DIFF.test(clean) ? diff : code);
  }
  const list = Array.isArray(value), entries = Object.entries(value);
  if (!entries.length) return h("code", {}, list ? "[]" : "{}");
  const flat = entries.length <= 4 && entries.every(([, each]) => each === null || (typeof each !== "object" && String(each).length < 60 && !String(each).includes("\n")));
  const rows = () => entries.slice(0, 500).map(([key, each]) => h("div", { class: "json-row" }, list ? null : h("span", { class: "json-key" }, `${shown(key)}: `), depth < 32 ? tree(each, depth + 1) : "…"));
  if (flat) return h("span", { class: "json flat" }, rows());
  const inside = h("div", { class: "json" });
  const fold = h("details", { open: depth < 2 && entries.length <= 30 }, h("summary", {}, list ? `[${entries.length}]` : `{${entries.length}}`), inside);
  const open = () => fold.open && !inside.childElementCount && inside.append(...rows());
  fold.addEventListener("toggle", open);
  open();
  return fold;
}
