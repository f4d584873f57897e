// The Telemetry tab: panels drawn by uPlot from buckets the server makes, those that are looked at.

import { html, labels, nearest, short } from "./page.js";

const HEIGHT = 220;
const AT_ONCE = 16; // so many panels the server draws for one request
const HUGE = 8e307; // what lies farther out is drawn there: distances stay numbers
const grid = document.querySelector("#panels");
const shown = new Map(); // figure -> what is drawn in it, of which points, and what is looked at

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// ---------------------------------------------------------------- from buckets to what uPlot draws

// Every bucket gives its lowest, highest and last value at one x, so that a spike is a stroke. A null between two
// buckets breaks the line there; where another line's x lies, undefined does not.
function entriesOf(line, place) {
  const breaks = new Set(line.breaks);
  const entries = [];
  line.x.forEach((x, at) => {
    if (breaks.has(at)) entries.push({ x: line.x[at - 1] / 2 + x / 2, place, value: null });
    if (line.min[at] !== line.max[at]) entries.push({ x, place, value: line.min[at] }, { x, place, value: line.max[at] });
    const next = at + 1 === line.x.length || breaks.has(at + 1);
    entries.push({ x, place, value: line.last[at], lone: next && (at === 0 || breaks.has(at)) });
  });
  return entries;
}

function fit(value) {
  return Math.max(-HUGE, Math.min(HUGE, value));
}

function tableOf(panel) {
  const entries = panel.lines.flatMap(entriesOf).sort((a, b) => a.x - b.x);
  const columns = [entries.map((one) => fit(one.x)), ...panel.lines.map(() => new Array(entries.length))];
  const lone = panel.lines.map(() => []);
  entries.forEach((one, row) => {
    columns[one.place + 1][row] = one.value === null ? null : fit(one.value);
    if (one.lone) lone[one.place].push(row);
  });
  return { columns, lone };
}

// ---------------------------------------------------------------- axes

function decades(least, most) {
  const low = Math.max(10 ** Math.floor(Math.log10(least)), 1e-300);
  const high = Math.min(10 ** Math.ceil(Math.log10(most)), 1e300);
  return low < high ? [low, high] : [low / 10, low * 10];
}

function yRange(panel, low, high) {
  const log = panel.scale === "log";
  const ends = [low, high, panel.rule].filter((one) => one !== null && one !== undefined && (!log || one > 0));
  const [least, most] = ends.length ? [Math.min(...ends), Math.max(...ends)] : log ? [1, 10] : [0, 1];
  const pad = most > least ? 0.05 * (most / 2 - least / 2) * 2 : Math.abs(most) * 0.1 || 1;
  const fitted = log ? decades(least, most) : [fit(least - pad), fit(most + pad)];
  const bounds = [panel.min ?? fitted[0], panel.max ?? fitted[1]];
  if (bounds[0] < bounds[1]) return bounds;
  // One bound is given, and every point lies beyond it.
  const room = Math.abs(bounds[0]) || 1;
  return panel.min === null ? [log ? bounds[1] / 10 : bounds[1] - room, bounds[1]] : [bounds[0], log ? bounds[0] * 10 : bounds[0] + room];
}

function xRange(figure, low, high) {
  const { window } = shown.get(figure);
  if (window) return window;
  if (low === null || low === undefined) return [0, 1];
  return low === high ? [low - 1, high + 1] : [fit(low), fit(high)];
}

function axis(more) {
  return {
    stroke: colour("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
    values: (_, splits) => {
      const shown = labels(splits.filter((one) => one !== null));
      return splits.map((one) => (one === null ? "" : shown.shift()));
    },
    ...more,
  };
}

// What the longest label needs; a figure of this font is at most 7 pixels wide.
function yWidth(shown) {
  return Math.max(56, 14 + 7 * Math.max(...(shown ?? [""]).map((label) => label.length)));
}

// ---------------------------------------------------------------- drawing

function across(plot, value, scale, style, text) {
  const { ctx, bbox } = plot;
  const { min, max } = plot.scales[scale];
  if (!(value >= min && value <= max)) return;
  const at = Math.round(plot.valToPos(value, scale, true));
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = style;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(scale === "y" ? bbox.left : at, scale === "y" ? at : bbox.top);
  ctx.lineTo(scale === "y" ? bbox.left + bbox.width : at, scale === "y" ? at : bbox.top + bbox.height);
  ctx.stroke();
  if (text) {
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "right";
    ctx.fillText(text, bbox.left + bbox.width - 4, at - 4 * devicePixelRatio);
  }
  ctx.restore();
}

function drawMarks(plot, panel) {
  if (panel.rule !== null) across(plot, panel.rule, "y", colour("--error"), short(panel.rule));
  for (const { x } of panel.attempts) across(plot, x, "x", colour("--resume"));
}

function optionsOf(figure, panel, lone, width) {
  const log = panel.scale === "log";
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { setScale: false }, points: { show: false }, y: false },
    scales: {
      x: { time: false, range: (_, low, high) => xRange(figure, low, high) },
      y: { distr: log ? 3 : 1, range: (_, low, high) => yRange(panel, low, high) },
    },
    axes: [axis({ space: 70, size: 28 }), axis({ space: log ? 24 : 34, size: (_, shown) => yWidth(shown) })],
    series: [
      {},
      ...panel.lines.map((line, place) => ({
        label: line.key,
        stroke: colour(`--c${place}`),
        width: 1.5,
        points: {
          size: 5,
          fill: colour(`--c${place}`),
          show: () => line.x.length * 12 < width,
          filter: (_, __, show) => (show ? null : lone[place]),
        },
      })),
    ],
    hooks: {
      draw: [(plot) => drawMarks(plot, panel)],
      setCursor: [(plot) => showTip(figure, plot, panel)],
      setSelect: [(plot) => zoom(figure, plot)],
    },
  };
}

