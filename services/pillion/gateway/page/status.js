"use strict";

const KEY = "pillion-key"; // in the session storage, as the chat page keeps it
const EVERY = 1000; // ms between two looks
const PATIENCE = 5000; // ms for an answer
const PLACES = ["v1/status", "admin/v1/status"]; // for a user's key, and for an administrator's

const at = (id) => document.getElementById(id);
const sum = (values) => values.reduce((all, value) => all + value, 0);

let place = 0; // which of PLACES answers
let paused = false;
let timer = null;
const queued = Array(60).fill(0); // requests in the queue, at each look

// --- words

const whole = (value) => Math.round(value).toLocaleString("en");
const time = (seconds) =>
  seconds == null ? "–" : seconds < 0.0995 ? `${+(seconds * 1000).toPrecision(2)} ms`
  : seconds < 0.9995 ? `${Math.round(seconds * 1000)} ms` : seconds < 99.5 ? `${seconds.toPrecision(3)} s` : `${whole(seconds)} s`;
const long = (seconds) =>
  seconds < 120 ? `${whole(seconds)} s` : seconds < 7200 ? `${whole(seconds / 60)} min`
  : seconds < 172800 ? `${whole(seconds / 3600)} h` : `${whole(seconds / 86400)} days`;
const share = (value) => `${Math.round(100 * value)} %`;
const rate = (column) => sum(column.slice(-5)) / 5;

