// Shows the values of a chart under the pointer. Without this script the page has everything but these values.
"use strict";

const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

function interpolated(curve, x) {
  const last = curve.x.length - 1;
  if (x < curve.x[0]) return null;
  if (x >= curve.x[last]) return curve.y[last];
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve.x[middle] <= x) low = middle; else high = middle;
  }
  const span = curve.x[high] - curve.x[low];
  return span ? curve.y[low] + (curve.y[high] - curve.y[low]) * (x - curve.x[low]) / span : curve.y[high];
}

function line(colour, text, value) {
  const row = document.createElement("div");
  if (colour !== null) row.className = `key c${colour % 6}`;
  row.append(text, " ");
  const bold = document.createElement("b");
  bold.textContent = value;
  row.append(bold);
  return row;
}

function read(plot, chart, tip, cursor, event) {
  const box = plot.getBoundingClientRect();
  const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  const x = chart.log
    ? chart.low * (chart.high / chart.low) ** share
    : chart.low + (chart.high - chart.low) * share;
  tip.replaceChildren(line(null, chart.log ? "within" : "at", `${compact.format(x)} ${chart.unit}`));
  chart.curves.forEach((curve, number) => {
    const y = interpolated(curve, x);
    const value = y === null ? (chart.log ? 0 : null) : y;
    if (value !== null) {
      tip.append(line(number, curve.label, chart.shares ? `${compact.format(value * 100)} %` : compact.format(value)));
    }
  });
  cursor.style.left = `${share * 100}%`;
  tip.style.left = share < 0.5 ? `calc(${share * 100}% + 0.6rem)` : "auto";
  tip.style.right = share < 0.5 ? "auto" : `calc(${(1 - share) * 100}% + 0.6rem)`;
  tip.hidden = cursor.hidden = false;
}

for (const plot of document.querySelectorAll("[data-chart]")) {
  const chart = JSON.parse(plot.dataset.chart);
  const tip = document.createElement("div"), cursor = document.createElement("div");
  tip.className = "tip";
  cursor.className = "cursor";
  tip.hidden = cursor.hidden = true;
  plot.append(cursor, tip);
  plot.addEventListener("pointermove", (event) => read(plot, chart, tip, cursor, event));
  plot.addEventListener("pointerdown", (event) => read(plot, chart, tip, cursor, event));
  plot.addEventListener("pointerleave", () => { tip.hidden = cursor.hidden = true; });
}
