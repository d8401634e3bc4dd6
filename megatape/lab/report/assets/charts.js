"use strict";
// Line charts as SVG: smoothing, axes, zoom, values under the pointer. A chart: {title, unit, axis, last, log, span, wide, clocked,
// series, lines, marks}, where `axis` names x, `last` is the largest x, `span` holds values of y that are always shown, `log` says
// whether y may be logarithmic, `noisy` whether it may be smoothed, and `clocked` whether its groups have clocks. A series: {group, style, x, y, low, high}, with null
// where a number is not finite, and style "line" or "points". A line: {label, y}; a mark: {group, x, label}. DATA.clocks: of each
// group, {steps, tokens, hours}.

const DATA = JSON.parse(document.getElementById("data").textContent);
const HEIGHT = { wide: 360, narrow: 220 };
const STORE = `megatape ${location.pathname}`;

// What a reader has chosen, which survives a reload in the same tab.
const VIEW = { axis: "step", smoothing: 0.6, log: true, hidden: [], zooms: {}, folds: {}, live: true };
try {
  Object.assign(VIEW, JSON.parse(sessionStorage.getItem(STORE)));
} catch {} // a browser may keep nothing for files

function remember(changes) {
  Object.assign(VIEW, changes);
  try {
    sessionStorage.setItem(STORE, JSON.stringify(VIEW));
  } catch {}
}

function element(name, attributes, parent, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function shape(name, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

const COMPACT = [3, 4].map((maximumSignificantDigits) => new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits }));

function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-4 || size >= 1e15) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return size >= 1e5 ? COMPACT[1].format(value) : value.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 5 : 4 });
}

const tickText = (value) => (Math.abs(value) >= 1e4 && Math.abs(value) < 1e15 ? COMPACT[0].format(value) : short(value));

// Round numbers from low to high, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [], first = Math.ceil(low / step - 1e-9);
  for (let index = 0; index <= count + 1; index++) found.push((first + index) * step || 0);
  return found.filter((value) => value <= high * (1 + 1e-9));
}

function logTicks(low, high) {
  if (high / low < 3) return ticks(low, high, 5).filter((value) => value > 0);
  const found = [], factors = high / low < 12 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : high / low < 300 ? [1, 2, 5] : [1];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    for (const factor of factors) if (factor * power >= low && factor * power <= high) found.push(factor * power);
  return found;
}

// Tokens or hours of training until a step.
function until(step, steps, values) {
  const next = steps.findIndex((knot) => knot >= step);
  if (next < 0) return values.at(-1);
  if (next === 0) return values[0];
  const part = (step - steps[next - 1]) / (steps[next] - steps[next - 1]);
  return values[next - 1] + part * (values[next] - values[next - 1]);
}

// The horizontal axis that is chosen: its name, and x of a step.
function axisOf(chart) {
  if (!chart.clocked || VIEW.axis === "step") return { name: chart.axis, place: (x) => x };
  const place = (column) => (x, group) => until(x, DATA.clocks[group].steps, DATA.clocks[group][column]);
  if (VIEW.axis === "tokens") return { name: "tokens", place: place("tokens") };
  const longest = Math.max(...DATA.clocks.map((clock) => clock.hours.at(-1)));
  const [name, factor] = longest < 0.05 ? ["seconds", 3600] : longest < 3 ? ["minutes", 60] : ["hours", 1];
  return { name: `${name} of training`, place: (x, group) => place("hours")(x, group) * factor };
}

// Exponential moving averages, without a bias towards the first value.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null || !weight) return value;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + 1 - weight;
    return sum / total;
  });
}

