// Draws the charts and the timeline of the page with uPlot and `charts.js`, which stand above this script.
//
// Every chart can be zoomed: drag with a pointer, or + and - at the cursor; a double click, 0 or Escape shows all again. The
// arrow keys move the cursor. Charts over time share the cursor and the zoom.
"use strict";

const HEIGHT = 200, ROW_HEIGHT = 5;
const WHOLE = [1, 2, 5].flatMap((factor) => [...Array(10).keys()].map((power) => factor * 10 ** power)).sort((a, b) => a - b);
const shared = uPlot.sync("time");

/** Return round ticks on a logarithmic axis: powers of ten with 2 and 5 between, or a linear series on a short axis. */
function logTicks(low, high, about) {
  if (high < 8 * low) {
    const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
    const ticks = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
    return ticks;
  }
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of factors) {
        const tick = factor * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    if (ticks.length <= about || factors.length === 1) {
      return ticks.filter((_, number) => number % Math.ceil(ticks.length / about) === 0);
    }
  }
}

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

function chartData(chart) {
  const tables = [], series = [{}], bands = [];
  chart.curves.forEach((curve, number) => {
    const colour = seriesColour(number);
    tables.push([curve.x, curve.y]);
    series.push({ label: curve.label, stroke: colour, width: 2, spanGaps: true, points: { show: curve.x.length < 3 } });
    if (curve.high) {
      tables.push([curve.x, curve.high], [curve.x, curve.low]);
      const edge = { stroke: "transparent", spanGaps: true, points: { show: false } };
      bands.push({ series: [series.length, series.length + 1], fill: `${colour}29` });
      series.push(edge, edge);
    }
  });
  return { data: uPlot.join(tables), series, bands };
}

function drawTarget(u, chart) {
  if (chart.target === null) return;
  const x = u.valToPos(chart.target, "x", true), ctx = u.ctx, { left, top, width, height } = u.bbox;
  if (x < left || x > left + width) return;
  const label = `SLO ${milliseconds(chart.target)}`;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colourOf("--ink");
  ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
  ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  const after = x + ctx.measureText(label).width + 8 * devicePixelRatio < left + width;
  ctx.textAlign = after ? "left" : "right";
  ctx.fillText(label, x + (after ? 5 : -5) * devicePixelRatio, top + height - 8 * devicePixelRatio);
  ctx.restore();
}

function xRange(chart) {
  if (!chart.log) return [0, Math.max(...chart.curves.map((curve) => curve.x[curve.x.length - 1])) || 1];
  const low = chart.from;
  const high = Math.max(...chart.curves.map((curve) => curve.x[curve.x.length - 1]), chart.target || 0);
  return [low / 1.1, Math.max(high * 1.15, low * 2)];
}

/** Put a legend above a chart with several curves. */
function chartKeys(plot, chart) {
  const legend = document.createElement("div");
  legend.className = "legend";
  if (chart.curves.length > 1 || chart.curves[0]?.high) {
    chart.curves.forEach((curve, number) => legend.append(line(seriesColour(number), curve.label, "")));
  }
  plot.before(legend);
}

