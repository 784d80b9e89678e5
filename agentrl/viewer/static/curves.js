// The curves of one run, or of several over each other.

import { Chart, COLOURS } from "./chart.js";
import { api, copy, h, link, short } from "./dom.js";
import { changedTasks } from "./group.js";
import { notesCard } from "./notes.js";
import { colourOf, named } from "./players.js";
import { resultCard } from "./result.js";
import { settingsTable } from "./settings.js";

const SECTIONS = [
  ["Reward", /^(reward|eval)\/|^env\/.*\/reward/, true],
  ["Sessions", /^(sessions|tokens)\/|^count\/(tool|branch)/, false],
  ["Failures", /^status\/|^count\/(gateway|infra|group)|^groups\/|^stream\/discarded/, false],
  ["Policy", /^(policy|mismatch|probe|correction|staleness|adaptive|version)/, true],
  ["Time and throughput", /^(time|throughput|stream|idle)\//, false],
  ["Optimisation", /^(loss|grad_norm|lr|skipped_updates|value|critic)/, true],
  ["Other", /./, false],
];

export async function showCurves(main, view) {
  const asked = view.asked;
  const options = () => ({
    by: asked.get("x") === "hours" ? "hours" : "step", log: asked.get("log") === "1", smooth: Number(asked.get("smooth") ?? 0),
  });
  const about = await Promise.all(view.runs.map((run) => api("run", { run }, view.signal)));
  const names = [...new Set(about.flatMap((each) => each.names))];
  // a metric may be called `constructor`: what is looked up by such names inherits nothing
  const data = new Map(view.runs.map((run) => [run, { epoch: null, rows: 0, step: [], hours: [], values: { __proto__: null } }]));
  const policies = new Map(view.runs.map((run, at) => [run, about[at].policies]));
  const learners = [...new Set(about.flatMap((each) => each.policies.slice(1)))];
  const charts = new Map();
  const search = h("input", { type: "search", placeholder: "Filter curves", "aria-label": "Filter curves", "data-search": true,
    value: asked.get("q") ?? "", oninput: () => change({ q: search.value || null }) });

  function change(changes) {
    view.keep(changes);
    arrange();
    update(true);
  }

  // -------------------------------------------------------------------------------- sections

  const sections = SECTIONS.map(([title, , open]) => {
    const grid = h("div", { class: "charts" }), flat = h("p", { class: "quiet small" });
    const opened = asked.getAll("open").includes(title) || (open && !asked.getAll("shut").includes(title));
    const element = h("details", { class: "section", open: opened }, h("summary", {}, h("h2", {}, title), h("span", { class: "quiet" })), grid, flat);
    element.addEventListener("toggle", () => {
      view.keep({ open: sections.filter((s) => s.element.open && !s.preset).map((s) => s.title), shut: sections.filter((s) => !s.element.open && s.preset).map((s) => s.title) });
      update(true);
    });
    return { title, preset: open, element, grid, flat, names: [] };
  });

  /** A metric of one of several policies, without the policy's name: what is drawn together. */
  function bare(name) {
    const own = learners.find((each) => name.startsWith(`${each}/`));
    return own === undefined ? name : name.slice(own.length + 1);
  }

  /** The names of a metric by policy; the main one's is the metric's own. */
  const variants = (name) => ["", ...learners.map((each) => `${each}/`)].map((own) => own + name).filter((each) => names.includes(each));

  function sectionOf(name) {
    return sections[SECTIONS.findIndex(([, pattern]) => pattern.test(name))];
  }

  function arrange() {
    const wanted = search.value.toLowerCase();
    empty.hidden = names.length > 0;
    sections.forEach((section) => (section.names = []));
    const found = new Set(names.filter((name) => name.toLowerCase().includes(wanted)).map(bare));
    found.forEach((name) => sectionOf(name).names.push(name));
    for (const section of sections) {
      section.element.hidden = section.names.length === 0;
      section.element.querySelector("summary span").textContent = section.names.length;
      if (wanted && section.names.length) section.element.open = true;
      section.grid.replaceChildren(...section.names.map((name) => chart(name).element));
    }
  }

  function chart(name) {
    if (!charts.has(name)) charts.set(name, new Chart(name, (curve, index) => open(name, curve, index)));
    return charts.get(name);
  }

  /** From a point to its sessions: those that the step trained on, or those of the evaluation after it. */
  function open(name, curve, index) {
    const step = curve.steps[index];
    location.hash = link(["run", curve.run, "sessions"], name.startsWith("eval/") ? { phase: "eval", step } : { trained: step });
  }

  // ------------------------------------------------------------------------------------ data

  const visible = () => sections.filter((section) => section.element.open && !section.element.hidden).flatMap((section) => section.names);

  async function update(redraw = false) {
    const wanted = visible().flatMap(variants), known = names.length;
    let changed = redraw;
    for (const run of view.runs) {
      const have = data.get(run);
      const fresh = wanted.filter((name) => !(name in have.values));
      if (fresh.length || !have.rows) changed = (await fetchRows(run, [...Object.keys(have.values), ...fresh], 0)) || changed;
      else changed = (await fetchRows(run, Object.keys(have.values), have.rows)) || changed;
    }
    if (names.length > known) { // a run's first step, or its first evaluation
      arrange();
      return update(true);
    }
    if (changed) draw();
  }

  async function fetchRows(run, wanted, start) {
    const have = data.get(run);
    const found = (await api("series", { run, name: wanted, start }, view.signal)).runs[run];
    if (start && (found.epoch !== have.epoch || found.rows < have.rows)) return fetchRows(run, wanted, 0);
    const joined = (old, more) => (start ? old.concat(more) : more);
    Object.assign(have, { epoch: found.epoch, rows: found.rows, step: joined(have.step, found.step), hours: joined(have.hours, found.hours) });
    names.push(...found.names.filter((name) => !names.includes(name)));
    for (const name of wanted) have.values[name] = joined(have.values[name], found.values[name]);
    return found.step.length > 0;
  }

  function draw() {
    const how = options();
    const same = new Map(); // numbers that never changed are listed in a line; a search shows their curves
    for (const name of visible()) {
      const each = variants(name), several = each.length > 1 || each[0] !== name;
      const curves = view.runs.flatMap((run) => each.map((own) => {
        const have = data.get(run), policy = own === name ? "main" : own.slice(0, -name.length - 1);
        const label = !several ? run : view.runs.length > 1 ? `${run}, ${policy}` : policy;
        const colour = several && view.runs.length === 1 ? colourOf(policy, policies.get(run)) : null;
        return { label, run, colour, x: how.by === "hours" ? have.hours : have.step, y: have.values[own] ?? [], steps: have.step };
      }));
      const known = curves.flatMap((curve) => curve.y.filter((value) => value !== null));
      const constant = !search.value && known.length > 1 && known.every((value) => value === known[0]);
      if (constant) same.set(name, known[0]);
      chart(name).element.hidden = constant;
      if (!constant) chart(name).draw(curves, how);
    }
    for (const { names: own, flat } of sections) {
      const listed = own.filter((name) => same.has(name)).map((name) => `${name} ${short(same.get(name))}`);
      flat.textContent = listed.length ? `Unchanged: ${listed.join(" · ")}` : "";
    }
    const drawn = learners.filter((each) => names.some((name) => name.startsWith(`${each}/`)));
    legend.replaceChildren(...(view.runs.length > 1 ? view.runs.map((run, at) =>
      h("a", { href: link(["run", run]) }, h("i", { style: { background: `var(${COLOURS[at % COLOURS.length]})` } }), run))
      : drawn.length ? ["main", ...drawn].map((each) => named(each, about[0].policies)) : []));
  }

  // ---------------------------------------------------------------------------------- controls

  const how = options();
  const slider = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: how.smooth, "aria-label": "Smoothing", oninput: () => {
    view.keep({ smooth: Number(slider.value) ? slider.value : null });
    draw();
  } });
  const log = h("input", { type: "checkbox", checked: how.log, onchange: () => change({ log: log.checked ? "1" : null }) });
  const by = h("select", { "aria-label": "Horizontal axis", onchange: () => change({ x: by.value === "hours" ? "hours" : null }) },
    h("option", { value: "step" }, "by step"), h("option", { value: "hours" }, "by hours of training"));
  by.value = how.by;
  const legend = h("div", { class: "legend" }), empty = nothing(about);
  const state = about.length === 1 ? about[0].summary : null;

  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, view.compared ? "Compare" : view.runs[0]),
      state ? h("span", { class: ["state", state.state] }, state.state) : null, legend, h("span", { class: "grow" }),
      h("label", {}, "smooth", slider), h("label", {}, log, "log scale"), by, search,
      h("button", { type: "button", onclick: () => copy(location.href, "link.txt") }, "Copy link")),
    ...(state ? [notesCard({ run: view.runs[0] }, state.note, about[0].writable)].filter(Boolean) : []),
    empty, ...sections.map((section) => section.element),
    ...(view.runs.length === 2 ? [h("h2", {}, "Tasks"), await changedTasks(view)] : []),
    ...(view.compared ? [h("h2", {}, "Settings"), await settingsTable(view)] : []));
  arrange();
  view.live(about.some((each) => each.summary.state === "running"));
  await update(true);
  view.every(() => update());
}

/** What there is instead of curves. */
function nothing(about) {
  const results = about.map((each) => resultCard(each.evaluation, about.length > 1 ? each.summary.name : "Result")).filter(Boolean);
  const steps = about.some((each) => each.summary.kind === "training");
  return h("div", { class: "results" }, results.length ? results : h("p", { class: "quiet" }, steps ? "No step is done yet." : "There are no steps here, only sessions."));
}
