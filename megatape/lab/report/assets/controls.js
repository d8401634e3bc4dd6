"use strict";
// Controls of the charts: groups, axis, smoothing, scale, zoom, and reloading while runs are training.

(() => {
  const find = (id) => document.getElementById(id);
  const parent = find("charts");
  if (!parent) {
    return; // The page of a suite without scores has no charts.
  }
  const charts = [];
  for (const chart of DATA.charts) {
    charts.push(new Chart(chart, DATA.labels, parent, charts));
  }
  const groupButtons = [...document.querySelectorAll(".legend button")];
  const axisButtons = [...document.querySelectorAll("[data-axis]")];
  const smoothing = find("smoothing");
  const log = find("log");
  const reset = find("reset");
  const live = find("live");
  // Seconds between reloads, 0 for none.
  const refresh = Number(document.documentElement.dataset.refresh ?? 0);

  function labelOf(button) {
    return DATA.labels[Number(button.dataset.group)];
  }

  // Show the choices in the controls, and draw the charts.
  function show() {
    for (const button of groupButtons) {
      button.setAttribute("aria-pressed", !VIEW.hidden.includes(labelOf(button)));
    }
    for (const button of axisButtons) {
      button.setAttribute("aria-pressed", button.dataset.axis === VIEW.axis);
    }
    if (smoothing) {
      smoothing.value = VIEW.smoothing;
      find("smoothed").textContent = VIEW.smoothing;
    }
    log?.setAttribute("aria-pressed", VIEW.log);
    reset.hidden = !Object.keys(VIEW.zooms).length;
    live.hidden = !refresh;
    live.setAttribute("aria-pressed", VIEW.live);

    const focused = charts.find((chart) => chart.figure.contains(document.activeElement));
    for (const chart of charts) {
      chart.draw();
    }
    focused?.focus();
  }

  function choose(changes) {
    remember(changes);
    show();
  }

  function toggleGroup(label) {
    if (VIEW.hidden.includes(label)) {
      choose({ hidden: VIEW.hidden.filter((other) => other !== label) });
    } else {
      choose({ hidden: [...VIEW.hidden, label] });
    }
  }

  // Choose the axis. A range of the previous one means nothing on it.
  function chooseAxis(axis) {
    const zooms = { ...VIEW.zooms };
    delete zooms.clocked;
    choose({ axis, zooms });
  }

  for (const button of groupButtons) {
    const label = labelOf(button);
    button.addEventListener("click", () => toggleGroup(label));
    button.addEventListener("dblclick", () => choose({ hidden: DATA.labels.filter((other) => other !== label) }));
  }
  for (const button of axisButtons) {
    button.addEventListener("click", () => chooseAxis(button.dataset.axis));
  }
  smoothing?.addEventListener("input", () => choose({ smoothing: Number(smoothing.value) }));
  log?.addEventListener("click", () => choose({ log: !VIEW.log }));
  reset.addEventListener("click", () => choose({ zooms: {} }));
  live.addEventListener("click", () => choose({ live: !VIEW.live }));
  document.addEventListener("view", show);
  show();

  // While runs are training, `megatape report --watch` rewrites the page. Reload it, unless the reader is using it.
  let isPressed = false;
  addEventListener("pointerdown", () => {
    isPressed = true;
  });
  addEventListener("pointerup", () => {
    isPressed = false;
  });
  function reload() {
    if (VIEW.live && !isPressed && !document.hidden) {
      location.reload();
    }
  }
  if (refresh) {
    setInterval(reload, 1000 * refresh);
  }

  const folds = [...document.querySelectorAll("details")];
  for (const fold of folds) {
    fold.open = VIEW.folds[fold.id] ?? fold.open;
  }
  // Remember the folds when the page closes: their "toggle" events may come after it has begun reloading.
  addEventListener("pagehide", () => {
    const open = folds.map((fold) => [fold.id, fold.open]);
    remember({ folds: Object.fromEntries(open) });
  });
})();