function drawChart(plot) {
  const chart = JSON.parse(plot.dataset.chart), all = xRange(chart);
  const { data, series, bands } = chartData(chart);
  if (!plot.parentNode.querySelector(".legend")) chartKeys(plot, chart);
  const shown = (value) => (chart.shares ? `${compact.format(value * 100)} %` : compact.format(value));
  let tip;
  const read = (u) => {
    if (u.cursor.left < 0) return place(u, tip, []);
    const x = u.posToVal(u.cursor.left, "x"), lines = [line(null, chart.time ? "at" : "within", `${compact.format(x)} ${chart.unit}`)];
    chart.curves.forEach((curve, number) => {
      const y = interpolated(curve, x), value = y === null && chart.log ? 0 : y;
      if (value !== null) lines.push(line(seriesColour(number), curve.label, shown(value)));
    });
    if (chart.target !== null) lines.push(line(null, "SLO", milliseconds(chart.target)));
    place(u, tip, lines);
  };
  const u = new uPlot({
    width: plot.clientWidth, height: HEIGHT, series, bands, legend: { show: false },
    scales: {
      x: { time: false, distr: chart.log ? 3 : 1, range: (_, low, high) => (low === null || low === high ? all : [low, high]) },
      y: { range: (_, __, high) => [0, chart.shares ? 1 : Math.max(high * 1.06, chart.whole ? 1 : 0) || 1] },
    },
    axes: [
      axis((_, ticks) => ticks.map((tick, number) => short(tick) + (number === ticks.length - 1 ? ` ${chart.unit}` : "")), 28,
        chart.log ? { splits: (_, __, low, high) => logTicks(low, high, plot.clientWidth / 70), filter: (_, ticks) => ticks }
          : { space: 60 }),
      axis((_, ticks) => ticks.map((tick) => (chart.shares ? `${Math.round(tick * 100)} %` : short(tick))), 48,
        { space: 36, ...(chart.whole ? { incrs: WHOLE } : {}) }),
    ],
    cursor: {
      drag: { x: true, y: false }, points: { show: false }, y: false,
      ...(chart.time ? { sync: { key: shared.key, scales: ["x", null] } } : {}),
    },
    hooks: {
      draw: [(it) => drawTarget(it, chart)],
      setCursor: [(it) => tip && read(it)],
    },
  }, data, plot);
  tip = makeTip(u);
  u.setScale("x", { min: all[0], max: all[1] });
  if (chart.time) shared.sub(u);
  return { u, all, log: chart.log };
}

/** The parts of a request's bar: from, to, and how the part is drawn. */
function parts(request, end) {
  const [, , , arrival, admitted, ran, first, left, gaps] = request;
  const over = left < 0 ? end : left, found = [];
  const add = (from, to, kind) => { if (to > from) found.push([from, to, kind]); };
  if (admitted >= 0) add(arrival, admitted, "held");
  const waited = admitted < 0 ? arrival : admitted;
  add(waited, ran < 0 ? over : ran, admitted < 0 ? "held" : "waiting");
  let since = ran;
  const run = (until) => {
    if (since < 0) return;
    if (first >= 0 && first > since && first < until) {
      add(since, first, "prefill");
      add(first, until, "decode");
    } else add(since, until, first >= 0 && since >= first ? "decode" : "prefill");
  };
  for (let each = 0; each < gaps.length; each += 2) {
    run(gaps[each]);
    add(gaps[each], gaps[each + 1] < 0 ? over : gaps[each + 1], "preempted");
    since = gaps[each + 1];
  }
  run(over);
  return found;
}

const KINDS = {
  held: ["waits for admission", 0.3], waiting: ["waits in an instance", 0.3], prefill: ["prefill", 0.55],
  decode: ["decode", 1], preempted: ["KV freed, waits", 1],
};

const SEEN_BY_CLIENTS = { waiting: ["waits for its first token", 0.3], decode: ["gets tokens", 1] };

function kindsOf(timeline) {
  return timeline.measured ? SEEN_BY_CLIENTS : KINDS;
}

function drawRequests(u, timeline) {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  const height = Math.abs(u.valToPos(1, "y", true) - u.valToPos(0, "y", true)), thick = Math.max(height * 0.8, 1);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  timeline.requests.forEach((request, row) => {
    if (row + 1 < u.scales.y.min || row - 1 > u.scales.y.max) return;
    const y = u.valToPos(row, "y", true);
    for (const [from, to, kind] of parts(request, timeline.end)) {
      const x = u.valToPos(from / 1000, "x", true), wide = Math.max(u.valToPos(to / 1000, "x", true) - x, 0.5 * ratio);
      const slim = kind === "held" || kind === "preempted" ? Math.max(thick / 3, 1) : thick;
      ctx.globalAlpha = KINDS[kind][1];
      ctx.fillStyle = kind === "preempted" ? colourOf("--freed") : seriesColour(request[1]);
      ctx.fillRect(x, y - slim / 2, wide, slim);
    }
  });
  ctx.restore();
}

