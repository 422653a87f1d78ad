// The parts of the dashboard: each makes its elements once, and afterwards changes the texts in them. Texts are set as text.

const CLASSES = ["system", "interactive", "default", "bulk"];
const CLASS_COLOUR = { system: 3, interactive: 0, default: 2, bulk: 1 };
const MOST_ROWS = 100, MOST_POOLS = 24;
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const classesIn = (table) => [...CLASSES, ...Object.keys(table).filter((name) => !CLASSES.includes(name))].filter((name) => name in table);

/** Return an element with some properties and children. */
function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function span(seconds) {
  if (seconds < 0.95) return `${whole.format(Math.max(seconds, 0) * 1000)} ms`;
  if (seconds < 120) return `${(+seconds).toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 7200 ? `${whole.format(seconds / 60)} min` : `${whole.format(seconds / 3600)} h`;
}

const words = (name) => `${name ?? ""}`.replaceAll("_", " ");
const percent = (share) => `${whole.format(share * 100)} %`;

/** A section with a title. */
class Section {
  constructor(id, title, about) {
    this.note = element("small", { className: "quiet" });
    this.body = element("div", {});
    this.node = element("section", { id, tabIndex: -1 }, element("h2", {}, `${title} `, this.note), this.body);
    this.title = title;
    if (about) this.body.before(element("p", { className: "quiet", textContent: about }));
  }
}

/** A table whose rows are kept by key. A cell is a text, or {text, className, bar, id}; a heading may be {text, className}. */
class Rows {
  constructor(caption, headings, empty) {
    this.headings = headings.map((each) => each.text ?? each);
    this.rows = new Map();
    this.tbody = element("tbody", {});
    const head = element("tr", {}, ...headings.map((each, index) => element("th", { scope: "col", className: each.className ?? "", textContent: this.headings[index] })));
    const table = element("table", {}, element("caption", { textContent: caption }), element("thead", {}, head), this.tbody);
    this.scroll = element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption }, table);
    this.more = element("p", { className: "empty", hidden: true });
    this.empty = element("p", { className: "empty", textContent: empty });
    this.node = element("div", {}, this.scroll, this.more, this.empty);
  }

  /** Show [key, cells] in this order, at most MOST_ROWS. */
  show(entries, total = entries.length) {
    const shown = entries.slice(0, MOST_ROWS), keys = new Set(shown.map(([key]) => key));
    this.scroll.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    this.more.hidden = total <= shown.length;
    setText(this.more, `and ${whole.format(total - shown.length)} more`);
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    shown.forEach(([key, cells], place) => {
      let row = this.rows.get(key);
      if (!row) {
        row = element("tr", {}, ...cells.map((_, index) => this.cell(index)));
        this.rows.set(key, row);
      }
      if (this.tbody.children[place] !== row) this.tbody.insertBefore(row, this.tbody.children[place] ?? null);
      cells.forEach((cell, index) => fill(row.children[index], cell));
    });
  }

  cell(index) {
    const made = element(index ? "td" : "th", {});
    if (!index) made.scope = "row";
    made.dataset.label = this.headings[index];
    return made;
  }
}

function fill(node, cell) {
  const { text, className = "", bar = null, id = null } = typeof cell === "object" && cell !== null ? cell : { text: cell };
  if (node.className !== className) node.className = className;
  if (id !== null) {
    if (node.dataset.id !== id) {
      node.dataset.id = id;
      node.replaceChildren(element("button", { className: "id", type: "button", textContent: text, title: id }));
    }
  } else if (bar !== null) {
    if (!node.firstElementChild) node.replaceChildren(element("span", { className: "bar" }, element("i", {})), "");
    const [frame, words] = node.childNodes;
    frame.firstChild.style.width = `${100 * Math.min(Math.max(bar, 0), 1)}%`; // Without a space, or it is no width.
    frame.firstChild.className = bar > 0.9 ? "full" : "";
    if (words.nodeValue !== text) words.nodeValue = text;
  } else setText(node, `${text ?? ""}`);
}

/** Mark a table of examples: on a phone its first rows are enough. */
function brief(rows) {
  rows.node.className = "brief";
  return rows;
}

/** What is true now, in tiles. */
class Tiles {
  constructor() {
    this.node = element("dl", { className: "tiles" });
    this.tiles = new Map();
  }

  show(values) {
    for (const [label, value, note, className] of values) {
      let tile = this.tiles.get(label);
      if (!tile) {
        tile = { value: document.createTextNode(""), note: element("span", { className: "note" }) };
        tile.node = element("div", {}, element("dt", { textContent: label }), element("dd", {}, tile.value, tile.note));
        this.tiles.set(label, tile);
        this.node.append(tile.node);
      }
      tile.node.className = `tile ${className ?? ""}`;
      if (tile.value.nodeValue !== value) tile.value.nodeValue = value;
      setText(tile.note, note ?? "");
    }
  }
}

/** The slots of one model as seats: those in use, those held back for a class, and free ones. */
class Seats {
  constructor(name) {
    this.title = element("h3", { textContent: name });
    this.about = element("span", { className: "quiet" });
    this.canvas = element("canvas", { role: "img" });
    this.legend = element("div", { className: "legend" });
    this.node = element("div", { className: "pool" }, this.title, this.about, this.canvas, this.legend);
    this.drawn = "";
  }

  show(pool, { force = false } = {}) {
    const width = this.canvas.clientWidth, told = JSON.stringify([pool, width]);
    if (!width || (told === this.drawn && !force)) return;
    this.drawn = told;
    const { capacity } = pool, used = classesIn(pool.held_by), slots = capacity ?? Math.max(pool.in_flight, 1);
    setText(this.about, `${whole.format(pool.in_flight)} of ${capacity === undefined ? "unlimited" : whole.format(capacity)} slots in use, ${whole.format(pool.waiting)} waiting`);
    const seats = used.flatMap((name) => [[name, pool.held_by[name], "used"]]);
    let free = Math.max(slots - pool.in_flight, 0);
    for (const name of classesIn(pool.held)) {
      const held = Math.min(pool.held[name], free);
      free -= held;
      seats.push([name, held, "held"]);
    }
    seats.push(["", free, "free"]);
    this.draw(seats, Math.max(slots, pool.in_flight), slots, width);
    this.canvas.ariaLabel = `${this.about.textContent}: ${seats.filter(([, count]) => count).map(([name, count, kind]) => `${count} ${kind === "free" ? "free" : kind === "held" ? `held back for ${name}` : name}`).join(", ")}`;
    this.legend.replaceChildren(...used.map((name) => line(seriesColour(CLASS_COLOUR[name] ?? 4), name,
      `${whole.format(pool.held_by[name])}${pool.reserved[name] ? ` / ${whole.format(pool.reserved[name])} reserved` : ""}${pool.waiting_by[name] ? `, ${whole.format(pool.waiting_by[name])} waiting` : ""}`)));
  }

  draw(seats, total, slots, width) {
    const size = [18, 14, 10, 8, 6, 4, 3, 2].find((each) => Math.ceil(total / Math.floor(width / each)) * each <= 150) ?? 2;
    const across = Math.max(Math.floor(width / size), 1), ratio = devicePixelRatio, gap = size > 5 ? 2 : size > 2 ? 1 : 0;
    const height = Math.ceil(total / across) * size;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d"), grid = colourOf("--grid"), over = colourOf("--bad");
    ctx.scale(ratio, ratio);
    let seat = 0;
    for (const [name, count, kind] of seats) {
      const colour = kind === "free" ? grid : seriesColour(CLASS_COLOUR[name] ?? 4);
      ctx.fillStyle = ctx.strokeStyle = colour;
      for (let each = 0; each < count; each++, seat++) {
        const x = (seat % across) * size, y = Math.floor(seat / across) * size, side = size - gap;
        if (kind === "held" && size > 4) {
          ctx.fillStyle = grid;
          ctx.fillRect(x, y, side, side);
          ctx.lineWidth = 1.5;
          ctx.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
        } else {
          ctx.globalAlpha = kind === "held" ? 0.4 : 1;
          ctx.fillStyle = seat >= slots ? over : colour;
          ctx.fillRect(x, y, side, side);
          ctx.globalAlpha = 1;
        }
      }
    }
  }
}

/** One percentile of TTFT, by class. */
class LatencyChart {
  constructor(field, title) {
    this.field = field;
    this.plot = element("div", { className: "plot", tabIndex: 0, role: "img", ariaLabel: title });
    this.legend = element("div", { className: "legend" });
    this.node = element("figure", { className: "chart" }, element("figcaption", {}, `${title} `, element("small", { textContent: "ms" })), this.legend, this.plot);
    this.classes = "";
    this.told = "";
  }

  show(ttft, at, { force = false } = {}) {
    const classes = classesIn(ttft), width = this.plot.clientWidth, told = JSON.stringify(ttft);
    if (!width || (told === this.told && !force && this.width === width)) return;
    this.told = told;
    const times = [...new Set(classes.flatMap((name) => Object.keys(ttft[name]).map(Number)))].sort((a, b) => a - b);
    const data = [times.map((time) => (time - at) / 60), ...classes.map((name) => times.map((time) => ttft[name][time]?.[this.field] ?? null))];
    if (force || this.width !== width || this.classes !== classes.join()) this.make(classes, width);
    this.u.setData(data);
    this.u.setScale("x", { min: -10, max: 0 });
    const last = classes.map((name, index) => [name, data[index + 1].findLast((value) => value !== null)]);
    this.plot.ariaLabel = `${this.node.querySelector("figcaption").firstChild.nodeValue}: ${last.map(([name, value]) => `${name} ${milliseconds(value)}`).join(", ") || "no answers yet"}`;
    this.legend.replaceChildren(...last.map(([name, value]) => line(seriesColour(CLASS_COLOUR[name] ?? 4), name, milliseconds(value))));
  }

  make(classes, width) {
    this.u?.destroy();
    this.width = width;
    this.classes = classes.join();
    let tip;
    this.u = new uPlot({
      width, height: 180, legend: { show: false },
      series: [{}, ...classes.map((name) => ({
        label: name, stroke: seriesColour(CLASS_COLOUR[name] ?? 4), width: 2, spanGaps: true, points: { show: true, size: 4 },
      }))],
      scales: { x: { time: false }, y: { range: (_, __, high) => [0, (high || 1) * 1.1] } },
      axes: [
        axis((_, ticks) => ticks.map((tick, index) => (index === ticks.length - 1 ? `${tick} min` : `${tick}`)), 28, { space: 50 }),
        axis((_, ticks) => ticks.map(short), 48, { space: 36 }),
      ],
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      hooks: { setCursor: [(u) => {
        const index = u.cursor.idx;
        if (!tip) return;
        if (index === null || index === undefined || u.cursor.left < 0) return place(u, tip, []);
        const lines = [line(null, "", `${span(-u.data[0][index] * 60)} ago`)];
        classes.forEach((name, number) => {
          const value = u.data[number + 1][index];
          if (value !== null && value !== undefined) lines.push(line(seriesColour(CLASS_COLOUR[name] ?? 4), name, milliseconds(value)));
        });
        place(u, tip, lines);
      }] },
    }, [[], ...classes.map(() => [])], this.plot);
    tip = makeTip(this.u);
  }

  /** Let the arrow keys move the cursor. */
  onKey(event) {
    if (!this.u || !["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
    const { clientWidth } = this.u.over, left = this.u.cursor.left < 0 ? clientWidth : this.u.cursor.left;
    const to = event.key === "Escape" ? -10 : left + (event.key === "ArrowLeft" ? -1 : 1) * clientWidth / 60;
    this.u.setCursor({ left: event.key === "Escape" ? -10 : Math.min(Math.max(to, 0), clientWidth), top: 20 });
    event.preventDefault();
  }
}
