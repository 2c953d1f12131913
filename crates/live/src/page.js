// Draws the board that the server has, once a second, until the build is over. Everything that a build says goes into the
// page as text, never as markup.
"use strict";

const EVERY = 1000;
const LONGEST_LOG = 200_000;
const $ = (id) => document.getElementById(id);
const logs = new Map();
let misses = 0;
let hasReport = false;

function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

function span(seconds) {
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const number = (value, digits = 4) => Number(value.toPrecision(digits)).toLocaleString("en");

function stateWords(board) {
  const { all, ok, failed, not_counted, interrupted, running, waiting, queued } = board.counts;
  const left = board.left;
  if (board.state === "died") return "The build died without a word; `tprimat build` goes on where it was.";
  const { runs } = board;
  const measured = runs.all ? `${runs.ok} of ${runs.all} runs and ` : "";
  const blocked = board.counts.blocked ? `, ${board.counts.blocked} not run` : "";
  const uncounted = not_counted ? `, ${not_counted} ended well and not counted` : "";
  const stopped = interrupted ? `, ${interrupted} interrupted` : "";
  const done = `${measured}${ok} of ${all} tasks done${failed ? `, ${failed} failed` : ""}${uncounted}${stopped}${blocked}`;
  if (board.state === "ended") {
    const took = board.started_at && board.ended_at ? ` after ${span(board.ended_at - board.started_at)}` : "";
    return `Ended${took} with exit code ${board.exit_code}: ${done}.`;
  }
  const since = board.started_at === null ? "" : ` for ${span(board.now - board.started_at)}`;
  const parts = [`Running${since}: ${done}, ${running + waiting} running, ${queued} to come`];
  if (left.seconds !== null) {
    const unknown = left.runs_without_estimate;
    parts.push(`about ${span(left.seconds)} of measuring left${unknown ? `, and ${unknown} ${unknown === 1 ? "run" : "runs"} of unknown length` : ""}`);
  }
  return parts.join("; ") + ".";
}

function drawBar(board) {
  const states = ["ok", "running", "waiting", "failed", "not_counted", "blocked", "interrupted"];
  $("bar").replaceChildren(...states.filter((state) => board.counts[state]).map((state) => {
    const part = element("span", { className: state });
    part.style.width = `${(100 * board.counts[state]) / board.counts.all}%`;
    return part;
  }));
}

const SVG = "http://www.w3.org/2000/svg";

// One quantity, a line for each of `lines`: [{ x: [], y: [] }]. `show` writes a value with its unit.
function chart(title, lines, show, axis) {
  const drawn = lines.filter((line) => line.x.length > 1);
  if (!drawn.length) return null;
  const all = (key) => drawn.flatMap((line) => line[key]);
  const [x0, x1] = [Math.min(...all("x")), Math.max(...all("x"))];
  const [low, high] = [Math.min(...all("y")), Math.max(...all("y"))];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const now = drawn.map((line) => show(line.y[line.y.length - 1])).join(" · ");
  svg.setAttribute("aria-label", `${title}: ${now}; between ${show(low)} and ${show(high)}`);
  for (const line of drawn) {
    const points = line.x.map((x, i) =>
      `${((x - x0) / (x1 - x0 || 1)) * 100},${95 - ((line.y[i] - low) / (high - low || 1)) * 90}`);
    const poly = document.createElementNS(SVG, "polyline");
    poly.setAttribute("points", points.join(" "));
    svg.append(poly);
  }
  return element("figure", {},
    element("figcaption", {}, title, element("b", {}, now)), svg,
    element("div", { className: "axis", ariaHidden: "true" },
      element("span", {}, axis(x0)), element("span", {}, `${show(low)} – ${show(high)}`), element("span", {}, axis(x1))));
}

function drawRun(run, board) {
  const known = document.querySelector(`.run[data-task="${CSS.escape(run.task)}"]`);
  const card = known ?? element("article", { className: "run" },
    element("h3", {}, run.task), element("p"), element("progress", { max: 1 }), element("div", { className: "charts" }), logOf(run.task));
  card.dataset.task = run.task;
  const step = run.step === null ? "" : `step ${run.step}${run.steps_total ? ` of ${run.steps_total}` : ""}`;
  const left = run.seconds_left === null ? "" : `${span(run.seconds_left)} left`;
  const waits = run.waiting_for ? `waits for ${run.waiting_for}` : step || "started, no step yet";
  card.querySelector("p").textContent = [waits, left, `${span(board.now - run.since)} so far`].filter(Boolean).join(" · ");
  const bar = card.querySelector("progress");
  bar.hidden = !run.steps_total;
  bar.ariaLabel = `steps of ${run.task}`;
  if (run.steps_total) bar.value = run.step / run.steps_total;
  const steps = (x) => `step ${x}`;
  const seconds = (x) => span(x);
  const gpus = (key) => run.devices.map((device) => device[key]);
  const charts = [
    chart("loss", [run.loss], (v) => number(v), steps),
    chart("tokens/s, all devices", [run.tokens_per_second], (v) => number(v), steps),
    chart("step time", [run.step_time], (v) => (v < 1 ? `${number(v * 1000)} ms` : `${number(v)} s`), steps),
    chart("power", gpus("power_watts"), (v) => `${number(v, 3)} W`, seconds),
    chart("memory in use", gpus("memory_bytes"), (v) => `${number(v / 2 ** 30, 3)} GiB`, seconds),
    chart("clock", gpus("clock_hz"), (v) => `${number(v / 1e6, 4)} MHz`, seconds),
    chart("temperature", gpus("temperature_celsius"), (v) => `${number(v, 3)} °C`, seconds),
  ];
  card.querySelector(".charts").replaceChildren(...charts.filter(Boolean));
  return card;
}

function logOf(task) {
  const pre = element("pre", { tabIndex: 0, ariaLabel: `log of ${task}` });
  const details = element("details", {}, element("summary", {}, "log"), pre);
  details.addEventListener("toggle", () => {
    if (details.open) {
      logs.set(task, logs.get(task) ?? { next: 0, pre });
      readLog(task);
    } else logs.delete(task);
  });
  return details;
}

async function readLog(task) {
  const log = logs.get(task);
  if (!log || log.busy) return;
  log.busy = true;
  try {
    const answer = await fetch(`log?task=${encodeURIComponent(task)}&from=${log.next}`);
    if (!answer.ok) return;
    const part = await answer.json();
    const atEnd = log.pre.scrollTop + log.pre.clientHeight >= log.pre.scrollHeight - 20;
    if (part.from > log.next) log.pre.append(`\n… ${part.from - log.next} bytes left out …\n`);
    log.pre.append(part.text);
    if (log.pre.textContent.length > LONGEST_LOG) log.pre.textContent = log.pre.textContent.slice(-LONGEST_LOG / 2);
    log.next = part.next;
    if (atEnd) log.pre.scrollTop = log.pre.scrollHeight;
  } finally {
    log.busy = false;
  }
}

function drawTasks(board) {
  const rows = new Map();
  for (const task of board.tasks) {
    const [kind, name = ""] = task.name.split(/ (.*)/s);
    const [cell, repeat] = name.split("#");
    if (!rows.has(cell)) rows.set(cell, []);
    rows.get(cell).push({ ...task, kind, repeat: Number(repeat ?? 0), label: repeat ? `${kind} #${repeat}` : kind });
  }
  const order = ["render", "train", "parse", "aggregate"];
  const place = (task) => order.indexOf(task.kind) + (task.kind === "parse" ? -1 : 0);
  for (const tasks of rows.values()) tasks.sort((a, b) => place(a) - place(b) || a.repeat - b.repeat || order.indexOf(a.kind) - order.indexOf(b.kind));
  const waits = new Map(board.running.map((run) => [run.task, run.waiting_for]));
  const now = (tasks) => {
    const active = tasks.filter((task) => ["running", "waiting"].includes(task.state));
    if (active.length) {
      return active.map((task) => `${task.label}: ${waits.get(task.name) ? `waits for ${waits.get(task.name)}` : "runs"}`).join("; ");
    }
    if (tasks.some((task) => ["failed", "blocked"].includes(task.state))) return "did not finish";
    if (tasks.some((task) => task.state === "interrupted")) return "interrupted";
    if (tasks.some((task) => task.state === "not_counted")) return "does not count";
    if (tasks.every((task) => task.state === "ok")) return "done";
    return board.state === "running" ? "to come" : "not run";
  };
  $("tasks").querySelector("tbody").replaceChildren(...[...rows].map(([cell, tasks]) =>
    element("tr", {},
      element("th", { scope: "row" }, cell),
      element("td", {}, element("div", { className: "chips" }, ...tasks.map((task) =>
        element("span", { className: `chip ${task.state}`, title: task.reason ?? "" },
          `${task.label}: ${task.state.replace("_", " ")}${task.seconds >= 0.5 ? ` ${span(task.seconds)}` : ""}`)))),
      element("td", {}, now(tasks)))));
  $("more").hidden = !board.tasks_left_out;
  $("more").textContent = `${board.tasks_left_out} more tasks are not listed.`;
}

function list(id, items) {
  $(id).hidden = !items.length;
  $(id).querySelector("ul").replaceChildren(...items);
}

function draw(board) {
  const words = stateWords(board);
  if ($("state").textContent !== words) $("state").textContent = words;
  $("state").className = board.state === "died" || board.exit_code > 0 ? "bad" : "";
  const title = `tprimat ${board.arguments.join(" ")}`;
  $("title").textContent = title;
  document.title = `${board.counts.ok}/${board.counts.all} ${title}`;
  drawBar(board);
  list("failures", board.failed.map((failure) => element("li", {},
    element("b", {}, `${failure.task}${failure.class ? ` (${failure.class})` : ""}`),
    ...(failure.evidence.length ? [element("pre", { tabIndex: 0 }, failure.evidence.join("\n"))] : []),
    ...(failure.what_to_do ? [element("p", {}, `What to do: ${failure.what_to_do}.`)] : []))));
  list("notes", board.notes.map((note) => element("li", {}, note)));
  const holder = $("runs").querySelector("div");
  const cards = board.running.map((run) => drawRun(run, board));
  // A card that stays where it is keeps its open log and the reader's place in it.
  // The log of one that goes is not asked for any more.
  for (const card of [...holder.children]) {
    if (cards.includes(card)) continue;
    logs.delete(card.dataset.task);
    card.remove();
  }
  for (const card of cards) if (!card.isConnected) holder.append(card);
  $("runs").hidden = !cards.length;
  drawTasks(board);
  if (board.has_report && board.state === "ended" && !hasReport) {
    hasReport = true;
    $("report").hidden = false;
    $("report").append(element("iframe", { src: "report", title: "report of the build" }));
    $("failures").after($("report"));
  }
}

async function look() {
  let isOver = false;
  try {
    const board = await (await fetch("board")).json();
    misses = 0;
    draw(board);
    isOver = board.state !== "running";
    await Promise.all([...logs.keys()].map(readLog));
  } catch {
    misses += 1;
    if (misses > 2) {
      $("state").textContent = "`tprimat watch` has ended, or the tunnel to it is closed. What follows is the last that was seen.";
      $("state").className = "bad";
    }
  }
  setTimeout(look, isOver ? 5 * EVERY : EVERY);
}

look();
