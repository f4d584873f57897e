// One page kept fresh: parts that changed are replaced, charts are drawn from buckets the server makes.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 210;
const PAD = { left: 52, right: 10, top: 8, bottom: 22 };
const COLOURS = 8;
const main = document.querySelector("main");
const copies = document.querySelector("#copies"); // checked: each attempt has a curve of its own
const charts = new Map(); // figure -> the chart last read

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

export function html(name, className, text, parent) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

// ---------------------------------------------------------------- numbers and times

function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].find((one) => one * power >= raw) * power;
  const found = [];
  for (let n = Math.ceil(low / unit); n * unit <= high + unit * 1e-9; n++) found.push(n * unit); // a sum would miss 0
  return found;
}

export function short(value, digits = 2) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e15)) return value.toExponential(digits - 1);
  const unit = Math.max(4, digits);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(unit)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(unit)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(unit)}k`;
  return String(+value.toPrecision(Math.max(6, digits)));
}

// The labels of an axis, with as many digits as tell each from its neighbours.
export function labels(values) {
  const gap = Math.min(...values.slice(1).map((value, at) => Math.abs(value - values[at])));
  let digits = 2;
  while (digits < 15 && values.some((value) => Math.abs(+value.toPrecision(digits) - value) > gap / 100)) digits++;
  return values.map((value) => short(value, digits));
}

function ago(ms) {
  const seconds = Math.max(0, (Date.now() - ms) / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(ms).toLocaleDateString();
}

function showTimes() {
  for (const time of document.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms);
    const text = ago(ms);
    if (time.textContent === text) continue;
    time.textContent = text;
    if (!time.dateTime) {
      time.dateTime = new Date(ms).toISOString();
      time.title = new Date(ms).toLocaleString();
    }
  }
}

// ---------------------------------------------------------------- charts

function marks() {
  return [...document.querySelectorAll(".annotations li[data-step]")]
    .filter((note) => note.dataset.kind !== "note")
    .map((note) => ({ step: Number(note.dataset.step), kind: note.dataset.kind, text: note.dataset.text }));
}

function label({ metadata, attempt }) {
  const parts = Object.entries(metadata).map(([key, value]) => `${key} ${value}`);
  return [...parts, ...(attempt ? [`attempt ${attempt}`] : [])].join(" · ");
}

function extent(chart) {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const { first, step, min, max } of chart.partitions) {
    left = Math.min(left, first);
    right = Math.max(right, step[step.length - 1]);
    for (const value of min) low = Math.min(low, value);
    for (const value of max) high = Math.max(high, value);
  }
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.5, high + (Math.abs(high) || 1) * 0.5];
  if (left === right) [left, right] = [left - 1, right + 1];
  return { left, right, low: low - (high - low) * 0.04, high: high + (high - low) * 0.04 };
}

function draw(figure, chart) {
  if (!chart.partitions.length) {
    figure.replaceChildren(figure.querySelector("figcaption"));
    html("p", "empty", "no point has a step", figure);
    return;
  }
  const width = figure.clientWidth - 32;
  const { left, right, low, high } = extent(chart);
  const x = (step) => PAD.left + ((step - left) / (right - left)) * (width - PAD.left - PAD.right);
  const y = (value) => HEIGHT - PAD.bottom - ((value - low) / (high - low)) * (HEIGHT - PAD.bottom - PAD.top);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", chart.metric);
  drawAxes(svg, { left, right, low, high, x, y, width });
  drawMarks(svg, { left, right, x });
  chart.partitions.forEach((partition, index) => drawCurve(svg, partition, `var(--c${index % COLOURS})`, x, y));
  figure.replaceChildren(figure.querySelector("figcaption"), svg);
  drawLegend(figure, chart);
  follow(figure, svg, chart, { x, y, width });
}

function drawAxes(svg, { left, right, low, high, x, y, width }) {
  const values = ticks(low, high, 4);
  labels(values).forEach((label, at) => {
    const value = values[at];
    element("line", { class: "axis", x1: PAD.left, x2: width - PAD.right, y1: y(value), y2: y(value) }, svg);
    const text = element("text", { class: "tick", x: PAD.left - 8, y: y(value) + 4, "text-anchor": "end" }, svg);
    text.textContent = label;
  });
  const steps = ticks(left, right, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
  labels(steps).forEach((label, at) => {
    const step = steps[at];
    const text = element("text", { class: "tick", x: x(step), y: HEIGHT - 4, "text-anchor": "middle" }, svg);
    text.textContent = label;
  });
}

function drawMarks(svg, { left, right, x }) {
  for (const { step, kind, text } of marks()) {
    if (step < left || step > right) continue;
    const top = kind === "checkpoint" ? HEIGHT - PAD.bottom - 5 : PAD.top;
    const line = element("line", { class: `mark ${kind}`, x1: x(step), x2: x(step), y1: top, y2: HEIGHT - PAD.bottom }, svg);
    element("title", {}, line).textContent = `${text} (step ${step})`;
  }
}

function drawCurve(svg, { step, min, max, last }, colour, x, y) {
  const at = step.map((one) => x(one).toFixed(1));
  const point = (values) => (_, index) => `${at[index]},${y(values[index]).toFixed(1)}`;
  if (min.some((value, index) => value !== max[index])) {
    const there = step.map(point(max));
    const back = step.map(point(min)).reverse();
    const band = element("polygon", { class: "band", points: [...there, ...back].join(" ") }, svg);
    band.style.fill = band.style.stroke = colour;
  }
  const attributes = step.length === 1 ? { cx: at[0], cy: y(last[0]), r: 2.5 } : { class: "curve", points: step.map(point(last)).join(" ") };
  const curve = element(step.length === 1 ? "circle" : "polyline", attributes, svg);
  curve.style[step.length === 1 ? "fill" : "stroke"] = colour;
}

function drawLegend(figure, chart) {
  const legend = html("div", "legend", "", figure);
  chart.partitions.forEach((partition, index) => {
    const text = label(partition);
    if (!text && chart.partitions.length === 1) return;
    const item = html("span", "", "", legend);
    html("i", "", "", item).style.background = `var(--c${index % COLOURS})`;
    item.append(text || "no metadata");
  });
  const more = chart.partitionCount - chart.partitions.length;
  if (more > 0) html("span", "", `and ${more} more`, legend);
}

export function nearest(steps, step) {
  let [first, last] = [0, steps.length - 1];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (steps[middle] < step) first = middle + 1;
    else last = middle;
  }
  return first > 0 && step - steps[first - 1] < steps[first] - step ? first - 1 : first;
}

// A line under the pointer, with the values of every partition at the nearest step.
function follow(figure, svg, chart, { x, width }) {
  const cross = element("line", { class: "cross", y1: PAD.top, y2: HEIGHT - PAD.bottom, visibility: "hidden" }, svg);
  const tip = html("div", "tip", "", figure);
  tip.hidden = true;
  const { left, right } = extent(chart);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const inner = width - PAD.left - PAD.right;
    const wanted = left + ((event.clientX - box.left - PAD.left) / inner) * (right - left);
    const found = chart.partitions.map((one) => ({ one, at: nearest(one.step, wanted) }));
    const step = found.map(({ one, at }) => one.step[at]).reduce((a, b) => (Math.abs(a - wanted) <= Math.abs(b - wanted) ? a : b));
    cross.setAttribute("x1", x(step));
    cross.setAttribute("x2", x(step));
    cross.setAttribute("visibility", "visible");
    tip.replaceChildren();
    html("div", "", `step ${step.toLocaleString("en")}`, tip);
    found.slice(0, 12).forEach(({ one, at }, index) => {
      if (one.step[at] !== step) return;
      const row = html("div", "", "", tip);
      html("i", "", "", row).style.background = `var(--c${index % COLOURS})`;
      html("span", "", label(one) || chart.metric, row);
      html("b", "", String(+one.last[at].toPrecision(6)), row);
    });
    tip.hidden = false;
    const side = x(step) > width / 2;
    tip.style.top = "40px";
    tip.style.left = side ? `${Math.max(0, x(step) + 4 - tip.offsetWidth)}px` : `${x(step) + 28}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
    cross.setAttribute("visibility", "hidden");
  });
}