function describe(timeline, request, at) {
  const [id, group, outcome, arrival, admitted, ran, first, left, gaps, reason] = request;
  const now = parts(request, timeline.end).find(([from, to]) => at >= from && at < to);
  const lines = [line(seriesColour(group), `request ${id}, ${timeline.classes[group]}`, now ? (kindsOf(timeline)[now[2]] || [""])[0] : "")];
  const told = (what, from, to) => { if (from >= 0 && to >= from) lines.push(line(null, what, milliseconds(to - from))); };
  lines.push(line(null, "arrives at", `${compact.format(arrival / 1000)} s`));
  if (admitted > arrival) told("waits for admission", arrival, admitted);
  if (!timeline.measured) told("waits in an instance", admitted, ran);
  told("TTFT", arrival, first);
  told("E2E", arrival, left);
  if (gaps.length) lines.push(line(null, "KV freed", `${gaps.length / 2} times`));
  lines.push(line(null, "outcome", timeline.outcomes[outcome]));
  if (reason) timeline.reasons[reason].split("; ").forEach((each) => lines.push(line(null, "admission", each)));
  return lines;
}

function timelineKeys(plot, timeline) {
  const legend = document.createElement("div");
  legend.className = "legend";
  timeline.classes.forEach((name, number) => {
    const key = line(seriesColour(number), name, "");
    legend.append(key);
  });
  for (const [kind, [text, alpha]] of Object.entries(kindsOf(timeline))) {
    const key = line(kind === "preempted" ? colourOf("--freed") : colourOf("--ink"), text, "");
    key.style.setProperty("--alpha", alpha);
    key.classList.add(kind);
    legend.append(key);
  }
  plot.before(legend);
}

/** Return rows between two, and as their labels round request numbers; none if the numbers do not ascend. */
function idTicks(requests, from, to, about) {
  const low = Math.max(Math.ceil(from), 0), high = Math.min(Math.floor(to), requests.length - 1);
  const ticks = new Map();
  if (high < low || requests.some((request, row) => row && request[0] <= requests[row - 1][0])) return ticks;
  const step = WHOLE.find((each) => each * about >= requests[high][0] - requests[low][0]);
  for (let row = low; row <= high; row++) {
    const round = Math.floor(requests[row][0] / step) * step;
    if (row ? round > requests[row - 1][0] : round === requests[row][0]) ticks.set(row, `${round}`);
  }
  return ticks;
}

function drawTimeline(plot) {
  const timeline = JSON.parse(plot.dataset.timeline), count = timeline.requests.length;
  const all = [0, timeline.end / 1000 || 1], rows = [-1, count];
  if (!plot.parentNode.querySelector(".legend")) timelineKeys(plot, timeline);
  let tip, ids = new Map();
  const read = (u) => {
    const row = Math.round(u.posToVal(u.cursor.top, "y")), request = timeline.requests[row];
    const inside = u.cursor.left >= 0 && request !== undefined;
    place(u, tip, inside ? describe(timeline, request, u.posToVal(u.cursor.left, "x") * 1000) : []);
  };
  const u = new uPlot({
    width: plot.clientWidth, height: Math.min(Math.max(count * ROW_HEIGHT, HEIGHT), 640), legend: { show: false },
    series: [{}, { paths: () => null, points: { show: false } }],
    scales: {
      x: { time: false, range: (_, low, high) => (low === null || low === high ? all : [low, high]) },
      y: { dir: -1, range: (_, low, high) => (low === null || low === high ? rows : [low, high]) },
    },
    axes: [
      axis((_, ticks) => ticks.map((tick, number) => short(tick) + (number === ticks.length - 1 ? " s" : "")), 28, { space: 60 }),
      axis((_, rows) => rows.map((row) => ids.get(row)), 48, {
        splits: (u, _, low, high) => [...(ids = idTicks(timeline.requests, low, high, u.height / 40)).keys()],
      }),
    ],
    cursor: { drag: { x: true, y: true, uni: 24 }, points: { show: false } },
    hooks: { draw: [(it) => drawRequests(it, timeline)], setCursor: [(it) => tip && read(it)] },
  }, [all, [rows[0], rows[1]]], plot);
  tip = makeTip(u);
  u.setScale("y", { min: rows[0], max: rows[1] });
  u.over.addEventListener("dblclick", () => u.setScale("y", { min: rows[0], max: rows[1] }));
  return { u, all, log: false };
}