function draw(figure) {
  const state = shown.get(figure);
  const { panel } = state;
  const place = figure.querySelector(".plot");
  state.plot?.destroy();
  state.plot = null;
  showNotes(figure, panel);
  if (!panel.lines.some((line) => line.points > 0)) return;
  const { columns, lone } = tableOf(panel);
  place.replaceChildren();
  place.tabIndex = 0;
  place.setAttribute("role", "application");
  place.setAttribute("aria-roledescription", "chart; arrow keys read values, + and - look closer, Escape shows all");
  place.setAttribute("aria-label", `${panel.lines.map((line) => line.key).join(", ")} against ${panel.x ?? "the point's place in the run"}`);
  state.plot = new uPlot(optionsOf(figure, panel, lone, place.clientWidth), columns, place);
  state.plot.over.addEventListener("dblclick", () => look(figure, null));
  state.tip = html("div", "tip", "", place);
  state.tip.setAttribute("role", "status");
  state.tip.hidden = true;
  if (state.cursor !== null) point(figure, state.cursor);
}

function count(number, what) {
  return `${number.toLocaleString("en")} ${number === 1 ? "point" : "points"} of ${what}`;
}

function showNotes(figure, panel) {
  const notes = figure.querySelector(".notes");
  const texts = panel.lines.flatMap((line) => [
    ...(line.without_x ? [`${count(line.without_x, line.key)} without ${panel.x} left off`] : []),
    ...(line.hidden ? [`${count(line.hidden, line.key)} at or below 0 hidden: the axis is logarithmic`] : []),
  ]);
  if (texts.join() === [...notes.children].map((one) => one.textContent).join()) return;
  notes.replaceChildren();
  for (const text of texts) html("li", "", text, notes);
}

// The values of every line at the bucket nearest to the pointer.
function showTip(figure, plot, panel) {
  const { tip } = shown.get(figure);
  const { left } = plot.cursor;
  if (!tip) return;
  tip.hidden = !(left >= 0);
  if (tip.hidden) return;
  const wanted = plot.posToVal(left, "x");
  const found = panel.lines.filter((line) => line.x.length).map((line) => ({ line, at: nearest(line.x, wanted) }));
  if (!found.length) return;
  const x = found.map(({ line, at }) => line.x[at]).reduce((a, b) => (Math.abs(a - wanted) <= Math.abs(b - wanted) ? a : b));
  tip.replaceChildren();
  html("div", "", `${panel.x ?? "point"} ${x.toLocaleString("en", { maximumSignificantDigits: 15 })}`, tip);
  for (const { line, at } of found) {
    if (line.x[at] !== x) continue;
    const row = html("div", "", "", tip);
    html("i", `c${panel.lines.indexOf(line)}`, "", row);
    html("span", "", line.key, row);
    const spread = line.min[at] === line.max[at] ? "" : ` (${short(line.min[at])} to ${short(line.max[at])})`;
    html("b", "", `${+line.last[at].toPrecision(6)}${spread}`, row);
  }
  const right = left > plot.over.clientWidth / 2;
  tip.style.top = "8px";
  tip.style.left = `${Math.max(0, plot.over.offsetLeft + left + (right ? -tip.offsetWidth - 12 : 12))}px`;
}

// ---------------------------------------------------------------- by keyboard

// The pointer put at a value along x, as an arrow key does it.
function point(figure, x) {
  const { plot } = shown.get(figure);
  plot.setCursor({ left: plot.valToPos(x, "x"), top: 0 });
}

