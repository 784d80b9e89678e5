// What looks wrong in a run: the alarms, why, what to do, and which sessions show it.

import { api, h, link } from "./dom.js";

export async function showHealth(main, view) {
  const { run } = view;
  const place = h("div", { class: "alarms" });

  async function load() {
    const { alarms, summary } = await api("run", { run }, view.signal);
    view.live(summary.state === "running");
    place.replaceChildren(...(alarms.length ? alarms.map((alarm) => card(alarm, run))
      : [h("section", { class: "card" }, h("h2", {}, "Nothing to report"), h("p", { class: "quiet" }, summary.done
        ? `No rule finds fault with the ${summary.done} steps so far.` : "No step is done yet."))]));
  }

  await load();
  main.replaceChildren(h("div", { class: "head" }, h("h1", {}, "Health")), place);
  view.every(load);
}

function card(alarm, run) {
  return h("section", { class: ["card", "finding", alarm.level] },
    h("h2", {}, h("span", { class: ["badge", alarm.level] }, alarm.level), ` ${alarm.title}`),
    h("p", {}, alarm.reason), h("p", {}, h("b", {}, "What to do: "), alarm.advice),
    h("p", { class: "links" }, alarm.sessions ? h("a", { href: link(["run", run, "sessions"], alarm.sessions), "data-row": alarm.title }, "The sessions that show it") : null,
      alarm.metric ? h("a", { href: link(["run", run, "curves"], { q: alarm.metric }) }, `The curve ${alarm.metric}`) : null));
}