async function readChart(figure) {
  const width = Math.max(100, Math.min(2000, figure.clientWidth - 32 - PAD.left - PAD.right));
  const query = new URLSearchParams({ metric: figure.dataset.metric, width, copies: copies?.checked ? "all" : "newest" });
  const response = await fetch(`/api/experiments/${main.dataset.experiment}/chart?${query}`);
  if (!response.ok) return;
  const chart = await response.json();
  charts.set(figure, chart);
  draw(figure, chart);
}

async function readCharts() {
  for (const figure of document.querySelectorAll("figure[data-metric]")) await readChart(figure);
}

// ---------------------------------------------------------------- keeping fresh

// What grows at its end is looked at there, unless somebody scrolled away from it.
function isAtEnd(box) {
  return box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
}

function scrollTo(box, place) {
  if (box) box.scrollTop = Math.min(place, box.scrollHeight);
}

function replaceParts(fresh) {
  let changed = false;
  for (const part of document.querySelectorAll("[data-live]")) {
    const now = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (!now || now.outerHTML === part.dataset.source) continue;
    const source = now.outerHTML;
    for (const open of part.querySelectorAll("details[open][id]")) now.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
    const places = [...part.querySelectorAll("[data-end]")].map((one) => [one.id, isAtEnd(one) ? Infinity : one.scrollTop]);
    part.replaceWith(now);
    for (const [id, place] of places) scrollTo(document.getElementById(id), place);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    now.dataset.source = source;
    changed = true;
  }
  if (copies) copies.parentElement.hidden = fresh.querySelector("#copies").parentElement.hidden;
  const grid = document.querySelector("#charts");
  if (!grid) return changed;
  const known = new Set([...document.querySelectorAll("figure[data-metric]")].map((figure) => figure.dataset.metric));
  for (const figure of fresh.querySelectorAll("figure[data-metric]")) if (!known.has(figure.dataset.metric)) grid.append(figure);
  return changed;
}

function revision() {
  return document.querySelector("[data-revision]")?.dataset.revision;
}

async function refresh() {
  const before = revision();
  const response = await fetch(location.href);
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  replaceParts(fresh);
  showTimes();
  if (revision() !== before) await readCharts();
  document.dispatchEvent(new CustomEvent("refreshed", { detail: fresh }));
}

// What a refresh costs is waited for ten times, so that a page never takes a server for itself.
async function keepFresh() {
  for (;;) {
    const began = performance.now();
    if (!document.hidden) await refresh().catch(() => {});
    const spent = performance.now() - began;
    await new Promise((resolve) => setTimeout(resolve, Math.max(Number(main.dataset.poll), 10 * spent)));
  }
}

copies?.addEventListener("change", readCharts);
let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => charts.forEach((chart, figure) => draw(figure, chart)), 100);
});
showTimes();
for (const box of document.querySelectorAll("[data-end]")) scrollTo(box, Infinity);
setInterval(showTimes, 1000);
if (main.dataset.experiment) readCharts();
if (main.dataset.poll) keepFresh();