// A chart as it is drawn: its lines at their places on the chosen axis, smoothed, and the scales of both axes.
function layout(chart, width, height) {
  const axis = axisOf(chart), log = chart.log && VIEW.log, zoom = VIEW.zooms[family(chart)];
  const positive = (value) => (value !== null && log && value <= 0 ? null : value);
  const weight = chart.noisy ? VIEW.smoothing : 0;
  const curves = chart.series.map((one) => {
    const [low, y, high] = [one.low, one.y, one.high].map((values) => smoothed(values.map(positive), one.style === "line" ? weight : 0));
    return { ...one, x: one.x.map((x) => axis.place(x, one.group)), low, y, high, raw: one.style === "line" && weight ? one.y.map(positive) : null };
  });
  const end = Math.max(...curves.flatMap((one) => one.x.slice(-1)), chart.clocked && VIEW.axis !== "step" ? 0 : chart.last) || 1;
  const [left, right] = zoom ?? [0, end];
  const shown = curves.filter((one) => !VIEW.hidden.includes(chart.labels[one.group]));
  const inside = (one, values) => values.filter((_, index) => one.x[index] >= left && one.x[index] <= right);
  const numbers = [...shown.flatMap((one) => [...inside(one, one.low), ...inside(one, one.high), ...inside(one, one.raw ?? [])]), ...chart.span];
  if (!zoom) numbers.push(...chart.lines.map((line) => line.y));
  const usable = numbers.filter((value) => value !== null && (!log || value > 0));
  if (!usable.length) return { axis, shown, scale: null };
  let low = usable.reduce((a, b) => Math.min(a, b)), high = usable.reduce((a, b) => Math.max(a, b));
  const forward = log ? Math.log : (value) => value;
  if (!log && low > 0 && low < 0.6 * high) low = 0;
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) [low, high] = log ? [low / 1.1, high * 1.1] : [Math.min(0, low), Math.max(high, 0) || 1];
  const pad = 0.04 * (forward(high) - forward(low));
  const bottom = forward(low) - (low === 0 ? 0 : pad), top = forward(high) + pad;
  const yTicks = log ? logTicks(low, high) : ticks(low, high, 5);
  const margin = { left: 14 + 7 * Math.max(3, ...yTicks.map((tick) => tickText(tick).length)), right: 14, top: 12, bottom: 36 };
  const across = width - margin.left - margin.right, down = height - margin.top - margin.bottom;
  const scale = {
    margin, left, right, end, right_edge: width - margin.right, bottom_edge: height - margin.bottom,
    x: (place) => margin.left + ((place - left) / (right - left)) * across,
    y: (value) => margin.top + ((top - forward(value)) / (top - bottom)) * down,
    back: (pixel) => left + ((pixel - margin.left) / across) * (right - left),
    xTicks: ticks(left, right, across / 90).filter((tick) => chart.axis !== "step" || VIEW.axis === "time" || Number.isInteger(tick)),
    yTicks,
  };
  return { axis, shown, scale };
}

// Charts of one family are zoomed together.
const family = (chart) => (chart.clocked ? "clocked" : chart.title);

