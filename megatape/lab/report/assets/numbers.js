"use strict";
// Numbers as text, and round numbers for the ticks of axes.

const COMPACT_3 = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const COMPACT_4 = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

// Format a number with four or five digits.
function short(value) {
  const size = Math.abs(value);
  if (size === 0) {
    return "0";
  }
  if (size < 1e-4 || size >= 1e15) {
    return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (size >= 1e5) {
    return COMPACT_4.format(value);
  }
  const digits = size >= 1e4 ? 5 : 4;
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

// Format a number beside an axis.
function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e15) {
    return COMPACT_3.format(value);
  }
  return short(value);
}

// Return about `count` round numbers from low to high.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const sizes = [power, 2 * power, 5 * power, 10 * power];
  const step = sizes.find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  for (let index = 0; index <= count + 1; index++) {
    const value = (first + index) * step || 0; // no negative zero
    if (value <= high * (1 + 1e-9)) {
      found.push(value);
    }
  }
  return found;
}

// Return the multiples of a power of ten that have ticks on a logarithmic axis.
function logFactors(ratio) {
  if (ratio < 12) {
    return [1, 1.5, 2, 3, 4, 5, 6, 8];
  }
  if (ratio < 300) {
    return [1, 2, 5];
  }
  return [1];
}

// Return round numbers from low to high for a logarithmic axis.
function logTicks(low, high) {
  const ratio = high / low;
  if (ratio < 3) {
    return ticks(low, high, 5).filter((value) => value > 0);
  }
  const factors = logFactors(ratio);
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
    for (const factor of factors) {
      const value = factor * power;
      if (value >= low && value <= high) {
        found.push(value);
      }
    }
  }
  return found;
}
