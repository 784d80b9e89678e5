// A run's course on one axis of time: phases of steps, the trainer, published versions, each engine, environments, sessions.

import { api, duration, h, link, short, svg } from "./dom.js";
import { shown } from "./text.js";

const WIDTH = 1200, LEFT = 132, RIGHT = 10, ROW = 22, AREA = 60, BAR = 9, MOST_LANES = 60;
const COLOURS = { rollout: "--c0", reference: "--c3", values: "--c5", pack: "--c7", logprobs: "--c3", train: "--c1", publish: "--c2", prove: "--c5", publish_average: "--c6", eval: "--c4", step: "--c7" };
const TRAINER = ["reference", "values", "logprobs", "train"]; // phases in which it computes
const IMITATION = "--c6";
const LABEL = 12; // characters of a lane's name

export async function showTimeline(main, view) {
  const { run, asked } = view;
  const picture = svg("svg", { class: "timeline", tabindex: 0, role: "group", "aria-label": "Timeline; + and − zoom, ← and → move, 0 shows all", onkeydown: key });
  const words = h("p", { class: "quiet small", role: "status" });
  const legend = h("div", { class: "legend" });
  let now, running = false;

  async function load() {
    const { summary } = await api("run", { run }, view.signal);
    view.live((running = summary.state === "running"));
    now = await api("timeline", { run, from: asked.get("from"), to: asked.get("to") }, view.signal);
    draw();
  }

  /** Show the times from `low` to `high`, as far as the run has them. */
  function zoom(low, high) {
    const width = Math.min(Math.max(high - low, 0.05), now.length), from = Math.min(Math.max(low, 0), now.length - width);
    const all = width >= now.length;
    view.keep({ from: all ? null : from.toFixed(3), to: all ? null : (from + width).toFixed(3) });
    return load().catch((error) => error.name !== "AbortError" && (words.textContent = error.message));
  }

  const by = (factor) => zoom((now.low + now.high - (now.high - now.low) * factor) / 2, (now.low + now.high + (now.high - now.low) * factor) / 2);
  const shift = (share) => zoom(now.low + (now.high - now.low) * share, now.high + (now.high - now.low) * share);

  function key(event) {
    const act = { "+": () => by(0.5), "=": () => by(0.5), "-": () => by(2), ArrowLeft: () => shift(-0.25), ArrowRight: () => shift(0.25), 0: () => zoom(0, now.length) }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }

  // ---------------------------------------------------------------------------------- drawing

  const at = (time) => LEFT + ((time - now.low) / (now.high - now.low)) * (WIDTH - LEFT - RIGHT);
  const within = (from, to) => ({ x: Math.max(at(from), LEFT), width: Math.max(Math.min(at(to), WIDTH - RIGHT) - Math.max(at(from), LEFT), 0.8) });

  function draw() {
    if (now.began === null) {
      words.textContent = "Nothing has a time yet.";
      return picture.replaceChildren();
    }
    const lanes = Math.min((now.sessions ?? []).reduce((most, session) => Math.max(most, session[7] + 1), 0), MOST_LANES);
    const busy = now.lanes ?? [], top = {};
    let height = 4;
    for (const [part, room] of [["steps", ROW + 14], ["trainer", ROW], ["versions", ROW + 4], ["busy", busy.length * ROW], ["area", AREA + 14], ["sessions", lanes * BAR + 24]]) {
      top[part] = height;
      height += room;
    }
    const titles = [["Steps", top.steps + 14], ["Trainer", top.trainer + 14], ["Published", top.versions + 14], ...busy.map(([name], at) => [name, top.busy + at * ROW + 14]),
      ["Under way", top.area + 14], ...(lanes ? [["Sessions", top.sessions + 10]] : [])];
    picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
    picture.replaceChildren(...axis(height), ...steps(top.steps), ...trainer(top.trainer), ...versions(top.versions),
      ...busy.flatMap(([name, counts], at) => area(counts, top.busy + at * ROW, ROW - 4, `${shown(name)}: ${name === "environments" ? "calls" : "requests"} under way`)),
      ...area(now.under_way, top.area, AREA, "sessions under way"), ...bars(top.sessions, lanes), ...titles.map(([title, y]) => svg("text", { x: 4, y, class: "lane" }, shown(title).slice(0, LABEL))));
    const phases = [...new Set(now.steps.flatMap(([, , each]) => each.map(([phase]) => phase)))];
    legend.replaceChildren(...phases.map((phase) => h("span", {}, h("i", { style: { background: `var(${COLOURS[phase]})` } }), phase.replace("_", " "))),
      now.warm_start ? h("span", {}, h("i", { style: { background: `var(${IMITATION})` } }), "warm start") : "");
    const whole = now.high - now.low >= now.length;
    words.textContent = `${whole ? "" : `${duration(now.low)} to ${duration(now.high)} of `}${duration(now.length)} since ${new Date(now.began * 1000).toLocaleString()}`
      + (now.lanes === null ? "; zoom in to see engines" : now.sessions === null ? "; zoom in to see single sessions" : "") + (now.steps.length ? "" : "; no step has a time");
  }

  function axis(height) {
    return Array.from({ length: 7 }, (_, tick) => now.low + ((now.high - now.low) * tick) / 6).flatMap((time, tick) => [
      svg("line", { x1: at(time), x2: at(time), y1: 0, y2: height - 18, class: "grid" }),
      svg("text", { x: at(time), y: height - 4, "text-anchor": tick === 0 ? "start" : tick === 6 ? "end" : "middle" }, duration(time))]);
  }

  function steps(y) {
    return now.steps.flatMap(([step, , phases]) => {
      const from = phases[0][1], to = phases.at(-1)[2], room = within(from, to).width;
      return [svg("g", { class: "step", "data-step": step, onclick: () => zoom(from - (to - from) * 0.1, to + (to - from) * 0.1) },
        phases.map(([phase, a, b]) => svg("rect", { ...within(a, b), y, height: ROW - 4, fill: `var(${COLOURS[phase] ?? "--c7"})` },
          svg("title", {}, `step ${step}, ${phase.replace("_", " ")}: ${duration(b - a)}`)))),
      room > 60 ? svg("text", { x: within(from, to).x + 2, y: y + ROW + 8 }, `step ${step}`) : null];
    }).filter(Boolean);
  }

  function versions(y) {
    return now.steps.flatMap(([, version, phases]) => phases.filter(([phase]) => phase === "publish").map(([, , done]) =>
      done < now.low || done > now.high ? null : svg("rect", { x: at(done) - 1.5, y: y + 4, width: 3, height: ROW - 8, fill: `var(${COLOURS.publish})` },
        svg("title", {}, `version ${version ?? "?"} at ${duration(done)}`)))).filter(Boolean);
  }

  /** Counts at points in time, as an area. */
  function area(counts, y, height, title) {
    if (!counts.length) return [];
    const most = Math.max(...counts, 1), wide = WIDTH - LEFT - RIGHT, last = counts.length - 1;
    const points = counts.map((count, place) => `${(LEFT + (wide * place) / last).toFixed(1)},${(y + height * (1 - count / most)).toFixed(1)}`);
    return [svg("polygon", { points: `${LEFT},${y + height} ${points.join(" ")} ${WIDTH - RIGHT},${y + height}`, class: "area", "data-lane": title }, svg("title", {}, `${title}, at most ${most}`)),
      svg("text", { x: LEFT - 6, y: y + 12, "text-anchor": "end" }, short(most))];
  }

  function trainer(y) {
    const [from, to] = now.warm_start ?? [0, 0];
    const imitation = from >= now.high || to <= Math.max(now.low, from) ? [] : [svg("rect", { ...within(from, to), y, height: ROW - 6, fill: `var(${IMITATION})` },
      svg("title", {}, `trainer, warm start: ${duration(to - from)}`))];
    return imitation.concat(now.steps.flatMap(([step, , phases]) => phases.filter(([phase]) => TRAINER.includes(phase)).map(([phase, from, to]) =>
      svg("rect", { ...within(from, to), y, height: ROW - 6, fill: `var(${COLOURS[phase]})` }, svg("title", {}, `trainer, step ${step}, ${phase}: ${duration(to - from)}`)))));
  }

  function bars(y, lanes) {
    return (now.sessions ?? []).filter((session) => session[7] < lanes).map(([id, from, to, status, phase, score, step, lane]) =>
      svg("a", { href: link(["run", run, "session", id]), "data-row": id, "aria-label": `session ${id}` },
        svg("rect", { ...within(from, to), y: y + lane * BAR, height: BAR - 2, class: status },
          svg("title", {}, `${id}: ${status.replace("_", " ")}, ${phase}, step ${step ?? "–"}, score ${short(score)}, ${duration(to - from)}`))));
  }

  const button = (title, words_, act) => h("button", { type: "button", "aria-label": title, title, onclick: act }, words_);
  await load();
  main.replaceChildren(
    h("div", { class: "head" }, h("h1", {}, "Timeline"), legend, h("span", { class: "grow" }), button("Earlier", "←", () => shift(-0.25)), button("Later", "→", () => shift(0.25)),
      button("Zoom in", "+", () => by(0.5)), button("Zoom out", "−", () => by(2)), button("Show all", "All", () => zoom(0, now.length))),
    h("section", { class: "card scroll" }, picture), words);
  view.every(async () => running && now.high >= now.length && load());
}
