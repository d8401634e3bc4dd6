"use strict";
// Line charts as SVG, with zoom and values under the pointer.
//
// A chart: {title, unit, axis, last, log, noisy, clocked, span, wide, series, lines, marks}. `axis` names x, `last` is the
// largest x, `log` says whether y may be logarithmic, `noisy` whether it may be smoothed, `clocked` whether its groups have
// clocks, and `span` holds values of y that are always shown.
// A series: {group, style, x, y, low, high}, with null where a number is not finite, and style "line" or "points".
// A line: {label, y}. A mark: {group, x, label}. DATA.clocks has {steps, tokens, hours} of each group.

const WIDE_HEIGHT = 360;
const NARROW_HEIGHT = 220;
// Maximum distance in pixels between the pointer and a point whose value is shown.
const REACH = 40;

// Return the class of a group's color. From the eleventh on they repeat with another stroke.
function colorClass(group) {
  return group >= 10 ? `c${group % 10} second` : `c${group % 10}`;
}

// Return the name of a curve in a chart.
function curveName(chart, curve, separator) {
  const label = chart.labels[curve.group];
  return curve.style === "points" ? `${label}${separator}validation` : label;
}

// Return a path through the points, interrupted at missing values.
function path(xs, ys, scale) {
  let text = "";
  let pen = "M";
  ys.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const x = scale.x(xs[index]).toFixed(1);
    const y = scale.y(value).toFixed(1);
    text += `${pen}${x} ${y}`;
    pen = "L";
  });
  return text;
}