// A path through the points; it is interrupted where there is none.
function path(xs, ys, scale) {
  let text = "", pen = "M";
  ys.forEach((value, index) => {
    if (value === null) return (pen = "M");
    text += `${pen}${scale.x(xs[index]).toFixed(1)} ${scale.y(value).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function drawSeries(one, scale, svg) {
  const color = shape("g", { class: `c${one.group % 10}${one.group >= 10 ? " second" : ""}` }, svg);
  const wide = one.x.map((_, index) => index).filter((index) => one.low[index] !== null && one.high[index] !== null);
  if (one.style === "line" && wide.some((index) => one.low[index] < one.high[index])) {
    const edge = (values, indices) => indices.map((index) => `${scale.x(one.x[index]).toFixed(1)} ${scale.y(values[index]).toFixed(1)}`);
    shape("path", { class: "band", d: `M${[...edge(one.high, wide), ...edge(one.low, [...wide].reverse())].join("L")}Z` }, color);
  }
  if (one.raw) shape("path", { class: "raw", d: path(one.x, one.raw, scale) }, color);
  shape("path", { class: one.style === "line" ? "curve" : "joined", d: path(one.x, one.y, scale) }, color);
  if (one.style === "points" || one.x.length === 1)
    one.y.forEach((value, index) => value !== null && shape("circle", { class: "dot", r: 3, cx: scale.x(one.x[index]), cy: scale.y(value) }, color));
}

// The figure of a chart, which draws itself again when its width changes. Its `chart` gets the labels of its groups. `peers`: the
// charts among which a pointer is seen in all of a family.
function makeChart(source, labels, parent, peers = []) {
  const chart = { marks: [], ...source, labels };
  const figure = element("figure", { class: `card${chart.wide ? " first" : ""}` }, parent);
  const caption = element("figcaption", {}, figure, chart.title);
  if (chart.unit) element("span", {}, caption, ` ${chart.unit}`);
  if (new Set(chart.series.map((one) => one.style)).size > 1)
    for (const [kind, name] of [["line", "training"], ["ring", "validation"]]) {
      element("span", { class: `key ${kind}` }, caption);
      element("span", {}, caption, name);
    }
  const holder = element("div", { class: "plot" }, figure);
  const tip = element("div", { class: "tip", hidden: "", role: "status" }, figure);
  let now = null, scale = null, shown = [], axis = null, svg = null, overlay = null, from = null, cursor = null, width = 0;

  const measured = () => holder.clientWidth || 600;

  function draw(newNow = now) {
    now = newNow;
    width = measured();
    const height = chart.wide ? Math.min(HEIGHT.wide, Math.max(260, width * 0.62)) : HEIGHT.narrow;
    ({ axis, shown, scale } = layout(chart, width, height));
    const most = Math.max(0, ...shown.map((one) => one.y.filter((value) => value !== null).length));
    tip.hidden = true;
    cursor = null;
    holder.replaceChildren();
    if (most < 2 && now === null) return drawNumbers();
    const how = "arrow keys read values, plus and minus zoom, Escape resets";
    svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "application", "aria-label": `${chart.title}, by ${axis.name}: ${how}` }, holder);
    if (!scale) return shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "nothing recorded");
    const { margin, right_edge: right, bottom_edge: bottom } = scale;
    for (const value of scale.yTicks) {
      shape("line", { class: "grid", x1: margin.left, x2: right, y1: scale.y(value), y2: scale.y(value) }, svg);
      shape("text", { x: margin.left - 8, y: scale.y(value) + 4, "text-anchor": "end" }, svg, tickText(value));
    }
    for (const place of scale.xTicks) {
      const anchor = scale.x(place) > right - 12 ? "end" : "middle";
      shape("text", { x: anchor === "end" ? right : scale.x(place), y: bottom + 16, "text-anchor": anchor }, svg, tickText(place));
    }
    shape("text", { x: (margin.left + right) / 2, y: height - 4, "text-anchor": "middle" }, svg, axis.name);
    shape("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }, svg);
    const clip = `clip-${Math.random().toString(36).slice(2)}`, plot = shape("g", { "clip-path": `url(#${clip})` }, svg);
    shape("rect", { x: margin.left, y: 0, width: Math.max(0, right - margin.left + 4), height: bottom + 4 }, shape("clipPath", { id: clip }, svg));
    for (const line of chart.lines) {
      shape("line", { class: "level", x1: margin.left, x2: right, y1: scale.y(line.y), y2: scale.y(line.y) }, plot);
      shape("text", { x: right, y: scale.y(line.y) - 6, "text-anchor": "end" }, plot, `${line.label} ${short(line.y)}`);
    }
    for (const one of shown) drawSeries(one, scale, plot);
    for (const mark of chart.marks.filter((mark) => !VIEW.hidden.includes(labels[mark.group]))) {
      const x = scale.x(axis.place(mark.x, mark.group));
      const flag = shape("path", { class: `mark c${mark.group % 10}`, d: `M${x} ${bottom - 9}l-5 9h10z` }, plot);
      shape("title", {}, flag, mark.label);
    }
    if (now !== null) shape("line", { class: "now", x1: scale.x(now), x2: scale.x(now), y1: margin.top, y2: bottom }, plot);
    overlay = shape("g", {}, svg);
  }

  // A single point is no picture.
  function drawNumbers() {
    const list = element("dl", { class: "numbers" }, holder);
    for (const one of shown.filter((one) => one.y.some((value) => value !== null))) {
      const index = one.y.findIndex((value) => value !== null);
      element("dt", {}, list, `${labels[one.group]}${one.style === "points" ? ", validation" : ""}, ${axis.name} ${short(one.x[index])}`);
      element("dd", { class: `c${one.group % 10}` }, list, short(one.y[index]));
    }
    if (!list.childElementCount) holder.replaceChildren(element("p", { class: "quiet" }, null, "nothing recorded"));
    scale = svg = null;
  }

  // Index of the point of a line that is nearest to a place on the axis; -1 if it is far.
  function nearest(one, place) {
    let best = -1;
    one.x.forEach((x, index) => {
      if (one.y[index] !== null && (best < 0 || Math.abs(x - place) < Math.abs(one.x[best] - place))) best = index;
    });
    return best >= 0 && Math.abs(scale.x(one.x[best]) - scale.x(place)) <= 40 && one.x[best] >= scale.left && one.x[best] <= scale.right ? best : -1;
  }

  // Show the values at a place, with a tip in the chart that is pointed at; null: none.
  function point(place, pointed = null) {
    cursor = place;
    if (!scale) return;
    overlay.replaceChildren();
    tip.hidden = true;
    if (place === null || place < scale.left || place > scale.right) return;
    const found = shown.map((one) => [one, nearest(one, place)]).filter(([, index]) => index >= 0);
    if (!found.length) return;
    const x = scale.x(place);
    shape("line", { class: "cross", x1: x, x2: x, y1: scale.margin.top, y2: scale.bottom_edge }, overlay);
    for (const [one, index] of found)
      shape("circle", { class: `point c${one.group % 10}`, r: 3.5, cx: scale.x(one.x[index]), cy: scale.y(one.y[index]) }, overlay);
    if (pointed === null) return;
    const [first, at] = found[0];
    tip.replaceChildren(element("div", { class: "quiet" }, null, `${axis.name} ${short(Number.isInteger(first.x[at]) || VIEW.axis === "time" ? first.x[at] : Math.round(first.x[at]))}`));
    for (const [one, index] of found.sort(([a, i], [b, j]) => b.y[j] - a.y[i])) {
      const row = element("div", { class: "row" }, tip), raw = one.raw?.[index];
      element("span", { class: `swatch c${one.group % 10}${one.group >= 10 ? " second" : ""}` }, row);
      element("span", { class: "name" }, row, `${labels[one.group]}${one.style === "points" ? " · validation" : ""}`);
      element("b", {}, row, short(one.y[index]));
      const spread = one.low[index] < one.high[index] ? `${short(one.low[index])} to ${short(one.high[index])}` : "";
      if (raw !== undefined || spread) element("span", { class: "quiet" }, row, raw !== undefined ? `raw ${short(raw)}` : spread);
    }
    for (const mark of chart.marks) if (Math.abs(scale.x(axis.place(mark.x, mark.group)) - x) < 6) element("div", { class: "quiet marked" }, tip, mark.label);
    tip.hidden = false;
    const box = holder.getBoundingClientRect(), side = x + 16 + tip.offsetWidth > box.width ? x - 16 - tip.offsetWidth : x + 16;
    tip.style.left = `${holder.offsetLeft + Math.max(0, side)}px`;
    tip.style.top = `${holder.offsetTop + Math.max(0, Math.min(pointed - 20, box.height - tip.offsetHeight))}px`;
  }

  function pointAll(place, pointed) {
    point(place, pointed);
    for (const peer of peers) if (peer.chart !== chart && family(peer.chart) === family(chart)) peer.point(place);
  }

  // Show a range of the axis; null: all of it.
  function zoom(range) {
    if (range) range = [Math.max(0, Math.min(...range)), Math.min(scale.end, Math.max(...range))];
    if (range && range[1] - range[0] < 1e-6 * scale.end) return;
    const zooms = { ...VIEW.zooms, [family(chart)]: range };
    if (!range || (range[0] <= 0 && range[1] >= scale.end)) delete zooms[family(chart)];
    remember({ zooms });
    document.dispatchEvent(new Event("view"));
  }

  const offset = (event) => event.clientX - holder.getBoundingClientRect().left;
  const within = (pixel) => Math.max(scale.margin.left, Math.min(scale.right_edge, pixel));
  holder.addEventListener("pointerdown", (event) => {
    if (!scale || event.button !== 0) return;
    from = within(offset(event));
    holder.setPointerCapture(event.pointerId);
  });
  holder.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const at = within(offset(event));
    pointAll(scale.back(at), event.clientY - holder.getBoundingClientRect().top);
    if (from !== null && Math.abs(at - from) > 4) {
      const box = { x: Math.min(from, at), width: Math.abs(at - from), y: scale.margin.top, height: scale.bottom_edge - scale.margin.top };
      shape("rect", { class: "brush", ...box }, overlay);
    }
  });
  holder.addEventListener("pointerup", (event) => {
    const begin = from, at = scale && within(offset(event));
    from = null;
    if (scale && begin !== null && Math.abs(at - begin) > 8) zoom([scale.back(begin), scale.back(at)]);
  });
  holder.addEventListener("pointercancel", () => (from = null));
  holder.addEventListener("dblclick", () => scale && zoom(null));
  holder.addEventListener("pointerleave", () => from === null && pointAll(null));
  holder.addEventListener("focusout", () => pointAll(null));
  holder.addEventListener("keydown", (event) => {
    const longest = shown.reduce((a, b) => (b.style === "line" && b.x.length > (a?.x.length ?? 0) ? b : a), shown[0]);
    if (!scale || !longest || event.ctrlKey || event.metaKey || event.altKey) return;
    const places = longest.x.filter((x) => x >= scale.left && x <= scale.right), middle = cursor ?? (scale.left + scale.right) / 2;
    const index = places.reduce((best, x, other) => (Math.abs(x - middle) < Math.abs(places[best] - middle) ? other : best), 0);
    const by = (event.shiftKey ? 10 : 1) * (cursor === null ? 0 : 1), size = scale.right - scale.left;
    const go = { ArrowLeft: index - by, ArrowRight: index + by, Home: 0, End: places.length - 1 }[event.key];
    const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
    if (go !== undefined) pointAll(places[Math.max(0, Math.min(places.length - 1, go))], 20);
    else if (factor) zoom([middle - (middle - scale.left) * factor, middle - (middle - scale.left) * factor + size * factor]);
    else if (event.key === "Escape") zoom(null);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => measured() !== width && draw()).observe(holder);
  return { chart, figure, draw, point, focus: () => svg?.focus() };
}

(() => {
  const parent = document.getElementById("charts"), find = (id) => document.getElementById(id);
  if (!parent) return; // a suite without scores
  const charts = [];
  for (const chart of DATA.charts) charts.push(makeChart(chart, DATA.labels, parent, charts));
  const lines = [...document.querySelectorAll(".legend button")], axes = [...document.querySelectorAll("[data-axis]")];
  const label = (button) => DATA.labels[Number(button.dataset.group)];
  const smoothing = find("smoothing"), log = find("log"), reset = find("reset"), live = find("live");
  const refresh = Number(document.documentElement.dataset.refresh ?? 0);

  // The controls and the charts, as they are chosen.
  function show() {
    for (const button of lines) button.setAttribute("aria-pressed", !VIEW.hidden.includes(label(button)));
    for (const button of axes) button.setAttribute("aria-pressed", button.dataset.axis === VIEW.axis);
    if (smoothing) [smoothing.value, find("smoothed").textContent] = [VIEW.smoothing, VIEW.smoothing];
    log?.setAttribute("aria-pressed", VIEW.log);
    reset.hidden = !Object.keys(VIEW.zooms).length;
    live.hidden = !refresh;
    live.setAttribute("aria-pressed", VIEW.live);
    const focused = charts.find((one) => one.figure.contains(document.activeElement));
    for (const chart of charts) chart.draw();
    focused?.focus();
  }

  function choose(changes) {
    remember(changes);
    show();
  }

  for (const button of lines) {
    const toggled = () => (VIEW.hidden.includes(label(button)) ? VIEW.hidden.filter((one) => one !== label(button)) : [...VIEW.hidden, label(button)]);
    button.addEventListener("click", () => choose({ hidden: toggled() }));
    button.addEventListener("dblclick", () => choose({ hidden: DATA.labels.filter((one) => one !== label(button)) }));
  }
  const zooms = () => Object.fromEntries(Object.entries(VIEW.zooms).filter(([name]) => name !== "clocked"));
  for (const button of axes) button.addEventListener("click", () => choose({ axis: button.dataset.axis, zooms: zooms() }));
  smoothing?.addEventListener("input", () => choose({ smoothing: Number(smoothing.value) }));
  log?.addEventListener("click", () => choose({ log: !VIEW.log }));
  reset.addEventListener("click", () => choose({ zooms: {} }));
  live.addEventListener("click", () => choose({ live: !VIEW.live }));
  document.addEventListener("view", show);
  show();

  // While a run goes on, `megatape report --watch` writes the page again; it is read again unless somebody is using it.
  let pressed = false;
  addEventListener("pointerdown", () => (pressed = true));
  addEventListener("pointerup", () => (pressed = false));
  if (refresh) setInterval(() => VIEW.live && !pressed && !document.hidden && location.reload(), 1000 * refresh);
  const folds = [...document.querySelectorAll("details")];
  for (const fold of folds) fold.open = VIEW.folds[fold.id] ?? fold.open;
  // A fold's "toggle" event follows its opening at some later time, which may be after the page has begun reloading.
  addEventListener("pagehide", () => remember({ folds: Object.fromEntries(folds.map((fold) => [fold.id, fold.open])) }));
})();
