// Notes and tags of a run or a session: what people wrote, and where they write it.

import { h, post, say } from "./dom.js";
import { shown } from "./text.js";

/** A card with the note; `parameters` name what it is of (run, and id for a session). Null where there is nothing to show or write. */
export function notesCard(parameters, note, writable) {
  if (!writable && !note.text && !note.tags.length) return null;
  const tags = h("span", { class: "chips" });
  const text = h("textarea", { rows: note.text ? 2 : 1, "aria-label": "Note", placeholder: "Note", maxlength: 10000, readonly: !writable, oninput: () => (save.hidden = text.value === note.text) });
  const add = h("input", { type: "text", class: "tag-input", placeholder: "Add a tag", "aria-label": "Add a tag", maxlength: 40, hidden: !writable });
  const trouble = h("span", { class: "error", role: "alert" });
  const save = h("button", { hidden: true }, "Save");

  async function put(changes) {
    try {
      note = await post("note", parameters, { text: note.text, tags: note.tags, version: note.version, ...changes });
      trouble.textContent = "";
      say("Saved.");
    } catch (error) {
      trouble.textContent = error.message;
    }
    draw();
  }

  async function submit(event) {
    event.preventDefault();
    const tag = add.value.trim();
    await put({ text: text.value, tags: tag ? [...note.tags, tag] : note.tags });
    if (!trouble.textContent) add.value = "";
  }

  function draw() {
    tags.replaceChildren(...note.tags.map((tag) => (writable
      ? h("button", { type: "button", class: "chip", title: "Remove this tag", "aria-label": `Remove the tag ${shown(tag)}`, onclick: () => put({ tags: note.tags.filter((each) => each !== tag) }) }, shown(tag), " ×")
      : h("span", { class: "chip" }, shown(tag)))));
    save.hidden = text.value === note.text;
  }

  text.value = note.text;
  draw();
  return h("form", { class: "card notes", "aria-label": "Notes", onsubmit: submit }, h("div", { class: "head" }, h("b", {}, "Notes"), tags, add, trouble, h("span", { class: "grow" }), save), text);
}

/** Tags and the beginning of a note, for a row of a list. */
export function noteLine(note) {
  if (!note || (!note.text && !note.tags.length)) return null;
  return h("div", { class: "small clip" }, note.tags.map((tag) => h("span", { class: "chip small" }, shown(tag))), h("span", { class: "quiet", title: shown(note.text) }, shown(note.text.slice(0, 200))));
}
