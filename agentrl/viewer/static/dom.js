// Elements, requests and numbers. Text becomes text nodes only: nothing here, or anywhere else, parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element; attributes that begin with "on" are listeners, `class` may be a list, false and null are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of an SVG picture. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : Array.isArray(value) ? value.filter(Boolean).join(" ") : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Ask the server; parameters with null are left out, lists are repeated. Throws an Error with the server's words. */
export async function api(path, parameters = {}, signal = undefined) {
  return answered(await fetch(`/api/${path}?${query(parameters)}`, { signal }));
}

/** Ask the server to change something. Throws as `api` does. */
export async function post(path, parameters, body) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return answered(await fetch(`/api/${path}?${query(parameters)}`, options));
}

async function answered(answer) {
  if (answer.ok) return answer.headers.get("content-type").includes("json") ? answer.json() : answer.text();
  const text = await answer.text();
  let reason = text;
  try {
    reason = JSON.parse(text).error;
  } catch {
    // it is plain text already
  }
  throw new Error(reason || `the server answered ${answer.status}`);
}

/** Parameters as a query string. */
export function query(parameters) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) pairs.append(name, each);
    }
  }
  return pairs.toString();
}

/** The address of a view of this page. */
export function link(parts, parameters = {}) {
  const asked = query(parameters);
  return `#/${parts.map(encodeURIComponent).join("/")}${asked ? `?${asked}` : ""}`;
}

/** A number in few characters. */
export function short(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "–"; // a file has said something else
  const size = Math.abs(value);
  if (size >= 1e9 || (size < 1e-3 && size > 0)) return Number(value.toPrecision(3)).toExponential();
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  return trimmed(value);
}

const trimmed = (value) => String(Number(value.toPrecision(4)));

/** A number of things, by the word for one. */
export function counted(number, word) {
  return `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
}

/** Seconds as a duration. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

/** How long ago a time (seconds since 1970) was. */
export function ago(time) {
  const seconds = Date.now() / 1000 - time;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Say something to all, screen readers included; it goes away by itself. */
export function say(text) {
  const place = document.getElementById("status");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 4000);
}

/** Give the user a file. */
export function download(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Put text on the clipboard, or into a file where the browser has none (plain HTTP from another machine). */
export async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    download(name, text, "text/plain");
    say(`Saved as ${name}.`);
  }
}

/** Parts that are open where there is room, and behind their title on a phone. */
export function folded(view, title, ...children) {
  const wide = matchMedia("(min-width: 901px)"); // as in the style sheets
  const element = h("details", { class: "folded", open: wide.matches }, h("summary", {}, title), children);
  wide.addEventListener("change", () => (element.open = wide.matches), { signal: view.signal });
  return element;
}

/** Call a function each time that an element comes into view, until it returns false. */
export function whenSeen(element, act) {
  let busy = false;
  const observer = new IntersectionObserver(async (entries) => {
    if (busy || !entries.some((entry) => entry.isIntersecting) || !element.isConnected) return;
    busy = true;
    const more = await act();
    busy = false;
    observer.disconnect();
    if (more) observer.observe(element); // observed anew, it reports where it is now
  }, { rootMargin: "600px" });
  observer.observe(element);
  return () => observer.disconnect();
}
