"use strict";
// Layout of a chart: its curves on the chosen axis, smoothed, and the scales of both axes.

// Return the tokens or hours of training at a step, interpolated between two records of a clock.
function atStep(step, steps, values) {
  const next = steps.findIndex((recorded) => recorded >= step);
  if (next < 0) {
    return values.at(-1);
  }
  if (next === 0) {
    return values[0];
  }
  const before = next - 1;
  const part = (step - steps[before]) / (steps[next] - steps[before]);
  return values[before] + part * (values[next] - values[before]);
}

// Return a readable unit of time for the longest run, and how many of them an hour has.
function timeUnit(longestHours) {
  if (longestHours < 0.05) {
    return { name: "seconds", perHour: 3600 };
  }
  if (longestHours < 3) {
    return { name: "minutes", perHour: 60 };
  }
  return { name: "hours", perHour: 1 };
}

// Return the chosen horizontal axis: its name, and a function that converts a step of a group.
function axisOf(chart) {
  if (!chart.clocked || VIEW.axis === "step") {
    return { name: chart.axis, place: (x) => x };
  }
  if (VIEW.axis === "tokens") {
    const tokens = (x, group) => atStep(x, DATA.clocks[group].steps, DATA.clocks[group].tokens);
    return { name: "tokens", place: tokens };
  }
  const longest = Math.max(...DATA.clocks.map((clock) => clock.hours.at(-1)));
  const unit = timeUnit(longest);
  const time = (x, group) => atStep(x, DATA.clocks[group].steps, DATA.clocks[group].hours) * unit.perHour;
  return { name: `${unit.name} of training`, place: time };
}

// Return exponential moving averages, without a bias towards the first value.
function smoothed(values, weight) {
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null || !weight) {
      return value;
    }
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + 1 - weight;
    return sum / total;
  });
}

// Charts of one family are zoomed together.
function family(chart) {
  return chart.clocked ? "clocked" : chart.title;
}

// Return a series as it is drawn. `raw` holds the values before smoothing, null if they are not smoothed.
function curveOf(series, chart, axis, log) {
  const weight = chart.noisy && series.style === "line" ? VIEW.smoothing : 0;
  const positive = (value) => (value !== null && log && value <= 0 ? null : value);
  const values = (column) => smoothed(column.map(positive), weight);
  return {
    ...series,
    x: series.x.map((x) => axis.place(x, series.group)),
    low: values(series.low),
    y: values(series.y),
    high: values(series.high),
    raw: weight ? series.y.map(positive) : null,
  };
}

// Return the largest x of a chart.
function endOf(chart, curves) {
  const ends = curves.flatMap((curve) => curve.x.slice(-1));
  const isClockAxis = chart.clocked && VIEW.axis !== "step";
  if (!isClockAxis) {
    ends.push(chart.last);
  }
  return Math.max(0, ...ends) || 1;
}

// Return the numbers that the vertical axis must show.
function numbersOf(chart, curves, left, right, log, isZoomed) {
  const numbers = [...chart.span];
  for (const curve of curves) {
    for (const values of [curve.low, curve.high, curve.raw ?? []]) {
      values.forEach((value, index) => {
        if (curve.x[index] >= left && curve.x[index] <= right) {
          numbers.push(value);
        }
      });
    }
  }
  if (!isZoomed) {
    numbers.push(...chart.lines.map((line) => line.y));
  }
  return numbers.filter((value) => value !== null && (!log || value > 0));
}

// Return the range of the vertical axis. A linear one begins at zero if that costs little room.
function rangeOf(numbers, log) {
  let low = numbers.reduce((a, b) => Math.min(a, b));
  let high = numbers.reduce((a, b) => Math.max(a, b));
  if (!log && low > 0 && low < 0.6 * high) {
    low = 0;
  }
  const isSingleValue = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  if (!isSingleValue) {
    return { low, high };
  }
  if (log) {
    return { low: low / 1.1, high: high * 1.1 };
  }
  return { low: Math.min(0, low), high: Math.max(high, 0) || 1 };
}

// Return the ticks of the horizontal axis. Steps are integers.
function horizontalTicks(chart, left, right, width) {
  const found = ticks(left, right, width / 90);
  if (chart.axis !== "step" || VIEW.axis === "time") {
    return found;
  }
  return found.filter((tick) => Number.isInteger(tick));
}

// Return the axis of a chart, the curves that are shown, and the scale, null if there is nothing to draw.
function layout(chart, width, height) {
  const axis = axisOf(chart);
  const log = chart.log && VIEW.log;
  const zoom = VIEW.zooms[family(chart)];
  const curves = chart.series.map((series) => curveOf(series, chart, axis, log));
  const shown = curves.filter((curve) => !VIEW.hidden.includes(chart.labels[curve.group]));
  const end = endOf(chart, curves);
  const [left, right] = zoom ?? [0, end];

  const numbers = numbersOf(chart, shown, left, right, log, Boolean(zoom));
  if (!numbers.length) {
    return { axis, shown, scale: null };
  }
  const { low, high } = rangeOf(numbers, log);
  const forward = log ? Math.log : (value) => value;
  const padding = 0.04 * (forward(high) - forward(low));
  const bottom = low === 0 ? forward(low) : forward(low) - padding;
  const top = forward(high) + padding;

  const yTicks = log ? logTicks(low, high) : ticks(low, high, 5);
  const longestText = Math.max(3, ...yTicks.map((tick) => tickText(tick).length));
  const margin = { left: 14 + 7 * longestText, right: 14, top: 12, bottom: 36 };
  const across = width - margin.left - margin.right;
  const down = height - margin.top - margin.bottom;
  const scale = {
    margin,
    left,
    right,
    end,
    rightEdge: width - margin.right,
    bottomEdge: height - margin.bottom,
    x: (place) => margin.left + ((place - left) / (right - left)) * across,
    y: (value) => margin.top + ((top - forward(value)) / (top - bottom)) * down,
    placeAt: (pixel) => left + ((pixel - margin.left) / across) * (right - left),
    xTicks: horizontalTicks(chart, left, right, across),
    yTicks,
  };
  return { axis, shown, scale };
}