// Draw the band from the lowest to the highest value in a group.
function drawBand(curve, scale, parent) {
  const indices = [...curve.x.keys()].filter((index) => curve.low[index] !== null && curve.high[index] !== null);
  if (!indices.some((index) => curve.low[index] < curve.high[index])) {
    return;
  }
  const point = (index, values) => `${scale.x(curve.x[index]).toFixed(1)} ${scale.y(values[index]).toFixed(1)}`;
  const upper = indices.map((index) => point(index, curve.high));
  const lower = indices.map((index) => point(index, curve.low)).reverse();
  shape("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z` }, parent);
}

function drawCurve(curve, scale, parent) {
  const group = shape("g", { class: colorClass(curve.group) }, parent);
  const isLine = curve.style === "line";
  if (isLine) {
    drawBand(curve, scale, group);
  }
  if (curve.raw) {
    shape("path", { class: "raw", d: path(curve.x, curve.raw, scale) }, group);
  }
  shape("path", { class: isLine ? "curve" : "joined", d: path(curve.x, curve.y, scale) }, group);
  if (isLine && curve.x.length !== 1) {
    return;
  }
  curve.y.forEach((value, index) => {
    if (value !== null) {
      shape("circle", { class: "dot", r: 3, cx: scale.x(curve.x[index]), cy: scale.y(value) }, group);
    }
  });
}

// A chart in a figure. It redraws itself when its width changes.
class Chart {
  // source: the chart as described above. labels: names of its groups. parent: element that gets the figure.
  // peers: charts that show the values at the pointer together, if they are of one family.
  constructor(source, labels, parent, peers = []) {
    this.chart = { marks: [], ...source, labels };
    this.peers = peers;
    this.figure = element("figure", { class: this.chart.wide ? "card first" : "card" }, parent);
    this.addCaption();
    this.holder = element("div", { class: "plot" }, this.figure);
    this.tip = element("div", { class: "tip", hidden: "", role: "status" }, this.figure);

    // Step marked by a vertical line, null for none.
    this.now = null;
    // Content drawn last.
    this.axis = null;
    this.shown = [];
    this.scale = null;
    this.svg = null;
    this.overlay = null;
    this.width = 0;
    // Place on the axis whose values are shown, and pixel where the pointer was pressed; null for none.
    this.cursor = null;
    this.pressedAt = null;

    this.listen();
    const observer = new ResizeObserver(() => {
      if (this.measureWidth() !== this.width) {
        this.draw();
      }
    });
    observer.observe(this.holder);
  }

  addCaption() {
    const caption = element("figcaption", {}, this.figure, this.chart.title);
    if (this.chart.unit) {
      element("span", {}, caption, ` ${this.chart.unit}`);
    }
    const styles = new Set(this.chart.series.map((series) => series.style));
    if (styles.size > 1) {
      element("span", { class: "key line" }, caption);
      element("span", {}, caption, "training");
      element("span", { class: "key ring" }, caption);
      element("span", {}, caption, "validation");
    }
  }

  measureWidth() {
    return this.holder.clientWidth || 600;
  }

  measureHeight() {
    if (!this.chart.wide) {
      return NARROW_HEIGHT;
    }
    return Math.min(WIDE_HEIGHT, Math.max(260, this.width * 0.62));
  }

  focus() {
    this.svg?.focus();
  }

  // Draw the chart, with a vertical line at the step `now` from here on.
  draw(now = this.now) {
    this.now = now;
    this.width = this.measureWidth();
    const height = this.measureHeight();
    const { axis, shown, scale } = layout(this.chart, this.width, height);
    this.axis = axis;
    this.shown = shown;
    this.scale = scale;
    this.cursor = null;
    this.tip.hidden = true;
    this.holder.replaceChildren();

    const counts = shown.map((curve) => curve.y.filter((value) => value !== null).length);
    const isSinglePoint = Math.max(0, ...counts) < 2;
    if (isSinglePoint && now === null) {
      this.drawNumbers();
      return;
    }
    this.addPicture(height);
    if (!scale) {
      const middle = { x: this.width / 2, y: height / 2, "text-anchor": "middle" };
      shape("text", middle, this.svg, "nothing recorded");
      return;
    }
    this.drawAxes(height);
    this.drawContent();
    this.overlay = shape("g", {}, this.svg);
  }

  addPicture(height) {
    const keys = "arrow keys read values, plus and minus zoom, Escape resets";
    const attributes = {
      viewBox: `0 0 ${this.width} ${height}`,
      height,
      tabindex: 0,
      role: "application",
      "aria-label": `${this.chart.title}, by ${this.axis.name}: ${keys}`,
    };
    this.svg = shape("svg", attributes, this.holder);
  }

  drawAxes(height) {
    const { scale, svg } = this;
    const left = scale.margin.left;
    const right = scale.rightEdge;
    const bottom = scale.bottomEdge;
    for (const value of scale.yTicks) {
      const y = scale.y(value);
      shape("line", { class: "grid", x1: left, x2: right, y1: y, y2: y }, svg);
      shape("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, svg, tickText(value));
    }
    for (const place of scale.xTicks) {
      let x = scale.x(place);
      let anchor = "middle";
      if (x > right - 12) {
        x = right;
        anchor = "end";
      }
      shape("text", { x, y: bottom + 16, "text-anchor": anchor }, svg, tickText(place));
    }
    shape("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, svg, this.axis.name);
    shape("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }, svg);
  }

  // Draw curves, levels and marks, clipped to the area between the axes.
  drawContent() {
    const { chart, scale, svg } = this;
    const left = scale.margin.left;
    const right = scale.rightEdge;
    const bottom = scale.bottomEdge;
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    const plot = shape("g", { "clip-path": `url(#${clip})` }, svg);
    const clipPath = shape("clipPath", { id: clip }, svg);
    shape("rect", { x: left, y: 0, width: Math.max(0, right - left + 4), height: bottom + 4 }, clipPath);

    for (const line of chart.lines) {
      const y = scale.y(line.y);
      shape("line", { class: "level", x1: left, x2: right, y1: y, y2: y }, plot);
      shape("text", { x: right, y: y - 6, "text-anchor": "end" }, plot, `${line.label} ${short(line.y)}`);
    }
    for (const curve of this.shown) {
      drawCurve(curve, scale, plot);
    }
    for (const mark of chart.marks) {
      if (VIEW.hidden.includes(chart.labels[mark.group])) {
        continue;
      }
      const x = scale.x(this.axis.place(mark.x, mark.group));
      const flag = shape("path", { class: `mark c${mark.group % 10}`, d: `M${x} ${bottom - 9}l-5 9h10z` }, plot);
      shape("title", {}, flag, mark.label);
    }
    if (this.now !== null) {
      const x = scale.x(this.now);
      shape("line", { class: "now", x1: x, x2: x, y1: scale.margin.top, y2: bottom }, plot);
    }
  }

  // Show numbers instead of a picture: a curve with a single point shows nothing.
  drawNumbers() {
    const list = element("dl", { class: "numbers" }, this.holder);
    for (const curve of this.shown) {
      const index = curve.y.findIndex((value) => value !== null);
      if (index < 0) {
        continue;
      }
      const name = curveName(this.chart, curve, ", ");
      element("dt", {}, list, `${name}, ${this.axis.name} ${short(curve.x[index])}`);
      element("dd", { class: `c${curve.group % 10}` }, list, short(curve.y[index]));
    }
    if (!list.childElementCount) {
      const note = element("p", { class: "quiet" }, null, "nothing recorded");
      this.holder.replaceChildren(note);
    }
    this.scale = null;
    this.svg = null;
  }

  // Return the index of the curve's point nearest to a place on the axis, -1 if none is near.
  nearest(curve, place) {
    const { scale } = this;
    let best = -1;
    let smallest = Infinity;
    curve.x.forEach((x, index) => {
      const distance = Math.abs(x - place);
      if (curve.y[index] !== null && distance < smallest) {
        best = index;
        smallest = distance;
      }
    });
    if (best < 0) {
      return -1;
    }
    const x = curve.x[best];
    const isInside = x >= scale.left && x <= scale.right;
    const isNear = Math.abs(scale.x(x) - scale.x(place)) <= REACH;
    return isInside && isNear ? best : -1;
  }

  // Show the values at a place, null to hide them. `height` is the pointer's in the chart that has it, null in the others.
  point(place, height = null) {
    const { scale } = this;
    this.cursor = place;
    if (!scale) {
      return;
    }
    this.overlay.replaceChildren();
    this.tip.hidden = true;
    if (place === null || place < scale.left || place > scale.right) {
      return;
    }
    const found = [];
    for (const curve of this.shown) {
      const index = this.nearest(curve, place);
      if (index >= 0) {
        found.push({ curve, index });
      }
    }
    if (!found.length) {
      return;
    }
    const x = scale.x(place);
    shape("line", { class: "cross", x1: x, x2: x, y1: scale.margin.top, y2: scale.bottomEdge }, this.overlay);
    for (const { curve, index } of found) {
      const center = { cx: scale.x(curve.x[index]), cy: scale.y(curve.y[index]) };
      shape("circle", { class: `point c${curve.group % 10}`, r: 3.5, ...center }, this.overlay);
    }
    if (height !== null) {
      this.fillTip(found, x);
      this.placeTip(x, height);
    }
  }

  // Show the values at a place in this chart and in its peers of the same family.
  pointAll(place, height = null) {
    this.point(place, height);
    for (const peer of this.peers) {
      if (peer !== this && family(peer.chart) === family(this.chart)) {
        peer.point(place);
      }
    }
  }

  // Write the points' values into the tip, largest first, and the labels of marks near the pixel x.
  fillTip(found, x) {
    const { axis, chart, scale, tip } = this;
    const [first] = found;
    let place = first.curve.x[first.index];
    if (VIEW.axis !== "time") {
      place = Math.round(place);
    }
    const title = element("div", { class: "quiet" }, null, `${axis.name} ${short(place)}`);
    tip.replaceChildren(title);
    const sorted = [...found].sort((a, b) => b.curve.y[b.index] - a.curve.y[a.index]);
    for (const { curve, index } of sorted) {
      const row = element("div", { class: "row" }, tip);
      element("span", { class: `swatch ${colorClass(curve.group)}` }, row);
      element("span", { class: "name" }, row, curveName(chart, curve, " · "));
      element("b", {}, row, short(curve.y[index]));
      const low = curve.low[index];
      const high = curve.high[index];
      if (curve.raw) {
        element("span", { class: "quiet" }, row, `raw ${short(curve.raw[index])}`);
      } else if (low < high) {
        element("span", { class: "quiet" }, row, `${short(low)} to ${short(high)}`);
      }
    }
    for (const mark of chart.marks) {
      const distance = Math.abs(scale.x(axis.place(mark.x, mark.group)) - x);
      if (distance < 6) {
        element("div", { class: "quiet marked" }, tip, mark.label);
      }
    }
  }

  // Place the tip beside the pixel x, on the side where it has room.
  placeTip(x, height) {
    const { holder, tip } = this;
    tip.hidden = false;
    const box = holder.getBoundingClientRect();
    let left = x + 16;
    if (left + tip.offsetWidth > box.width) {
      left = x - 16 - tip.offsetWidth;
    }
    const top = Math.min(height - 20, box.height - tip.offsetHeight);
    tip.style.left = `${holder.offsetLeft + Math.max(0, left)}px`;
    tip.style.top = `${holder.offsetTop + Math.max(0, top)}px`;
  }

  // Show a range [from, to] of the axis.
  zoom(range) {
    const end = this.scale.end;
    const from = Math.max(0, Math.min(...range));
    const to = Math.min(end, Math.max(...range));
    if (to - from < 1e-6 * end) {
      return;
    }
    if (from <= 0 && to >= end) {
      this.resetZoom();
      return;
    }
    remember({ zooms: { ...VIEW.zooms, [family(this.chart)]: [from, to] } });
    document.dispatchEvent(new Event("view"));
  }

  // Show the whole axis.
  resetZoom() {
    const zooms = { ...VIEW.zooms };
    delete zooms[family(this.chart)];
    remember({ zooms });
    document.dispatchEvent(new Event("view"));
  }

  listen() {
    const { holder } = this;
    holder.addEventListener("pointerdown", (event) => this.press(event));
    holder.addEventListener("pointermove", (event) => this.move(event));
    holder.addEventListener("pointerup", (event) => this.release(event));
    holder.addEventListener("pointercancel", () => {
      this.pressedAt = null;
    });
    holder.addEventListener("dblclick", () => {
      if (this.scale) {
        this.resetZoom();
      }
    });
    holder.addEventListener("pointerleave", () => {
      if (this.pressedAt === null) {
        this.pointAll(null);
      }
    });
    holder.addEventListener("focusout", () => this.pointAll(null));
    holder.addEventListener("keydown", (event) => this.pressKey(event));
  }

  // Return the pixel of a pointer's event, limited to the area between the axes.
  pixelOf(event) {
    const offset = event.clientX - this.holder.getBoundingClientRect().left;
    return Math.max(this.scale.margin.left, Math.min(this.scale.rightEdge, offset));
  }

  press(event) {
    if (!this.scale || event.button !== 0) {
      return;
    }
    this.pressedAt = this.pixelOf(event);
    this.holder.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { scale } = this;
    if (!scale) {
      return;
    }
    const pixel = this.pixelOf(event);
    this.pointAll(scale.placeAt(pixel), event.clientY - this.holder.getBoundingClientRect().top);
    if (this.pressedAt === null) {
      return;
    }
    const width = Math.abs(pixel - this.pressedAt);
    if (width > 4) {
      const x = Math.min(this.pressedAt, pixel);
      const y = scale.margin.top;
      shape("rect", { class: "brush", x, y, width, height: scale.bottomEdge - y }, this.overlay);
    }
  }

  release(event) {
    const begin = this.pressedAt;
    this.pressedAt = null;
    if (!this.scale || begin === null) {
      return;
    }
    const pixel = this.pixelOf(event);
    if (Math.abs(pixel - begin) > 8) {
      this.zoom([this.scale.placeAt(begin), this.scale.placeAt(pixel)]);
    }
  }

  // Return the curve followed by the arrow keys: the longest line, or else the first curve.
  longestCurve() {
    let longest = this.shown[0];
    for (const curve of this.shown) {
      if (curve.style === "line" && curve.x.length > longest.x.length) {
        longest = curve;
      }
    }
    return longest;
  }

  pressKey(event) {
    const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
    if (!this.scale || !this.shown.length || hasModifier) {
      return;
    }
    switch (event.key) {
      case "ArrowLeft":
      case "ArrowRight":
      case "Home":
      case "End":
        this.moveCursor(event.key, event.shiftKey);
        break;
      case "+":
      case "=":
        this.magnify(0.5);
        break;
      case "-":
        this.magnify(2);
        break;
      case "Escape":
        this.resetZoom();
        break;
      default:
        return;
    }
    event.preventDefault();
  }

  // Return the place to zoom around: the cursor, or else the middle of the axis.
  middle() {
    return this.cursor ?? (this.scale.left + this.scale.right) / 2;
  }

  // Move to another point of the longest curve. The first arrow key shows the nearest point; with Shift a step is ten points.
  moveCursor(key, hasShift) {
    const { scale } = this;
    const places = this.longestCurve().x.filter((x) => x >= scale.left && x <= scale.right);
    const middle = this.middle();
    let index = 0;
    places.forEach((place, other) => {
      if (Math.abs(place - middle) < Math.abs(places[index] - middle)) {
        index = other;
      }
    });
    let step = hasShift ? 10 : 1;
    if (this.cursor === null) {
      step = 0;
    }
    const last = places.length - 1;
    const targets = { ArrowLeft: index - step, ArrowRight: index + step, Home: 0, End: last };
    const target = Math.max(0, Math.min(last, targets[key]));
    this.pointAll(places[target], 20);
  }

  // Multiply the length of the shown range by a factor, around the cursor.
  magnify(factor) {
    const { scale } = this;
    const middle = this.middle();
    const from = middle - (middle - scale.left) * factor;
    this.zoom([from, from + (scale.right - scale.left) * factor]);
  }
}