// --- parts of the page

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function draw(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** A chart without text, which stretches; `says` is what it shows in words. */
function chart(width, height, says, parts, kind = "") {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": says });
  svg.append(...parts);
  return make("div", { class: `chart ${kind}` }, svg);
}

const path = (kind, d) => draw("path", { class: kind, d });
const level = (kind, y, width) => path(`line ${kind}`, `M0 ${y}H${width}`);

/** A line through the values; null breaks it. */
function line(kind, values, height, most) {
  let pen = "M";
  let d = "";
  values.forEach((value, x) => {
    if (value == null) return (pen = "M");
    d += `${pen}${x} ${(height - (height * Math.min(value, most)) / most).toFixed(2)}`;
    pen = "L";
  });
  return path(`line ${kind}`, d);
}

/** Columns, one upon the other: `layers` has pairs of kind and values. */
function columns(layers, height, most) {
  const base = layers[0][1].map(() => height);
  return layers.map(([kind, values]) =>
    path(kind, values.map((value, x) => {
      const tall = (height * value) / most;
      return tall > 0 ? `M${x + 0.08} ${base[x].toFixed(2)}v${-tall.toFixed(2)}h.84v${tall.toFixed(2)}z${((base[x] -= tall), "")}` : "";
    }).join("")));
}

function tile(name, figure, unit, what, spark = null, wrong = false) {
  const made = make("div", { class: wrong ? "tile wrong" : "tile" },
    make("h2", { class: "what" }, name),
    make("p", { class: "figure" }, figure, make("span", { class: "unit" }, unit && ` ${unit}`)),
    make("p", { class: "what" }, what));
  if (spark) made.append(spark);
  return made;
}

const spark = (kind, values, says) =>
  chart(values.length, 20, says, columns([[kind, values]], 20, Math.max(...values) || 1));

const fact = (name, value, title) => make("div", { title }, make("dt", {}, name), make("dd", {}, value));

const scale = (...labels) => make("div", { class: "scale" }, ...labels.map((label) => make("span", {}, label)));

const plot = (name, drawn, ...labels) =>
  make("div", {}, make("p", { class: "what" }, name), make("div", { class: "plot" }, drawn, scale(...labels)));

// --- what is shown

function header({ ready, reason, message, gateway, stack, at: now }) {
  const word = ready ? "ready" : reason || "not ready";
  at("verdict").firstElementChild.className = `state ${ready ? "ready" : "gone"}`;
  if (at("verdict").textContent !== word) at("verdict").firstElementChild.textContent = word;
  at("about").textContent =
    `${message && !ready ? `${message} ` : ""}Stack ${stack.name}: ${stack.ready} of ${stack.replicas} ` +
    `replica${stack.replicas === 1 ? "" : "s"} ready. Gateway ${gateway.id.slice(0, 8)}, release ${gateway.version}, ` +
    `up for ${long(now - gateway.started)}.`;
}

function tiles({ stack, queue, latency }) {
  const { prefill, decode, running } = stack.minute;
  const { tbt, ttft } = latency;
  const waits = queue ? sum(Object.values(queue.waiting)) : null;
  queued.push(waits ?? 0);
  queued.shift();
  const levels = queue ? Object.entries(queue.waiting).map(([name, count]) => `${count} ${name}`).join(", ") : "admission says nothing";
  const aim = (target) => (target == null ? "no target" : `target ${time(target)}`);
  const over = ({ p99, target }) => target != null && p99 > target;
  at("tiles").replaceChildren(
    tile("Decode", whole(rate(decode)), "tokens/s", "of the whole stack", spark("decode", decode, "decode tokens a second, last minute")),
    tile("Prefill", whole(rate(prefill)), "tokens/s", "of the whole stack", spark("prefill", prefill, "prefill tokens a second, last minute")),
    tile("Running", whole(stack.running), "sequences", `${whole(stack.waiting)} wait at replicas`, spark("decode", running, "running sequences, last minute")),
    tile("Queue", waits == null ? "–" : whole(waits), "requests", levels, spark("prefill", queued, "requests in the queue, last looks")),
    tile("TBT, P99", time(tbt.p99), "", aim(tbt.target), spark("decode", tbt.worsts, "longest time between tokens in each second"), over(tbt)),
    tile("TTFT, P99", time(ttft.p99), "", aim(ttft.target), spark("decode", ttft.worsts, "longest time to a first token in each second"), over(ttft)),
  );
}

function heat({ tbt, ttft }) {
  const tails = (name, { count, p50, p90, p99, worst }) =>
    `${name} of ${whole(count)}: P50 ${time(p50)}, P90 ${time(p90)}, P99 ${time(p99)}, worst ${time(worst)}`;
  at("tails").textContent = `${tails("TBT", tbt)}. ${tails("TTFT", ttft)}.`;
  const { bounds, counts } = tbt.heat;
  const rows = bounds.length;
  if (!rows) {
    at("heat").replaceChildren(make("p", { class: "none" }, "No token came in the last minute."));
    return;
  }
  const most = Math.max(...counts.flat());
  const cells = counts.flatMap((column, x) => column.map((count, row) => count && draw("rect", {
    class: "decode", x: x + 0.04, y: rows - 1 - row + 0.06, width: 0.92, height: 0.88,
    "fill-opacity": (0.15 + 0.85 * Math.sqrt(count / most)).toFixed(2),
  })).filter(Boolean));
  if (tbt.target != null) {
    const down = 2 * Math.log2(bounds.at(-1) / tbt.target); // two rows to a doubling
    if (down >= 0 && down <= rows) cells.push(level("target", down, counts.length));
  }
  const labels = scale(time(bounds.at(-1)), time(bounds[rows >> 1]), time(bounds[0]));
  const drawn = chart(counts.length, rows, `${tails("time between tokens", tbt)}; a column for each second`, cells, "tall");
  at("heat").replaceChildren(make("div", { class: "plot" }, drawn, labels));
}

function replica(each) {
  const { minute, blocks } = each;
  const seconds = minute.steps.length;
  const perStep = (kind) => minute[kind].map((value, x) => (minute.steps[x] ? value / minute.steps[x] : 0));
  const [decode, prefill] = [perStep("decode"), perStep("prefill")];
  const budget = minute.budget.map((value, x) => (minute.steps[x] ? value : null));
  const most = Math.max(16, ...decode.map((value, x) => value + prefill[x]), ...budget);
  const steps = minute.seconds.map((value, x) => (minute.steps[x] ? value / minute.steps[x] : null));
  const slowest = Math.max(...steps, 0);
  const tall = 1.15 * Math.max(slowest, each.target ?? 0, 0.001);
  const now = { steps: rate(minute.steps), tokens: rate(minute.decode) + rate(minute.prefill) };
  const mean = now.steps ? now.tokens / now.steps : 0;
  const total = Math.max(blocks.used + blocks.cached + blocks.free, 1);
  const bar = make("div", { class: "bar", role: "img", "aria-label": `KV blocks: ${share(blocks.used / total)} in use, ${share(blocks.cached / total)} cached` });
  for (const kind of ["used", "cached"]) {
    const part = make("div", { class: kind });
    part.style.width = `${(100 * blocks[kind]) / total}%`;
    bar.append(part);
  }
  const good = !each.reason;
  const composition = chart(seconds, 60,
    `tokens a step over the last minute; now ${whole(mean)}, budget ${whole(each.budget)}`,
    [level("base", 60, seconds), ...columns([["decode", decode], ["prefill", prefill]], 60, most), line("budget", budget, 60, most)]);
  const durations = chart(seconds - 1, 30, `step time over the last minute; the longest mean ${time(slowest)}`,
    [level("base", 30, seconds - 1), ...(each.target ? [level("target", 30 - (30 * each.target) / tall, seconds - 1)] : []), line("time", steps, 30, tall)], "low");
  return make("article", { class: "card" },
    make("div", { class: "head" },
      make("h3", {}, `Replica ${each.replica}`),
      make("p", { class: "what" }, [each.model, each.backend, each.dtype].filter(Boolean).join(" · ") || "no executor yet"),
      make("span", { class: `state ${good ? "ready" : ["draining", "unready"].includes(each.reason) ? "" : "gone"}` }, good ? "ready" : each.reason)),
    plot("Tokens a step", composition, whole(most), "0"),
    plot("Seconds a step", durations, time(tall), "0"),
    make("p", { class: "what" }, `KV: ${share(blocks.used / total)} in use, ${share(blocks.cached / total)} cached, of ${whole(total)} blocks`),
    bar,
    make("dl", {},
      fact("running", each.seats ? `${each.running} of ${each.seats}` : each.running, "sequences, of as many as keep the step target beside prompts"),
      fact("waiting", each.waiting, "sequences that wait at this replica"),
      fact("steps/s", now.steps.toFixed(1), "in the latest seconds"),
      fact("tokens/step", mean.toFixed(1), "decodes and prompts, in the latest seconds"),
      fact("budget", `${whole(each.budget)} of ${whole(each.most)}`, "tokens that the latest step could carry, of the most that one may"),
      fact("step target", time(each.target), "what a step with decodes may take, from --slo-tbt"),
      fact("to compute", whole(each.uncomputed), "prompt tokens that are here and not computed yet"),
      fact("preemptions", whole(each.preemptions), "since the scheduler started")));
}

function requests({ requests: all, running, latency: { tbt } }) {
  const whose = all.some((each) => "tenant" in each);
  at("count").textContent = running > all.length ? `the ${all.length} oldest of ${whole(running)} at this gateway` : `${running} at this gateway`;
  const names = ["request", ...(whose ? ["tenant"] : []), "replica", "age", "prompt", "output", "TTFT", "worst gap", "last token", "gaps"];
  const texts = new Set(["request", "tenant", "replica"]);
  at("columns").replaceChildren(...names.map((name) => make("th", { scope: "col", class: texts.has(name) ? "text" : "" }, name)));
  const rows = all.map((each) => {
    const late = tbt.target != null && each.worst_gap > tbt.target;
    const most = Math.max(1.3 * (tbt.target ?? 0), ...each.gaps, 0.001);
    const gaps = [...Array(60 - each.gaps.length).fill(0), ...each.gaps];
    const drawn = chart(60, 20, `gaps between its last tokens, at most ${time(Math.max(...each.gaps, 0))}`,
      [...columns([["decode", gaps]], 20, most), ...(tbt.target ? [level("target", 20 - (20 * tbt.target) / most, 60)] : [])]);
    const since = each.since == null ? "none yet" : `${time(each.since)} ago`;
    return make("tr", {},
      make("td", { class: "text id", title: each.id }, each.id.slice(0, 12)),
      ...(whose ? [make("td", { class: "text" }, each.tenant || "–")] : []),
      make("td", { class: "text" }, each.replica ?? "waits"),
      make("td", {}, time(each.age)),
      make("td", {}, each.cached_tokens ? `${whole(each.prompt_tokens)} (${whole(each.cached_tokens)} cached)` : whole(each.prompt_tokens)),
      make("td", {}, each.max_tokens ? `${whole(each.output_tokens)} of ${whole(each.max_tokens)}` : whole(each.output_tokens)),
      make("td", {}, time(each.ttft)),
      make("td", { class: late ? "over" : "" }, time(each.worst_gap)),
      make("td", {}, since),
      make("td", {}, drawn));
  });
  if (!rows.length) rows.push(make("tr", {}, make("td", { class: "none", colspan: names.length }, "None runs.")));
  at("rows").replaceChildren(...rows);
}

function show(told) {
  at("door").hidden = true;
  at("board").hidden = false;
  at("board").classList.remove("stale");
  header(told);
  tiles(told);
  heat(told.latency);
  const cards = [...told.replicas].sort((a, b) => a.replica.localeCompare(b.replica, "en", { numeric: true })).map(replica);
  const more = told.stack.replicas - cards.length;
  if (more > 0) cards.push(make("p", { class: "card none" }, `and ${whole(more)} more replicas`));
  at("replicas").replaceChildren(...cards);
  requests(told);
}

// --- the server

async function ask() {
  const key = sessionStorage.getItem(KEY);
  const options = { headers: key ? { Authorization: `Bearer ${key}` } : {}, signal: AbortSignal.timeout(PATIENCE) };
  for (let tries = 0; tries < PLACES.length; tries++) {
    const response = await fetch(PLACES[place], options);
    if (response.ok) return response.json();
    if (![401, 404].includes(response.status)) throw new Error(`${response.status} ${response.statusText}`);
    if (!key) return null;
    place = (place + 1) % PLACES.length;
  }
  return null;
}

async function look() {
  clearTimeout(timer);
  try {
    const told = await ask();
    if (!told) return closed();
    show(told);
  } catch (error) {
    console.debug(error);
    at("verdict").firstElementChild.className = "state gone";
    at("verdict").firstElementChild.textContent = "no answer, asks again";
    at("board").classList.add("stale");
  }
  if (!paused) timer = setTimeout(look, EVERY);
}

function closed() {
  at("board").hidden = true;
  at("door").hidden = false;
  at("verdict").firstElementChild.textContent = "wants a key";
  at("refused").textContent = sessionStorage.getItem(KEY) ? "This key is not one of this server's." : "";
  sessionStorage.removeItem(KEY);
  at("key").focus();
}

at("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value);
  at("key").value = "";
  look();
});
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", paused);
  at("pause").textContent = paused ? "Go on" : "Pause";
  if (paused) clearTimeout(timer);
  else look();
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && !paused && at("door").hidden) look();
});
look();
