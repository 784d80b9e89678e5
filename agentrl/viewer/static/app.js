// The page: reads its address (#/run/NAME/…?…), shows the view that it names, and keeps the address up to date.

import { api, h, link } from "./dom.js";
import { showCurves } from "./curves.js";
import { showGroup, showTask } from "./group.js";
import { showHealth } from "./health.js";
import { showRuns } from "./runs.js";
import { showSession } from "./session.js";
import { showSessions } from "./sessions.js";
import { showSettings } from "./settings.js";
import { showTimeline } from "./timeline.js";

const VIEWS = { __proto__: null, curves: showCurves, sessions: showSessions, timeline: showTimeline, health: showHealth, session: showSession, group: showGroup, settings: showSettings };
const TABS = [["curves", "Curves"], ["sessions", "Sessions"], ["timeline", "Timeline"], ["health", "Health"], ["settings", "Settings"]];
const main = document.getElementById("main");
const POLL = 2500; // milliseconds between two looks at a run that may go on
let leave = () => {};

/** What a view has asked for and is left before it arrives is no error. */
addEventListener("unhandledrejection", (event) => event.reason?.name === "AbortError" && event.preventDefault());

/** The address as a list of decoded parts and its parameters. */
function address() {
  const [path, asked = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), asked: new URLSearchParams(asked) };
}

async function show() {
  leave();
  const { parts, asked } = address();
  let here = location.hash;
  const ended = new AbortController();
  const timers = [];
  leave = () => {
    ended.abort();
    timers.forEach(clearInterval);
  };
  const view = {
    asked,
    signal: ended.signal,
    /** Change parameters of the address without another step in the history; null removes one. A view that is left changes nothing. */
    keep(changes) {
      if (ended.signal.aborted || location.hash !== here) return;
      for (const [name, value] of Object.entries(changes)) {
        asked.delete(name);
        for (const each of [value].flat()) if (each !== null && each !== undefined) asked.append(name, each);
      }
      history.replaceState(null, "", `#/${parts.map(encodeURIComponent).join("/")}${asked.size ? `?${asked}` : ""}`);
      here = location.hash;
    },
    /** Call a function again and again while the view is there and the page is seen. */
    every(act) {
      timers.push(setInterval(() => document.hidden || act().catch(() => {}), POLL));
    },
    live(running) {
      document.getElementById("live").hidden = !running;
    },
  };
  view.live(false);
  main.replaceChildren(h("p", { class: "quiet" }, "…"));
  try {
    await route(parts, view);
    if (!ended.signal.aborted) main.dataset.shown = location.hash; // for tests: it is all there
  } catch (error) {
    if (ended.signal.aborted) return;
    main.replaceChildren(h("section", { class: "card trouble" }, h("h1", {}, "That did not work"), h("p", {}, error.message)));
  }
}

async function route(parts, view) {
  delete main.dataset.shown;
  if (parts[0] === "compare") {
    const runs = view.asked.getAll("run"), task = view.asked.get("task");
    trail(task === null ? [["Compare", null]] : [["Compare", link(["compare"], { run: runs })], [task, null]]);
    return (task === null ? showCurves : showTask)(main, { ...view, runs, compared: true });
  }
  if (parts[0] !== "run" || parts.length < 2) {
    trail([]);
    return showRuns(main, view);
  }
  const [, name, tab = await firstTab(name, view), item] = parts;
  const shown = VIEWS[tab] ?? showCurves;
  trail([[name, link(["run", name])], ...(item ? [[item, null]] : [])], name, tab);
  return shown(main, { ...view, run: name, runs: [name], item });
}

/** What a run opens on: its curves, or the sessions where it has no steps, as an evaluation. */
async function firstTab(run, view) {
  const { summary } = await api("run", { run }, view.signal);
  return summary.kind !== "training" && summary.sessions ? "sessions" : "curves";
}

/** The path to this view, and the run's tabs. */
function trail(steps, run = null, current = null) {
  const tabs = run === null ? [] : TABS.map(([tab, title]) =>
    h("a", { href: link(["run", run, tab]), class: "tab", "aria-current": tab === current ? "page" : null }, title));
  document.getElementById("trail").replaceChildren(
    ...steps.map(([title, href]) => h(href ? "a" : "span", { href, class: "step", title }, title)),
    ...(tabs.length ? [h("span", { class: "tabs" }, tabs)] : []),
  );
  document.title = [...steps.map(([title]) => title).reverse(), "agentrl"].join(" · ");
}

// ------------------------------------------------------------------------------------ theme and keys

const theme = document.getElementById("theme");
const dark = () => document.documentElement.dataset.theme === "dark";

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "☀" : "☾";
  dispatchEvent(new Event("themed"));
}

theme.addEventListener("click", () => {
  setTheme(dark() ? "light" : "dark");
  localStorage.setItem("theme", document.documentElement.dataset.theme);
});
setTheme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

const KEYS = [
  ["/", "search or filter"], ["j, k", "next and previous row"], ["Enter", "open it"], ["u", "back"], ["t", "dark or light"],
  ["← →", "in a curve: from point to point; Enter shows its sessions"], ["?", "this list"],
];
const keys = document.getElementById("keys");
keys.append(h("h2", {}, "Keys"), h("dl", {}, KEYS.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
  h("form", { method: "dialog" }, h("button", {}, "Close")));
document.getElementById("help").addEventListener("click", () => keys.showModal());

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const act = { "/": focusSearch, "?": () => keys.showModal(), t: () => theme.click(), u: () => history.back(),
    j: () => moveRow(1), k: () => moveRow(-1) }[event.key];
  if (act) {
    act();
    event.preventDefault();
  }
});

function focusSearch() {
  main.querySelector("[data-search]")?.focus();
}

/** Move the focus to the next or previous row's link. */
function moveRow(by) {
  const rows = [...main.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
  const at = rows.indexOf(document.activeElement);
  rows[Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
}

addEventListener("hashchange", show);
show();