/** Return where an interval from the least to the greatest value begins and ends on an axis, with room at both ends. */
function padded(values, log) {
  const low = Math.min(...values), high = Math.max(...values);
  if (log) return [low / 1.3, high * 1.3];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 && low < high / 2 ? 0 : low - room, high + room];
}

function drawLimits(u, scatter) {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  ctx.strokeStyle = ctx.fillStyle = colourOf("--quiet");
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.setLineDash([5 * ratio, 4 * ratio]);
  for (const { label, axis: on, at } of scatter.limits) {
    const place = u.valToPos(at, on, true);
    ctx.beginPath();
    if (on === "x") {
      ctx.moveTo(place, bbox.top);
      ctx.lineTo(place, bbox.top + bbox.height);
      ctx.fillText(label, place + 5 * ratio, bbox.top + 12 * ratio);
    } else {
      ctx.moveTo(bbox.left, place);
      ctx.lineTo(bbox.left + bbox.width, place);
      ctx.fillText(label, bbox.left + 6 * ratio, place - 5 * ratio);
    }
    ctx.stroke();
  }
  ctx.setLineDash([]);
}

function drawPoints(u, scatter) {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  const at = (point) => [u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true)];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  drawLimits(u, scatter);
  scatter.groups.forEach((group, number) => {
    ctx.strokeStyle = seriesColour(number);
    ctx.lineWidth = 1.5 * ratio;
    if (group.line) {
      ctx.beginPath();
      group.points.forEach((point, index) => {
        const [x, y] = at(point);
        if (group.line === "steps" && index) ctx.lineTo(x, at(group.points[index - 1])[1]);
        ctx[index ? "lineTo" : "moveTo"](x, y);
      });
      ctx.stroke();
    }
    if (group.line === "steps") return;
    for (const point of group.points) {
      const [x, y] = at(point);
      if (point.low !== undefined) {
        ctx.beginPath();
        ctx.moveTo(u.valToPos(point.low, "x", true), y);
        ctx.lineTo(u.valToPos(point.high, "x", true), y);
        ctx.stroke();
      }
      ctx.beginPath();
      ctx.arc(x, y, 4 * ratio, 0, 2 * Math.PI);
      ctx.fillStyle = point.hollow ? colourOf("--card") : seriesColour(number);
      ctx.fill();
      ctx.stroke();
    }
  });
  ctx.restore();
}

/** Return the point next to the cursor, with its group's number, or null if none is near. */
function nearest(u, scatter) {
  const { left, top } = u.cursor;
  let found = null, least = 40;
  scatter.groups.forEach((group, number) => group.points.forEach((point) => {
    const away = Math.hypot(u.valToPos(point.x, "x") - left, u.valToPos(point.y, "y") - top);
    if (left >= 0 && away < least) [found, least] = [[point, number], away];
  }));
  return found;
}

