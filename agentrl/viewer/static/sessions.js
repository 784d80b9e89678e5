// The sessions of a run: filters, text search, order, the distribution of scores, and as many rows as are scrolled to.

import { api, copy, counted, duration, folded, h, link, short, svg, whenSeen } from "./dom.js";
import { noteLine } from "./notes.js";
import { named, playersCard } from "./players.js";
import { resultCard } from "./result.js";
import { scored } from "./scores.js";
import { shown } from "./text.js";

const PAGE = 100;
const COLUMNS = [ // [column, title, cell]
  ["id", "Session", null], ["status", "Status", null], ["score", "Score", scored], ["step", "Step", (row) => row.step ?? "–"],
  ["turns", "Turns", (row) => row.turns], ["tokens", "Tokens", (row) => short(row.tokens)], ["tool_errors", "Tool errors", (row) =>
    (row.tool_calls ? `${row.tool_errors} / ${row.tool_calls}` : "–")], ["duration", "Time", (row) => duration(row.duration)],
];
const CHOICES = ["phase", "status", "blame", "environment", "agent", "tool", "tag"];
const ALWAYS = ["blame", "tag"]; // shown with one value, too
const NAMED = ["tool", "tag"]; // by others: shown as they are
const RANGES = [["step", "Steps"], ["score", "Score"], ["turns", "Turns"], ["tokens", "Tokens"], ["version_max", "Version"]];
const ANY = "any"; // the phase of all sessions; without one, a warm start's demonstrations are left out
const OWN = new Set(["sort", "descending", "text"]);

