// Settings: those of one run, or of several beside each other with what differs marked.

import { api, h } from "./dom.js";

export async function showSettings(main, view) {
  main.replaceChildren(h("h1", {}, "Settings"), await settingsTable(view));
}

/** A table of the settings of `view.runs`, with a filter. */
export async function settingsTable(view) {
  const found = await Promise.all(view.runs.map((run) => api("run", { run }, view.signal)));
  const trees = found.map((each) => ({ __proto__: null, ...each.settings }));
  const names = [...new Set(trees.flatMap(Object.keys))];
  const differs = (name) => new Set(trees.map((tree) => JSON.stringify(tree[name]))).size > 1;
  const several = trees.length > 1;
  const search = h("input", { type: "search", "aria-label": "Filter settings", placeholder: "Filter settings", "data-search": true });
  const only = h("input", { type: "checkbox", checked: several });
  const body = h("tbody");

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = names.filter((name) => name.toLowerCase().includes(wanted) && !(several && only.checked && !differs(name)));
    body.replaceChildren(...shown.map((name) => h("tr", { class: several && differs(name) ? "differs" : null },
      h("th", { scope: "row" }, name), trees.map((tree) => h("td", {}, h("code", {}, said(tree[name])))))));
    if (!shown.length) body.append(h("tr", {}, h("td", { class: "quiet", colspan: trees.length + 1 }, several ? "Nothing differs." : "No setting fits.")));
  }

  search.addEventListener("input", draw);
  only.addEventListener("change", draw);
  draw();
  return h("section", { class: "card" },
    h("div", { class: "head" }, search, several ? h("label", {}, only, "only what differs") : null),
    h("div", { class: "scroll" }, h("table", { class: "settings" },
      several ? h("thead", {}, h("tr", {}, h("th", {}, "setting"), view.runs.map((run) => h("th", {}, run)))) : null, body)));
}

const said = (value) => (value === undefined ? "(absent)" : typeof value === "string" ? value : JSON.stringify(value));