function drawScatter(plot) {
  const scatter = JSON.parse(plot.dataset.scatter), named = scatter.names.length > 0;
  const points = scatter.groups.flatMap((group) => group.points);
  const limits = (on) => scatter.limits.filter((limit) => limit.axis === on).map((limit) => limit.at);
  const all = padded([...points.flatMap((point) => [point.x, point.low ?? point.x, point.high ?? point.x]), ...limits("x")], false);
  const up = named ? [-0.7, scatter.names.length - 0.3] : padded([...points.map((point) => point.y), ...limits("y")], scatter.log);
  if (!plot.parentNode.querySelector(".legend")) chartKeys(plot, { curves: scatter.groups });
  let tip;
  const read = (u) => {
    const found = nearest(u, scatter);
    if (!found) return place(u, tip, []);
    const [point, number] = found, lines = [line(seriesColour(number), scatter.groups[number].label, point.text || "")];
    if (!named) lines.push(line(null, scatter.y, compact.format(point.y)), line(null, scatter.x, compact.format(point.x)));
    place(u, tip, lines);
  };
  const longest = Math.max(0, ...scatter.names.map((name) => name.length));
  const words = { size: Math.min(8 * longest + 10, plot.clientWidth / 3), splits: () => scatter.names.map((_, index) => index) };
  const u = new uPlot({
    width: plot.clientWidth, height: named ? Math.max(24 * scatter.names.length + 60, HEIGHT) : 360, legend: { show: false },
    series: [{}, { paths: () => null, points: { show: false } }],
    scales: {
      x: { time: false, range: (_, low, high) => (low === null || low === high ? all : [low, high]) },
      y: { dir: named ? -1 : 1, distr: scatter.log ? 3 : 1, range: (_, low, high) => (low === null || low === high ? up : [low, high]) },
    },
    axes: [
      axis((_, ticks) => ticks.map((tick, number) => short(tick) + (number === ticks.length - 1 ? ` ${scatter.x}` : "")), 28,
        { space: 80 }),
      named ? axis((_, ticks) => ticks.map((tick) => scatter.names[tick]), words.size, { splits: words.splits })
        : axis((_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))), 48,
          scatter.log ? { splits: (_, __, low, high) => logTicks(low, high, 7), filter: (_, ticks) => ticks } : { space: 36 }),
    ],
    cursor: { drag: { x: true, y: !named, uni: 24 }, points: { show: false } },
    hooks: { draw: [(it) => drawPoints(it, scatter)], setCursor: [(it) => tip && read(it)] },
  }, [all, up], plot);
  tip = makeTip(u);
  u.setScale("x", { min: all[0], max: all[1] });
  u.setScale("y", { min: up[0], max: up[1] });
  u.over.addEventListener("dblclick", () => {
    u.setScale("x", { min: all[0], max: all[1] });
    u.setScale("y", { min: up[0], max: up[1] });
  });
  return { u, all, log: false };
}

/** Let the keys move the cursor and zoom. */
function onKey(event, { u, all, log }) {
  const width = u.over.clientWidth, height = u.over.clientHeight;
  const left = u.cursor.left < 0 ? width / 2 : u.cursor.left, top = u.cursor.top < 0 ? height / 2 : u.cursor.top;
  const move = { ArrowLeft: [-width / 50, 0], ArrowRight: [width / 50, 0], ArrowUp: [0, -height / 50], ArrowDown: [0, height / 50] };
  if (move[event.key]) {
    const [dx, dy] = move[event.key];
    u.setCursor({ left: Math.min(Math.max(left + dx, 0), width), top: Math.min(Math.max(top + dy, 0), height) });
  } else if (event.key === "+" || event.key === "-") {
    const factor = event.key === "+" ? 0.5 : 2, at = u.posToVal(left, "x"), { min, max } = u.scales.x;
    const from = log ? at * (min / at) ** factor : at - (at - min) * factor;
    const to = log ? at * (max / at) ** factor : at + (max - at) * factor;
    u.setScale("x", { min: Math.max(from, all[0]), max: Math.min(to, all[1]) });
  } else if (event.key === "0" || event.key === "Escape") {
    u.setScale("x", { min: all[0], max: all[1] });
    u.setCursor({ left: -10, top: -10 });
  } else return;
  event.preventDefault();
}

const drawn = new Map();

function draw(plot) {
  drawn.get(plot)?.u.destroy();
  const { chart, timeline } = plot.dataset;
  drawn.set(plot, chart ? drawChart(plot) : timeline ? drawTimeline(plot) : drawScatter(plot));
}

const plots = [...document.querySelectorAll(".plot")];
plots.forEach((plot) => {
  draw(plot);
  plot.addEventListener("keydown", (event) => onKey(event, drawn.get(plot)));
});
plots.forEach((plot) => new ResizeObserver(() => {
  const { u } = drawn.get(plot);
  if (plot.clientWidth && u.width !== plot.clientWidth) u.setSize({ width: plot.clientWidth, height: u.height });
}).observe(plot));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