export async function showSessions(main, view) {
  const { asked, run } = view;
  const total = (found) => Object.values(found.status ?? {}).reduce((sum, number) => sum + number, 0);
  const fresh = h("button", { type: "button", hidden: true, onclick: () => {
    known = now;
    return reload();
  } });
  const body = h("tbody");
  const count = h("span", { class: "quiet", role: "status" });
  const more = h("p", { class: "quiet" });
  const picture = h("div", { class: "card figure" });
  const result = h("div", { class: "results" }), matrix = h("div");
  let policies = [], next, asking = new AbortController(), stop = () => {}, searched = 0, found = 0, known = 0, now = 0;

  const wanted = () => {
    const parameters = { __proto__: null, run };
    for (const name of new Set(asked.keys())) parameters[name] = asked.getAll(name);
    if (asked.get("phase") === ANY) delete parameters.phase;
    else if (!["phase", "group", "id"].some((name) => asked.has(name) || asked.has(`${name}~`))) parameters.phase = "played";
    return parameters;
  };

  function change(changes) {
    view.keep(changes);
    reload();
  }

  // --------------------------------------------------------------------------------- rows

  async function load() {
    const limit = AbortSignal.any([view.signal, asking.signal]);
    const page = await api("sessions", { ...wanted(), limit: PAGE, after: next }, limit);
    policies = page.policies;
    body.append(...page.rows.map(row));
    next = page.next;
    found += page.rows.length;
    searched += page.searched ?? 0;
    if (asked.get("text")) count.textContent = `${found} found in ${searched} sessions${next ? " …" : ""}`;
    else if (page.total !== null && page.total !== undefined) count.textContent = counted(page.total, "session");
    more.textContent = next ? "…" : found ? "" : "No session fits.";
    return next !== null;
  }

  /** While the run goes on: say that there are new ones, and leave the list where it is read. */
  async function look() {
    const { summary, evaluation, policies } = await api("run", { run }, view.signal);
    if (policies.length > 1 && summary.sessions) matrix.replaceChildren(...[playersCard(await api("players", { run }, view.signal), policies)].filter(Boolean));
    result.replaceChildren(...[resultCard(evaluation)].filter(Boolean));
    view.live(summary.state === "running");
    if (summary.state !== "running") return;
    now = total(await api("facets", { run }, view.signal));
    fresh.hidden = now === known;
    fresh.textContent = `${now - known} new`;
  }

  async function reload() {
    fresh.hidden = true;
    asking.abort();
    stop();
    asking = new AbortController();
    [next, searched, found] = [null, 0, 0];
    drawFilters();
    body.replaceChildren();
    try {
      if (await load()) view.signal.addEventListener("abort", (stop = whenSeen(more, () => load().catch(failed))));
      drawDistribution(await api("distribution", { ...wanted(), text: null }, AbortSignal.any([view.signal, asking.signal])));
    } catch (error) {
      failed(error);
    }
  }

  function failed(error) {
    if (error.name !== "AbortError") more.textContent = error.message;
  }

  function row(session) {
    const [, , ...rest] = COLUMNS;
    return h("tr", {},
      h("td", {}, h("a", { href: link(["run", run, "session", session.id]), "data-row": session.id, class: "name" }, shown(session.id)),
        h("div", { class: "small quiet clip" }, shown(session.task), session.group ? [" · ", h("a", { href: link(["run", run, "group", session.group]) }, "group")] : null),
        policies.length > 1 ? h("div", { class: "small" }, session.played.map((name) => named(name, policies))) : null, noteLine(session.note)),
      h("td", {}, h("span", { class: ["badge", session.status] }, session.status.replace("_", " ")),
        session.error ? h("div", { class: "small error clip", title: shown(session.error) }, shown(session.error)) : null),
      rest.map(([, , cell]) => h("td", { class: "number" }, cell(session))));
  }

  // ------------------------------------------------------------------------------ filters

  const search = h("input", { type: "search", placeholder: "Text in messages", "aria-label": "Text in messages", "data-search": true,
    value: asked.get("text") ?? "", onchange: () => change({ text: search.value || null }) });
  const condition = h("input", { type: "search", placeholder: "Condition: score < 1 and data.level == 5", "aria-label": "Condition",
    value: asked.get("where") ?? "", onchange: () => change({ where: condition.value || null }) });
  const selects = [], choices = h("span", { class: "choices" });

  /** The choices come after the first rows: counting all sessions takes longer than finding a hundred. */
  async function choose() {
    const facets = await api("facets", { run }, view.signal);
    known = now = total(facets);
    selects.push(...CHOICES.filter((name) => Object.keys(facets[name]).length > (ALWAYS.includes(name) ? 0 : 1)).map((name) => [name, choice(name, facets[name])]));
    choices.replaceChildren(...selects.map(([, select]) => select));
    drawFilters();
  }

  function choice(name, counts) {
    return h("select", { "aria-label": name, onchange: (event) => change({ [name]: event.target.value || null }) }, h("option", { value: "" }, name === "phase" && counts.demo ? "no demonstrations" : `any ${name}`),
      name === "phase" && counts.demo ? h("option", { value: ANY }, "any phase") : null, Object.entries(counts).map(([value, number]) => h("option", { value }, `${shown(NAMED.includes(name) ? value : value.replace("_", " "))} (${number})`)));
  }

  const ranges = RANGES.map(([name, title]) => {
    const ends = ["from", "to"].map((end) => h("input", { type: "number", step: "any", class: "end", placeholder: end, "aria-label": `${title} ${end}`, onchange: () => {
      const [low, high] = ends.map((each) => each.value);
      change({ [name]: low || high ? `${low}..${high}` : null });
    } }));
    return [name, ends, h("fieldset", {}, h("legend", {}, title), ends)];
  });
  const chips = h("span", { class: "chips" });
  const head = h("tr");

  function drawFilters() {
    for (const [name, select] of selects) select.value = asked.get(name) ?? "";
    for (const [name, ends] of ranges) {
      const [low = "", high = ""] = (asked.get(name) ?? "").split("..");
      [ends[0].value, ends[1].value] = asked.get(name)?.includes("..") ? [low, high] : [low, low];
    }
    condition.value = asked.get("where") ?? "";
    const drawn = new Set(["where", ...selects.map(([name]) => name), ...RANGES.map(([name]) => name)]);
    const others = [...asked].filter(([name]) => !drawn.has(name) && !OWN.has(name));
    chips.replaceChildren(...others.map(([name, value]) => h("button", { type: "button", class: "chip", title: "Remove this filter",
      onclick: () => change({ [name]: null }) }, name === "trained" ? `trained in step ${value}` : `${name} ${value}`, " ×")));
    head.replaceChildren(...COLUMNS.map(([name, title]) => {
      const sorted = asked.get("sort") === name, down = asked.get("descending") === "1";
      return h("th", { class: ["id", "status"].includes(name) ? null : "number", "aria-sort": sorted ? (down ? "descending" : "ascending") : null },
        h("button", { type: "button", class: "plain", onclick: () => change(sorted && down ? { sort: null, descending: null }
          : { sort: name, descending: sorted ? "1" : null }) }, title, sorted ? (down ? " ▼" : " ▲") : null));
    }));
  }

  // ------------------------------------------------------------------------- distribution

  function drawDistribution({ low, high, bins, steps, counts }) {
    const columns = [...new Set(counts.map(([column]) => column))];
    picture.hidden = columns.length < 2;
    if (picture.hidden) return;
    const first = columns[0], across = (columns.at(-1) - first) / steps + 1, most = Math.max(...counts.map(([, , number]) => number));
    const height = 90, width = 1000, size = { x: width / across, y: height / bins };
    const at = (bin) => low + ((high - low) * bin) / bins;
    picture.replaceChildren(h("figcaption", {}, "Scores by step", h("span", { class: "quiet small note" }, `${short(low)} at the bottom, ${short(high)} at the top; a square filters`)),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "heat", role: "img", "aria-label": "Scores by step" },
        counts.map(([column, bin, number]) => svg("rect", {
          x: ((column - first) / steps) * size.x, y: height - (bin + 1) * size.y, width: Math.max(size.x - 1, 1), height: size.y - 0.6,
          "fill-opacity": 0.15 + 0.85 * Math.sqrt(number / most),
          onclick: () => change({ step: `${column}..${column + steps - 1}`, score: `${at(bin)}..${bin === bins - 1 ? high : at(bin + 1)}` }),
        }, svg("title", {}, `step ${column}${steps > 1 ? ` to ${column + steps - 1}` : ""}, score ${short(at(bin))} to ${short(at(bin + 1))}: ${counted(number, "session")}`)))));
  }

  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, "Sessions"), count, fresh, h("span", { class: "grow" }), search,
      h("button", { type: "button", onclick: () => copy(location.href, "link.txt") }, "Copy link")),
    result,
    h("div", { class: "filters" }, chips),
    folded(view, "Filters", h("div", { class: "filters", role: "group", "aria-label": "Filters" }, choices, ranges.map(([, , field]) => field), condition)),
    picture, matrix, h("div", { class: "scroll card" }, h("table", { class: "sessions" }, h("thead", {}, head), body)), more);
  await Promise.all([reload(), choose()]);
  await look();
  view.every(look);
}
