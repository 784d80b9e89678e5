// How long a turn or an answer of the environment took, by what the time went to.

import { duration, h } from "./dom.js";

const SHOWN = 0.0005; // seconds of a phase that is shown

/** Seconds by phase, one behind the other (see `Node.timings`); what is not known is left out. */
export function phases({ queue = 0, first_token: first, generation, env, tool = 0, sandbox = 0 }) {
  const found = {};
  if (generation !== undefined) Object.assign(found, first === undefined ? { generation } : { queue, prefill: first - queue, generation: generation - first });
  if (env !== undefined) Object.assign(found, { sandbox, tool, environment: env - tool - sandbox });
  return Object.fromEntries(Object.entries(found).filter(([, seconds]) => seconds >= SHOWN));
}

/** All phases of a session: the sums over its nodes, and what only the session knows. */
export function sums(session) {
  const total = {};
  for (const node of session.nodes.slice(0, session.recorded)) for (const [phase, seconds] of Object.entries(phases(node.timings))) total[phase] = (total[phase] ?? 0) + seconds;
  if (!Object.keys(total).length) return session.timings; // a session of before nodes kept theirs
  return { ...total, reward: session.timings.reward ?? 0, total: session.timings.total ?? 0 };
}

/** A node's phases in a line; null where it has none. */
export function timingLine(timings) {
  const found = Object.entries(phases(timings));
  if (!found.length) return null;
  const whole = found.reduce((sum, [, seconds]) => sum + seconds, 0);
  return h("span", { class: "quiet small", title: found.map(([phase, seconds]) => `${phase} ${duration(seconds)}`).join("\n") },
    `${duration(whole)}${found.length > 1 ? `: ${found.map(([phase, seconds]) => `${phase} ${duration(seconds)}`).join(", ")}` : ` ${found[0][0]}`}`);
}