function step(figure, by) {
  const state = shown.get(figure);
  const places = [...new Set(state.panel.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  if (!places.length) return;
  const at = state.cursor === null ? (by > 0 ? 0 : places.length - 1) : nearest(places, state.cursor) + by;
  state.cursor = places[Math.max(0, Math.min(places.length - 1, at))];
  point(figure, state.cursor);
}

function closer(figure, by) {
  const state = shown.get(figure);
  const { min, max } = state.plot.scales.x;
  const middle = state.cursor ?? min / 2 + max / 2;
  const half = (max / 2 - min / 2) * by;
  if (half > 0) look(figure, [middle - half, middle + half]);
}

const KEYS = {
  ArrowLeft: (figure) => step(figure, -1),
  ArrowRight: (figure) => step(figure, 1),
  "+": (figure) => closer(figure, 0.5),
  "-": (figure) => closer(figure, 2),
  Escape: (figure) => look(figure, null),
};

function onKey(event) {
  const figure = event.target.closest("figure");
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key] || !shown.get(figure).plot) return;
  event.preventDefault();
  KEYS[event.key](figure);
}

function leave({ target }) {
  const state = shown.get(target.closest("figure"));
  state.cursor = null;
  if (state.tip) state.tip.hidden = true;
}

// ---------------------------------------------------------------- reading

function zoom(figure, plot) {
  const { left, width } = plot.select;
  if (width < 4) return;
  look(figure, [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
}

function look(figure, window) {
  const state = shown.get(figure);
  state.window = window;
  state.lastSeq = -1;
  figure.querySelector(".whole").hidden = !window;
  readSeen().catch(() => {}); // what fails is asked for again at the next refresh
}

async function read(figures) {
  const { window } = shown.get(figures[0]);
  const widths = figures.map((figure) => figure.querySelector(".plot").clientWidth - 56);
  const query = new URLSearchParams({
    panels: figures.map((figure) => figure.dataset.panel).join(","),
    width: Math.max(50, Math.min(4000, Math.max(...widths))),
    ...(window ? { first: window[0], last: window[1] } : {}),
  });
  const response = await fetch(`/api/v1/runs/${grid.dataset.run}/telemetry/panels?${query}`);
  if (!response.ok) throw new Error(`the panels were refused: ${response.status}`);
  const { data } = await response.json();
  for (const panel of data.panels) {
    const figure = figures.find((one) => one.dataset.panel === String(panel.panel));
    const state = shown.get(figure);
    if (state.window !== window) continue; // somebody looked elsewhere meanwhile
    Object.assign(state, { panel, lastSeq: data.last_seq });
    draw(figure);
  }
}

let reading = null;

// Those that are seen and were drawn from fewer points than there are now. One reading at a time.
function readSeen() {
  reading ??= readStale().finally(() => (reading = null));
  return reading;
}

async function readStale() {
  for (;;) {
    const points = Number(document.querySelector("[data-revision]").dataset.revision);
    const stale = [...shown].filter(([, state]) => state.seen && state.lastSeq < points).map(([figure]) => figure);
    if (!stale.length) return;
    const zoomed = stale.find((figure) => shown.get(figure).window);
    const next = zoomed ? [zoomed] : stale.slice(0, AT_ONCE);
    await read(next);
    for (const figure of next) shown.get(figure).lastSeq = Math.max(shown.get(figure).lastSeq, points); // one that is gone, too
  }
}

const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) shown.get(entry.target).seen = entry.isIntersecting;
    readSeen().catch(() => {});
  },
  { rootMargin: "300px" },
);

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const { plot } = shown.get(target.closest("figure"));
    if (plot && plot.width !== target.clientWidth) plot.setSize({ width: target.clientWidth, height: HEIGHT });
  }
});

function adopt(figure) {
  shown.set(figure, { panel: null, plot: null, window: null, seen: false, lastSeq: -1, tip: null, cursor: null });
  const place = figure.querySelector(".plot");
  place.addEventListener("keydown", onKey);
  place.addEventListener("blur", leave);
  figure.querySelector(".whole").addEventListener("click", () => look(figure, null));
  sight.observe(figure);
  sizes.observe(place);
}

document.addEventListener("refreshed", ({ detail: fresh }) => {
  const now = fresh.querySelector("#panels");
  if (now?.dataset.board !== grid?.dataset.board) return location.reload();
  if (!grid) return;
  for (const figure of now.querySelectorAll("figure")) {
    if (grid.querySelector(`[data-panel="${figure.dataset.panel}"]`)) continue;
    grid.append(figure);
    adopt(figure);
  }
  readSeen().catch(() => {});
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [figure, { panel }] of shown) if (panel) draw(figure);
});

for (const figure of grid?.querySelectorAll("figure") ?? []) adopt(figure);
