"use strict";
// Requests the state every two seconds and shows it. Text is inserted as text only: nothing is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg", WIDTH = 320, HEIGHT = 180;
const at = (id) => document.getElementById(id);
const shown = new Map(); // the data that each part of the page was last built from
let chosen = null; // the method whose curves are highlighted
let methods = [];
let announced = null; // the last text for screen readers

function make(tag, attributes = {}, ...children) {
  const isSvg = ["svg", "line", "text", "polyline", "circle", "title", "g"].includes(tag);
  const node = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Rebuild a part only if its data changed: scroll position and keyboard focus stay.
function rebuild(id, data, build) {
  const key = JSON.stringify(data);
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

function summary(state) {
  const counts = state.counts, total = state.runs.length;
  if (!total) {
    const commands = state.subfolders.map((folder) => `fedbeyond watch ${folder}`).join("; ");
    return commands ? `No runs here, but a bench in a subfolder: ${commands}` : "No runs here yet: a run appears as soon as it starts.";
  }
  const parts = [`${counts.done} of ${runs(total)} done`];
  if (counts.running) parts.push(`${counts.running} running`);
  if (counts.pending) parts.push(`${counts.pending} pending`);
  if (counts.failed) parts.push(`${counts.failed} failed`);
  if (counts.stopped) parts.push(`${counts.stopped} stopped`);
  if (state.finished) return `${parts.join(", ")}. All runs have ended.`;
  if (!state.active) return `${parts.join(", ")}. No process is running: give the same command again to resume.`;
  return `${parts.join(", ")}; ${state.time_left ? `${state.time_left} left.` : "the time left is known after a round."}`;
}

function row(run) {
  return make("tr", {},
    make("th", { scope: "row" }, run.method), make("td", { class: "target" }, run.target), make("td", { class: "seed" }, String(run.seed)),
    make("td", { class: `state ${run.state}` }, run.state),
    make("td", { class: "count" }, `${run.rounds_done}/${run.rounds}`), make("td", { class: "last" }, run.last));
}

function curve(run, domain, rounds) {
  const heights = run.curves[domain], step = WIDTH / Math.max(rounds - 1, 1);
  const evaluated = heights.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const points = evaluated.map(([i, value]) => [(i * step).toFixed(1), (HEIGHT * (1 - value)).toFixed(1)]);
  const [x, y] = points[points.length - 1];
  return make("g", { "data-method": run.method },
    make("title", {}, `${label(run)}: ${(100 * evaluated[evaluated.length - 1][1]).toFixed(1)} %`),
    make("polyline", { class: colour(run.method), points: points.map((point) => point.join(",")).join(" ") }),
    make("circle", { class: colour(run.method).split(" ")[0], cx: x, cy: y, r: 2.5 }));
}

function chart(domain, shownRuns) {
  const rounds = Math.max(...shownRuns.map((run) => run.rounds));
  const picture = make("svg", { viewBox: `-26 -8 ${WIDTH + 32} ${HEIGHT + 22}`, role: "img", "aria-label": `Accuracy on ${domain} over rounds` });
  for (const percent of [0, 25, 50, 75, 100]) {
    const y = HEIGHT * (1 - percent / 100);
    picture.append(make("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y }), make("text", { x: -5, y: y + 3, "text-anchor": "end" }, String(percent)));
  }
  picture.append(make("text", { x: 0, y: HEIGHT + 13 }, "round 1"), make("text", { x: WIDTH, y: HEIGHT + 13, "text-anchor": "end" }, String(rounds)));
  picture.append(...shownRuns.map((run) => curve(run, domain, rounds)));
  return make("figure", {}, picture, make("figcaption", {}, `${domain} unseen (%)`));
}

function key(method) {
  const line = make("svg", { viewBox: "0 0 26 6", "aria-hidden": "true" }, make("polyline", { class: colour(method), points: "0,3 26,3" }));
  const button = make("button", { type: "button", "aria-pressed": "false", "data-method": method }, line, method);
  button.addEventListener("click", () => { chosen = chosen === method ? null : method; highlight(); });
  return button;
}

function highlight() {
  if (!methods.includes(chosen)) chosen = null;
  for (const button of at("key").children) button.setAttribute("aria-pressed", String(button.dataset.method === chosen));
  for (const line of at("charts").querySelectorAll("g")) line.classList.toggle("faint", chosen !== null && line.dataset.method !== chosen);
}

function show(state) {
  methods = state.methods;
  document.title = state.runs.length ? `${state.counts.done}/${state.runs.length} runs: ${state.name}` : `fedbeyond: ${state.name}`;
  write("name", state.name);
  write("version", state.version);
  write("summary", summary(state));
  write("rounds", `${state.rounds.done} of ${state.rounds.total}`);
  at("bar").max = Math.max(state.rounds.total, 1);
  at("bar").value = state.rounds.done;
  write("last-change", state.age === null || state.finished ? "" : `Last round ${ago(state.age)}.`);
  at("report").hidden = !state.report;

  const failures = state.runs.filter((run) => run.state === "failed");
  at("failed").hidden = !failures.length;
  rebuild("failures", failures, () => failures.map((run) => make("li", {}, `${label(run)}, after ${run.rounds_done} of ${run.rounds} rounds: `, make("span", { class: "reason" }, run.reason))));

  const started = state.runs.filter((run) => run.rounds_done > 0);
  const domains = [...new Set(started.flatMap((run) => Object.keys(run.curves)))].sort();
  at("curves").hidden = !started.length;
  rebuild("key", methods, () => methods.map(key));
  rebuild("charts", [methods, started.map((run) => [label(run), run.rounds, run.curves])],
    () => domains.map((domain) => chart(domain, started.filter((run) => run.curves[domain]))));
  highlight();

  at("all").hidden = !state.runs.length;
  rebuild("runs", state.runs.map((run) => [label(run), run.state, run.rounds_done, run.rounds, run.last]), () => state.runs.map(row));

  const rejected = state.rejected;
  at("rejected").hidden = !rejected.count;
  write("rejected-count", rejected.count > rejected.latest.length ? `The last ${rejected.latest.length} of ${rejected.count}.` : "");
  rebuild("replies", rejected.latest, () => rejected.latest.map((entry) => make("li", {}, `${label(entry)}, round ${entry.round}, ${entry.site}: ${entry.reason}`)));

  const ended = `${state.counts.done} of ${runs(state.runs.length)} done` + (state.counts.failed ? `, ${state.counts.failed} failed` : "");
  if (announced !== null && announced !== ended) write("announcement", ended); // announce ended runs, not rounds
  announced = ended;
}

let updated = new Date(), disconnected = false;
async function poll() {
  try {
    const reply = await fetch("/state.json", { signal: AbortSignal.timeout(10000) });
    if (!reply.ok) throw new Error(String(reply.status));
    show(await reply.json());
    updated = new Date();
    if (disconnected) write("announcement", "Connected to fedbeyond watch again.");
    disconnected = false;
    at("disconnected").hidden = true;
  } catch {
    write("disconnected", `No reply from “fedbeyond watch”: this page shows the state at ${updated.toLocaleTimeString()}. The runs do not need it; ` +
      `start it again with --port ${location.port}, and this page continues.`);
    at("disconnected").hidden = false;
    if (!disconnected) write("announcement", "No reply from fedbeyond watch.");
    disconnected = true;
  }
  setTimeout(poll, 2000);
}
poll();
