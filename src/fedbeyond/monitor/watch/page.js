"use strict";
// Asks for the state every two seconds and shows it. Text only ever becomes text: nothing is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg", WIDTH = 320, HEIGHT = 180;
const at = (id) => document.getElementById(id);
const shown = new Map(); // what each part of the page was last made from
let chosen = null; // the method whose curves are brought out
let methods = [];
let said = null; // what was last read aloud

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "line", "text", "polyline", "circle", "title", "g"].includes(tag);
  const node = drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Make a part anew only if it changed: a reader's place and the keyboard's stay where they are.
function part(id, from, build) {
  const key = JSON.stringify(from);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  at(id).replaceChildren(...build());
}

function write(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

const runs = (count) => `${count} run${count === 1 ? "" : "s"}`;
const label = (run) => `${run.method}, ${run.target} unseen, seed ${run.seed}`;
const colour = (method) => `c${methods.indexOf(method) % 8} dash${Math.floor(methods.indexOf(method) / 8) % 4}`;

function ago(seconds) {
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

function answer(state) {
  const counts = state.counts, total = state.runs.length;
  if (!total) {
    const there = state.elsewhere.map((folder) => `fedbeyond watch ${folder}`).join("; ");
    return there ? `No runs here, but a bench in a folder below: ${there}` : "No runs here yet: they appear as soon as one begins.";
  }
  const told = [`${counts.done} of ${runs(total)} done`];
  if (counts.running) told.push(`${counts.running} running`);
  if (counts["to go"]) told.push(`${counts["to go"]} to go`);
  if (counts.failed) told.push(`${counts.failed} broke down`);
  if (counts.stopped) told.push(`${counts.stopped} stopped`);
  if (state.over) return `${told.join(", ")}. Everything is over.`;
  if (!state.awake) return `${told.join(", ")}. Nothing is being played now: the same command again goes on.`;
  return `${told.join(", ")}; ${state.left ? `${state.left} left.` : "the time left is known after a round."}`;
}

function row(run) {
  return make("tr", {},
    make("th", { scope: "row" }, run.method), make("td", { class: "target" }, run.target), make("td", { class: "seed" }, String(run.seed)),
    make("td", { class: `state ${run.state.replace(" ", "-")}` }, run.state === "failed" ? "broke down" : run.state),
    make("td", { class: "count" }, `${run.played}/${run.rounds}`), make("td", { class: "last" }, run.last));
}

function curve(run, domain, rounds) {
  const heights = run.curves[domain], step = WIDTH / Math.max(rounds - 1, 1);
  const judged = heights.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const points = judged.map(([i, value]) => [(i * step).toFixed(1), (HEIGHT * (1 - value)).toFixed(1)]);
  const [x, y] = points[points.length - 1];
  return make("g", { "data-method": run.method },
    make("title", {}, `${label(run)}: ${(100 * judged[judged.length - 1][1]).toFixed(1)} %`),
    make("polyline", { class: colour(run.method), points: points.map((point) => point.join(",")).join(" ") }),
    make("circle", { class: colour(run.method).split(" ")[0], cx: x, cy: y, r: 2.5 }));
}

function chart(domain, found) {
  const rounds = Math.max(...found.map((run) => run.rounds));
  const picture = make("svg", { viewBox: `-26 -8 ${WIDTH + 32} ${HEIGHT + 22}`, role: "img", "aria-label": `Accuracy on ${domain} over rounds` });
  for (const percent of [0, 25, 50, 75, 100]) {
    const y = HEIGHT * (1 - percent / 100);
    picture.append(make("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }), make("text", { x: -5, y: y + 3, "text-anchor": "end" }, String(percent)));
  }
  picture.append(make("text", { x: 0, y: HEIGHT + 13 }, "round 1"), make("text", { x: WIDTH, y: HEIGHT + 13, "text-anchor": "end" }, String(rounds)));
  picture.append(...found.map((run) => curve(run, domain, rounds)));
  return make("figure", {}, picture, make("figcaption", {}, `${domain} unseen (%)`));
}

function key(method) {
  const line = make("svg", { viewBox: "0 0 26 6", "aria-hidden": "true" }, make("polyline", { class: colour(method), points: "0,3 26,3" }));
  const button = make("button", { type: "button", "aria-pressed": "false", "data-method": method }, line, method);
  button.addEventListener("click", () => { chosen = chosen === method ? null : method; bringOut(); });
  return button;
}

function bringOut() {
  if (!methods.includes(chosen)) chosen = null;
  for (const button of at("key").children) button.setAttribute("aria-pressed", String(button.dataset.method === chosen));
  for (const line of at("charts").querySelectorAll("g")) line.classList.toggle("faint", chosen !== null && line.dataset.method !== chosen);
}

function show(state) {
  methods = state.methods;
  document.title = state.runs.length ? `${state.counts.done}/${state.runs.length} runs: ${state.name}` : `fedbeyond: ${state.name}`;
  write("name", state.name);
  write("version", state.version);
  write("answer", answer(state));
  write("rounds", `${state.rounds.played} of ${state.rounds.total}`);
  at("bar").max = Math.max(state.rounds.total, 1);
  at("bar").value = state.rounds.played;
  write("heard", state.age === null || state.over ? "" : `Last round ${ago(state.age)}.`);
  at("report").hidden = !state.report;

  const failures = state.runs.filter((run) => run.state === "failed");
  at("failed").hidden = !failures.length;
  part("failures", failures, () => failures.map((run) => make("li", {}, `${label(run)}, after ${run.played} of ${run.rounds} rounds: `, make("span", { class: "why" }, run.why))));

  const begun = state.runs.filter((run) => run.played > 0);
  const domains = [...new Set(begun.flatMap((run) => Object.keys(run.curves)))].sort();
  at("curves").hidden = !begun.length;
  part("key", methods, () => methods.map(key));
  part("charts", [methods, begun.map((run) => [label(run), run.rounds, run.curves])],
    () => domains.map((domain) => chart(domain, begun.filter((run) => run.curves[domain]))));
  bringOut();

  at("all").hidden = !state.runs.length;
  part("runs", state.runs.map((run) => [label(run), run.state, run.played, run.rounds, run.last]), () => state.runs.map(row));

  const aside = state.aside;
  at("aside").hidden = !aside.count;
  write("asides", aside.count > aside.latest.length ? `The last ${aside.latest.length} of ${aside.count}.` : "");
  part("replies", aside.latest, () => aside.latest.map((entry) => make("li", {}, `${label(entry)}, round ${entry.round}, ${entry.site}: ${entry.reason}`)));

  const ended = `${state.counts.done} of ${runs(state.runs.length)} done` + (state.counts.failed ? `, ${state.counts.failed} broke down` : "");
  if (said !== null && said !== ended) write("spoken", ended); // runs that end are news; rounds are not
  said = ended;
}

let heard = new Date(), away = false;
async function ask() {
  try {
    const reply = await fetch("/state.json", { signal: AbortSignal.timeout(10000) });
    if (!reply.ok) throw new Error(String(reply.status));
    show(await reply.json());
    heard = new Date();
    if (away) write("spoken", "The watcher is back.");
    away = false;
    at("gone").hidden = true;
  } catch {
    write("gone", `No answer from “fedbeyond watch”: this is how things stood at ${heard.toLocaleTimeString()}. The runs go on without it; ` +
      `given again with --port ${location.port}, it is found here.`);
    at("gone").hidden = false;
    if (!away) write("spoken", "No answer from fedbeyond watch.");
    away = true;
  }
  setTimeout(ask, 2000);
}
ask();
