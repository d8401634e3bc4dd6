"use strict";
// The position view. A view: {run, tokens, places, steps, layers, limits, maps, norms, gains, by}. maps[step][layer]: base64 of
// int8, rows of the lower triangle of a symmetric matrix, in units of the layer's limit / 127.

(() => {
  if (!DATA.views.length) return;
  const find = (id) => document.getElementById(id);
  const slider = find("view-step"), select = find("view-run"), chartsParent = find("view-charts");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let view, chart, canvases, matrices, low, zero, high;

  // The page's colours of a negative end, of zero and of a positive end.
  function readColors() {
    const style = getComputedStyle(document.documentElement);
    [low, zero, high] = ["--c0", "--card", "--c3"].map((name) => style.getPropertyValue(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
  }

  // share: from -1 to 1.
  function color(share) {
    const end = share < 0 ? low : high, part = Math.min(1, Math.abs(share));
    return end.map((channel, index) => Math.round(zero[index] + (channel - zero[index]) * part));
  }

  function unpack(text, size) {
    const bytes = atob(text), matrix = new Int8Array(size * size);
    let next = 0;
    for (let row = 0; row < size; row++)
      for (let column = 0; column <= row; column++) {
        const value = (bytes.charCodeAt(next++) << 24) >> 24;
        matrix[row * size + column] = matrix[column * size + row] = value;
      }
    return matrix;
  }

  function paint(canvas, matrix) {
    const size = view.tokens.length, context = canvas.getContext("2d"), image = context.createImageData(size, size);
    matrix.forEach((value, index) => image.data.set([...color(value / 127), 255], 4 * index));
    context.putImageData(image, 0, 0);
  }

  function point(event, layer) {
    const canvas = canvases[layer], box = canvas.getBoundingClientRect(), size = view.tokens.length;
    const place = (offset, length) => Math.max(0, Math.min(size - 1, Math.floor((offset / length) * size)));
    const row = place(event.clientY - box.top, box.height), column = place(event.clientX - box.left, box.width);
    const token = (index) => `${view.places[index]} ${JSON.stringify(view.tokens[index])}`;
    const value = (matrices[layer][row * size + column] / 127) * view.limits[layer];
    find("pointed").textContent = `layer ${view.layers[layer]}: token ${token(row)} · token ${token(column)} = ${short(value)}`;
  }

  function showGains(gains) {
    const rows = gains.filter((row) => row.length);
    find("gains-title").hidden = find("gains").hidden = !rows.length;
    if (!rows.length) return;
    const limit = Math.max(...view.gains.flat(2).map(Math.abs)) || 1;
    const table = element("table", {}), head = element("tr", {}, element("thead", {}, table)), body = element("tbody", {}, table);
    element("th", { scope: "col" }, head, `layer \\ ${view.by}`);
    rows[0].forEach((_, index) => element("td", {}, head, index + 1));
    rows.forEach((row, index) => {
      const line = element("tr", {}, body);
      element("th", { scope: "row" }, line, index + 1);
      for (const gain of row) {
        const [red, green, blue] = color((0.4 * gain) / limit);
        element("td", { style: `background: rgb(${red} ${green} ${blue})` }, line, short(Number(gain.toPrecision(3))));
      }
    });
    find("gains").replaceChildren(table);
  }

  function show() {
    const index = Number(slider.value), step = view.steps[index];
    find("view-now").textContent = step.toLocaleString("en");
    slider.setAttribute("aria-valuetext", `step ${step}`);
    matrices = view.maps[index].map((text) => unpack(text, view.tokens.length));
    matrices.forEach((matrix, layer) => {
      paint(canvases[layer], matrix);
      const number = view.layers[layer];
      canvases[layer].nextSibling.lastChild.textContent = ` layer ${number}: norm ${short(view.norms[index][number - 1])}, scale ±${short(view.limits[layer])}`;
    });
    showGains(view.gains[index]);
    chart.draw(step);
  }

  function choose() {
    view = DATA.views[select ? Number(select.value) : 0];
    slider.max = view.steps.length - 1;
    slider.value = slider.max;
    const size = view.tokens.length;
    canvases = view.layers.map((layer, index) => {
      const figure = element("figure", {});
      const canvas = element("canvas", { width: size, height: size, role: "img", "aria-label": `Dot products in layer ${layer}` }, figure);
      const caption = element("figcaption", {}, figure);
      element("span", { class: `swatch c${index % 10}` }, caption);
      element("span", {}, caption);
      canvas.addEventListener("pointermove", (event) => point(event, index));
      return canvas;
    });
    find("maps").replaceChildren(...canvases.map((canvas) => canvas.parentNode));
    const series = view.layers.map((layer, group) => {
      const y = view.norms.map((norms) => norms[layer - 1]);
      return { group, style: "line", x: view.steps, y, low: y, high: y };
    });
    const norms = { title: "Norm of e by layer", unit: "root mean square modulus", axis: "step", last: Math.max(...view.steps), log: false, span: [], wide: true, series, lines: [] };
    chartsParent.replaceChildren();
    chart = makeChart(norms, view.layers.map((layer) => `layer ${layer}`), chartsParent);
    show();
  }

  slider.addEventListener("input", show);
  if (select) select.addEventListener("change", choose);
  dark.addEventListener("change", () => (readColors(), show()));
  document.addEventListener("view", () => chart.draw());
  readColors();
  choose();
})();
