// What every page of ours draws with uPlot, which stands above this script: colours, axes, tooltips, numbers with units.
"use strict";

const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const seriesColour = (number) => colourOf(`--c${number % 6}`);

function short(value) {
  const unit = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => Math.abs(value) >= size);
  return unit ? `${+(value / unit[0]).toPrecision(3)}${unit[1]}` : `${+value.toPrecision(3)}`;
}

function milliseconds(value) {
  return value >= 10000 ? `${compact.format(value / 1000)} s` : `${compact.format(value)} ms`;
}

/** Return a line of a tooltip: a colour (or null), a text and a value. */
function line(colour, text, value) {
  const row = document.createElement("div");
  if (colour !== null) {
    row.className = "key";
    row.style.setProperty("--c", colour);
  }
  row.append(text, " ");
  const bold = document.createElement("b");
  bold.textContent = value;
  row.append(bold);
  return row;
}

function makeTip(u) {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  u.over.append(tip);
  return tip;
}

/** Show a tooltip beside the cursor, inside the plot. */
function place(u, tip, lines) {
  tip.hidden = !lines.length;
  if (!lines.length) return;
  tip.replaceChildren(...lines);
  const { left, top } = u.cursor, room = u.over.clientWidth;
  const x = left + tip.offsetWidth + 14 > room ? left - tip.offsetWidth - 10 : left + 10;
  tip.style.left = `${Math.min(Math.max(x, 0), Math.max(room - tip.offsetWidth, 0))}px`;
  tip.style.top = `${Math.min(Math.max(top - tip.offsetHeight / 2, 0), Math.max(u.over.clientHeight - tip.offsetHeight, 0))}px`;
}

function axis(values, size, extra) {
  return {
    stroke: colourOf("--quiet"), font: "12px system-ui, sans-serif", size, values,
    grid: { stroke: colourOf("--grid"), width: 1 }, ticks: { show: false }, ...extra,
  };
}
