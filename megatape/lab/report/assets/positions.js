"use strict";
// The position view of runs: maps of dot products, norms by layer and gains.
//
// A view: {run, tokens, places, steps, layers, limits, maps, norms, gains, by}. maps[step][layer] is base64 of int8: the rows
// of the lower triangle of a symmetric matrix, in units of the layer's limit / 127.

(() => {
  if (!DATA.views.length) {
    return;
  }
  const find = (id) => document.getElementById(id);
  const slider = find("view-step");
  const select = find("view-run");
  const chartParent = find("view-charts");
  const darkMode = matchMedia("(prefers-color-scheme: dark)");

  // The chosen view, and the chart, canvases and matrices of its layers.
  let view;
  let chart;
  let canvases;
  let matrices;
  // Colors [red, green, blue] of the negative end, of zero and of the positive end.
  let lowColor;
  let zeroColor;
  let highColor;

  // Return a color of the page's style sheet, which writes them as #rrggbb.
  function pageColor(style, name) {
    const channels = style.getPropertyValue(name).match(/[0-9a-f]{2}/gi);
    return channels.map((channel) => parseInt(channel, 16));
  }

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    lowColor = pageColor(style, "--c0");
    zeroColor = pageColor(style, "--card");
    highColor = pageColor(style, "--c3");
  }

  // Return the color of a share from -1 to 1.
  function colorOf(share) {
    const end = share < 0 ? lowColor : highColor;
    const part = Math.min(1, Math.abs(share));
    return end.map((channel, index) => Math.round(zeroColor[index] + (channel - zeroColor[index]) * part));
  }

  // Return the whole matrix of a map, row by row.
  function unpack(text, size) {
    const bytes = atob(text);
    const matrix = new Int8Array(size * size);
    let next = 0;
    for (let row = 0; row < size; row++) {
      for (let column = 0; column <= row; column++) {
        const value = bytes.charCodeAt(next); // Int8Array makes a number above 127 negative.
        next++;
        matrix[row * size + column] = value;
        matrix[column * size + row] = value;
      }
    }
    return matrix;
  }

  function paint(canvas, matrix) {
    const size = view.tokens.length;
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    matrix.forEach((value, index) => {
      const [red, green, blue] = colorOf(value / 127);
      image.data.set([red, green, blue, 255], 4 * index);
    });
    context.putImageData(image, 0, 0);
  }

  // Describe the value under the pointer.
  function point(event, layer) {
    const size = view.tokens.length;
    const box = canvases[layer].getBoundingClientRect();
    const indexAt = (offset, length) => Math.max(0, Math.min(size - 1, Math.floor((offset / length) * size)));
    const row = indexAt(event.clientY - box.top, box.height);
    const column = indexAt(event.clientX - box.left, box.width);
    const token = (index) => `${view.places[index]} ${JSON.stringify(view.tokens[index])}`;
    const value = (matrices[layer][row * size + column] / 127) * view.limits[layer];
    const pair = `token ${token(row)} · token ${token(column)}`;
    find("pointed").textContent = `layer ${view.layers[layer]}: ${pair} = ${short(value)}`;
  }

  // Show the gains of all layers as a colored table.
  function showGains(gains) {
    const rows = gains.filter((row) => row.length);
    const isEmpty = !rows.length;
    find("gains-title").hidden = isEmpty;
    find("gains").hidden = isEmpty;
    if (isEmpty) {
      return;
    }
    const limit = Math.max(...view.gains.flat(2).map(Math.abs)) || 1;
    const table = element("table", {});
    const head = element("tr", {}, element("thead", {}, table));
    const body = element("tbody", {}, table);
    element("th", { scope: "col" }, head, `layer \\ ${view.by}`);
    rows[0].forEach((_, index) => element("td", {}, head, index + 1));
    rows.forEach((row, index) => {
      const line = element("tr", {}, body);
      element("th", { scope: "row" }, line, index + 1);
      for (const gain of row) {
        const [red, green, blue] = colorOf((0.4 * gain) / limit);
        const style = `background: rgb(${red} ${green} ${blue})`;
        element("td", { style }, line, short(Number(gain.toPrecision(3))));
      }
    });
    find("gains").replaceChildren(table);
  }

  // Show the step chosen by the slider.
  function showStep() {
    const index = Number(slider.value);
    const step = view.steps[index];
    find("view-now").textContent = step.toLocaleString("en");
    slider.setAttribute("aria-valuetext", `step ${step}`);
    matrices = view.maps[index].map((text) => unpack(text, view.tokens.length));
    matrices.forEach((matrix, position) => {
      paint(canvases[position], matrix);
      const layer = view.layers[position];
      const norm = short(view.norms[index][layer - 1]);
      const limit = short(view.limits[position]);
      const caption = canvases[position].nextSibling;
      caption.lastChild.textContent = ` layer ${layer}: norm ${norm}, scale ±${limit}`;
    });
    showGains(view.gains[index]);
    chart.draw(step);
  }

  // Make the canvas of a layer, in a figure with a caption.
  function makeCanvas(layer, index) {
    const size = view.tokens.length;
    const figure = element("figure", {});
    const attributes = { width: size, height: size, role: "img", "aria-label": `Dot products in layer ${layer}` };
    const canvas = element("canvas", attributes, figure);
    const caption = element("figcaption", {}, figure);
    element("span", { class: `swatch c${index % 10}` }, caption);
    element("span", {}, caption);
    canvas.addEventListener("pointermove", (event) => point(event, index));
    return canvas;
  }

  // Return the chart of the norms, a curve for each layer.
  function normsChart() {
    const series = view.layers.map((layer, group) => {
      const y = view.norms.map((norms) => norms[layer - 1]);
      return { group, style: "line", x: view.steps, y, low: y, high: y };
    });
    return {
      title: "Norm of e by layer",
      unit: "root mean square modulus",
      axis: "step",
      last: Math.max(...view.steps),
      log: false,
      span: [],
      wide: true,
      series,
      lines: [],
    };
  }

  // Show the chosen run at its last step.
  function showRun() {
    const index = select ? Number(select.value) : 0;
    view = DATA.views[index];
    slider.max = view.steps.length - 1;
    slider.value = slider.max;
    canvases = view.layers.map(makeCanvas);
    find("maps").replaceChildren(...canvases.map((canvas) => canvas.parentNode));
    chartParent.replaceChildren();
    const labels = view.layers.map((layer) => `layer ${layer}`);
    chart = new Chart(normsChart(), labels, chartParent);
    showStep();
  }

  slider.addEventListener("input", showStep);
  select?.addEventListener("change", showRun);
  darkMode.addEventListener("change", () => {
    readColors();
    showStep();
  });
  document.addEventListener("view", () => chart.draw());
  readColors();
  showRun();
})();
