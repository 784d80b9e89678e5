// The list of runs: how each stands, its reward as a sparkline, and which to compare.

import { ago, api, duration, h, link, short, svg } from "./dom.js";
import { noteLine } from "./notes.js";

const STATES = { running: "●", finished: "✓", stopped: "■", killed: "✕", newer: "?", damaged: "?" };

export async function showRuns(main, view) {
  const chosen = new Set(view.asked.getAll("run"));
  const search = h("input", {
    type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", "data-search": true, value: view.asked.get("q") ?? "",
    oninput: () => {
      view.keep({ q: search.value || null });
      draw();
    },
  });
  const compare = h("a", { class: "button", href: "#/" }, "Compare");
  const body = h("tbody");
  const root = h("code", { class: "quiet" });
  const empty = h("p", { class: "quiet" });
  let runs = [], chains = [];

  function choose(name, on) {
    on ? chosen.add(name) : chosen.delete(name);
    view.keep({ run: [...chosen] });
    drawCompare();
  }

  function drawCompare() {
    const many = chosen.size > 1;
    compare.href = link(["compare"], { run: [...chosen] });
    compare.textContent = many ? `Compare ${chosen.size} runs` : "Choose two or more to compare";
    many ? compare.removeAttribute("aria-disabled") : compare.setAttribute("aria-disabled", "true");
    compare.tabIndex = many ? 0 : -1;
  }

  function row(run) {
    const share = run.steps ? Math.min(run.done / run.steps, 1) : null;
    return h("tr", {},
      h("td", { class: "pick" }, h("input", {
        type: "checkbox", "aria-label": `Compare ${run.name}`, checked: chosen.has(run.name),
        onchange: (event) => choose(run.name, event.target.checked),
      })),
      h("td", {}, h("a", { href: link(["run", run.name]), "data-row": run.name, class: "name" }, run.name),
        h("div", { class: "quiet small" }, [run.environment, run.model, run.algorithm, run.engine].filter(Boolean).join(" · ")), noteLine(run.note)),
      h("td", {}, h("span", { class: ["state", run.state] }, h("span", { "aria-hidden": "true" }, STATES[run.state]), run.state)),
      h("td", { class: "number" }, run.kind !== "training" ? run.kind : `${run.done}${run.steps ? ` / ${run.steps}` : ""}`,
        share === null ? null : h("div", { class: "bar" }, h("div", { style: { width: `${100 * share}%` } })),
        run.state === "running" && run.left ? h("div", { class: "quiet small" }, `${duration(run.left)} left`) : null),
      h("td", { class: "number" }, short(run.reward)),
      h("td", { class: "spark" }, sparkline(run.spark, run.name)),
      h("td", { class: "quiet small nowrap" }, ago(run.updated)));
  }

  /** The row of a chain, above those of its stages. */
  function chainRow(chain) {
    const begun = chain.stages.map((stage) => stage.run).filter(Boolean);
    const done = chain.stages.filter((stage) => stage.state === "done").length;
    const href = begun.length > 1 ? link(["compare"], { run: begun }) : link(["run", begun[0]]);
    return h("tr", { class: "chain" }, h("td"), h("td", { colspan: 6 },
      h("a", { href, "data-row": chain.name, class: "name" }, chain.name),
      h("div", { class: "quiet small" }, `chain, ${done} of ${chain.stages.length} stages done: `,
        chain.stages.map((stage) => `${stage.name} ${stage.state}`).join(" → "))));
  }

  /** The rows of runs in their order; the stages of a chain stand together where its first one would. */
  function rows(shown) {
    const named = new Map(shown.map((run) => [run.name, run]));
    const owner = new Map(chains.flatMap((chain) => chain.stages.map((stage) => [stage.run, chain])));
    const drawn = new Set();
    return shown.flatMap((run) => {
      const chain = owner.get(run.name);
      if (!chain) return [row(run)];
      if (drawn.has(chain)) return [];
      drawn.add(chain);
      return [chainRow(chain), ...chain.stages.map((stage) => named.get(stage.run)).filter(Boolean).map(row)];
    });
  }

  function draw() {
    const wanted = search.value.toLowerCase();
    const shown = runs.filter((run) => [run.name, run.environment, run.model, run.algorithm, ...run.note.tags, run.note.text].join(" ").toLowerCase().includes(wanted));
    const focused = document.activeElement?.dataset?.row;
    body.replaceChildren(...rows(shown));
    if (focused) body.querySelector(`[data-row="${CSS.escape(focused)}"]`)?.focus();
    empty.hidden = shown.length > 0;
    empty.textContent = runs.length ? "No run fits." : "There are no runs here yet. agentrl train env=calculator makes one.";
    view.live(runs.some((run) => run.state === "running"));
    drawCompare();
  }

  async function load() {
    const found = await api("runs", {}, view.signal);
    runs = found.runs.sort((a, b) => b.updated - a.updated);
    chains = found.chains;
    root.textContent = found.root;
    draw();
  }

  await load();
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, "Runs"), root, h("span", { class: "grow" }), search, compare),
    h("div", { class: "scroll card" }, h("table", { class: "runs" },
      h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "hidden" }, "Compare")), ["Run", "State"].map((t) => h("th", {}, t)),
        ["Steps", "Reward"].map((t) => h("th", { class: "number" }, t)), ["Reward by step", "Updated"].map((t) => h("th", {}, t)))), body)),
    empty);
  view.every(load);
}

/** A small picture of numbers in their order. */
function sparkline(values, name) {
  const width = 130, height = 30, low = Math.min(...values), high = Math.max(...values);
  if (values.length < 2) return h("span", { class: "quiet" }, "–");
  const at = (value, place) => `${((place * (width - 4)) / (values.length - 1) + 2).toFixed(1)},${
    (height - 3 - ((value - low) / (high - low || 1)) * (height - 6)).toFixed(1)}`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Reward of ${name}: from ${short(values[0])} to ${short(values.at(-1))}` },
  svg("polyline", { points: values.map(at).join(" "), class: "sparkline" }));
}
