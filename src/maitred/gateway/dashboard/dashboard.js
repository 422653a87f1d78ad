// Puts the parts together: what is shown of a state, the key, the keyboard.

const byId = (id) => document.getElementById(id);
const KEY = "maitred.key";
const tiles = new Tiles();
const slots = new Section("slots", "Slots", "Filled: in use, by class. Outlined: held back for a class that has reserved them. Grey: free.");
const queues = new Section("queues", "Queues");
const latency = new Section("ttft", "Time to first token", "The last ten minutes, in intervals of ten seconds.");
const engines = new Section("engines", "Engines");
const programs = new Section("programs", "Programs");
const tenants = new Section("tenants", "Tenants");
const cluster = new Section("gateways", "Gateways");
const decisions = new Section("decisions", "Decisions", "The last ones of admission, the newest of each kind.");
const shadow = new Section("shadow", "Shadow");
const sections = [slots, queues, latency, decisions, engines, programs, tenants, shadow, cluster];

const left = (text) => ({ text, className: "words" });
const queueRows = new Rows("By class", ["class", "waiting", "room", "longest wait", "median wait", "admitted", "promoted", "preempted", "refused"], "No class has had a request.");
const oldestRows = brief(new Rows("Longest waits", ["request", "class", "tenant", "model", "waits"], "Nothing waits."));
const engineRows = new Rows("Engines", ["engine", left("state"), "in flight", "slots", "running", "waiting", "KV", left("slots, why"), left("models")], "No engine is known.");
const programRows = new Rows("Programs", ["program", "tenant", left("state"), "tokens", "requests", left("engine"), "class"], "No program has an id.");
const tenantRows = new Rows("Tenants", ["tenant", "in flight", "waiting"], "No tenant has a request here.");
const decisionRows = brief(new Rows("Last decisions", ["request", left("decided"), left("why"), "class", "tenant", left("beside"), "ago"], "Nothing was decided since this page looks."));
const kindRows = new Rows("Disagreements", ["the shadow would", "times"], "");
const exampleRows = brief(new Rows("Latest", ["request", left("kind"), left("in force"), left("in the shadow"), "tenant", "model", "ago"], "They have agreed so far."));
const gatewayRows = new Rows("Gateways", ["gateway", left("link"), "in flight", "waiting", "heard"], "No gateway is connected.");
const pools = element("div", { className: "pools" }), poolNote = element("p", { className: "empty", hidden: true });
const seats = new Map();
const charts = [new LatencyChart("p50_ms", "p50"), new LatencyChart("p99_ms", "p99")];

let last = null, received = 0, paused = false, problem = "";
const now = () => last.at + (performance.now() - received) / 1000;
const age = (since) => span(now() - since);

function showTiles(live) {
  const { state } = live, classes = Object.values(state.classes ?? {}), engines = Object.values(live.backends ?? {});
  const sum = (field) => classes.reduce((total, each) => total + (each[field] ?? 0), 0);
  const up = engines.filter((each) => each.healthy).length;
  tiles.show([
    ["in flight", whole.format(state.in_flight), state.capacity === undefined ? "no limit" : `of ${whole.format(state.capacity)} slots`],
    ["waiting", whole.format(state.waiting), `mode ${state.mode}`],
    ["engines up", `${whole.format(up)} of ${whole.format(engines.length)}`, "", up < engines.length ? "bad" : ""],
    ["completed", whole.format(sum("completed")), `${whole.format(sum("arrived"))} arrived`],
    ["refused", whole.format(sum("rejected") + sum("rate_limited")), "queue full, timeout, limits"],
    ["preempted", whole.format(sum("preempted") + sum("retried")), `${whole.format(sum("promoted"))} promoted`],
    ["connections", whole.format(state.num_connections ?? 0), "of clients"],
  ]);
}

function showSlots(live, options) {
  const all = Object.entries(live.state.pools ?? {}).sort(([a, x], [b, y]) => y.in_flight + y.waiting - x.in_flight - x.waiting || (a < b ? -1 : 1));
  const shown = all.slice(0, MOST_POOLS), names = new Set(shown.map(([name]) => name));
  for (const [name, each] of seats) {
    if (names.has(name)) continue;
    each.node.remove();
    seats.delete(name);
  }
  for (const [name, pool] of shown) {
    let each = seats.get(name);
    if (!each) {
      each = new Seats(name === "*" ? "all models" : name);
      seats.set(name, each);
      pools.append(each.node);
    }
    each.show(pool, options);
  }
  poolNote.hidden = all.length <= shown.length;
  setText(poolNote, `and ${whole.format(all.length - shown.length)} more models`);
}

function showQueues(live) {
  const classes = live.state.classes ?? {}, views = live.queues ?? {};
  queueRows.show(classesIn(classes).map((name) => {
    const counts = classes[name], view = views[name];
    const oldest = view?.oldest?.[0]?.since;
    return [name, [
      name, whole.format(counts.waiting), whole.format(counts.queue_size), oldest === undefined ? "" : age(oldest),
      view?.median_since === undefined ? "" : age(view.median_since), whole.format(counts.admitted), whole.format(counts.promoted),
      whole.format(counts.preempted + counts.retried), whole.format(counts.rejected + counts.rate_limited),
    ]];
  }));
  const oldest = Object.entries(views).flatMap(([name, view]) => (view.oldest ?? []).map((each) => [name, each]));
  oldest.sort(([, a], [, b]) => a.since - b.since);
  oldestRows.show(oldest.map(([name, each]) => [each.id, [{ text: each.id, id: each.id }, name, each.tenant, each.model, age(each.since)]]), live.state.waiting);
}

function stateOf(engine) {
  if (!engine.healthy) return { text: `down: ${engine.problem || "not reached yet"}`, className: "bad words wide" };
  if (engine.draining) return { text: "drained", className: "words" };
  if (engine.ejection?.state && engine.ejection.state !== "closed") return { text: words(engine.ejection.state), className: "bad words" };
  return { text: "up", className: "good words" };
}

function whyOf({ source, learned }) {
  if (!learned) return words(source);
  const limit = learned.limit === undefined ? "limit not known yet" : `limit ${learned.limit}`;
  const change = learned.last_change === undefined ? "" : `; ${words(learned.last_change)}, ${span(learned.changed_secs_ago)} ago`;
  return `learned, ${words(learned.state)}: ${limit}${change}`;
}

function showEngines(live) {
  const all = Object.entries(live.backends ?? {}).sort(([a, x], [b, y]) => x.healthy - y.healthy || y.in_flight - x.in_flight || (a < b ? -1 : 1));
  engineRows.show(all.map(([url, engine]) => {
    const kv = engine.load?.kv_usage;
    return [url, [
      url, stateOf(engine), whole.format(engine.in_flight), engine.slots === undefined ? "–" : whole.format(engine.slots), engine.load?.running ?? "–", engine.load?.waiting ?? "–",
      kv === undefined ? "–" : { bar: kv, text: percent(kv) }, { text: whyOf(engine), className: "words" },
      { text: (engine.models ?? []).join(", "), className: "words wide" },
    ]];
  }));
}

function showPrograms(live) {
  programs.node.hidden = !live.programs;
  if (!live.programs) return;
  const { counts, shown = {} } = live.programs;
  setText(programs.note, `${whole.format(counts.total)}: ${whole.format(counts.reasoning)} reasoning, ${whole.format(counts.acting)} acting, ${whole.format(counts.paused)} paused, ${whole.format(counts.marked_for_pause)} to be paused`);
  programRows.show(Object.entries(shown).map(([name, each]) => [name, [
    { text: name, className: "wide" }, each.tenant, { text: `${each.state}, ${each.status}${each.marked_for_pause ? ", to be paused" : ""}`, className: each.state === "paused" ? "bad words" : "words" },
    whole.format(each.total_tokens), whole.format(each.step_count), { text: each.backend ?? "–", className: "words wide" }, each.priority_class,
  ]]), counts.total);
}

function showTenants(live) {
  const all = Object.entries(live.state.tenants ?? {}).sort(([a, x], [b, y]) => y.waiting - x.waiting || y.in_flight - x.in_flight || (a < b ? -1 : 1));
  tenantRows.show(all.map(([name, each]) => [name, [{ text: name, className: "wide" }, whole.format(each.in_flight), whole.format(each.waiting)]]));
}

function showDecisions(live) {
  const all = live.decisions ?? [];
  decisionRows.show(all.map((each) => [`${each.at} ${each.id} ${each.action} ${each.reason}`, [
    { text: each.id, id: each.id }, { text: words(each.action), className: each.action === "reject" || each.action === "preempt" ? "bad words" : "words" },
    { text: words(each.reason), className: "words" }, each.priority_class, each.tenant, { text: each.other, className: "words wide" }, age(each.at),
  ]]));
}

const WOULD = { admit: "admit", queue: "let wait", refuse: "refuse", victim: "choose other victims", instance: "send elsewhere", pause: "pause other programs" };

function showShadow(live) {
  const found = live.shadow;
  shadow.node.hidden = !found;
  if (!found) return;
  const compared = Object.values(found.compared ?? {}).reduce((total, each) => total + each, 0);
  const skipped = found.skipped_requests ? `, ${whole.format(found.skipped_requests)} requests skipped` : "";
  const lacks = Object.entries(found.not_compared ?? {}).map(([room, what]) => `; ${room} not compared: reads ${what}`).join("");
  setText(shadow.note, found.active ? `${found.file}: ${whole.format(compared)} decisions compared${skipped}${lacks}` : `${found.file} is switched off: ${found.problem}`);
  shadow.note.className = found.active ? "quiet" : "bad";
  kindRows.show(Object.entries(found.disagreements ?? {}).map(([kind, count]) => [kind, [WOULD[kind] ?? kind, whole.format(count)]]));
  exampleRows.show((found.examples ?? []).map((each) => [`${each.kind} ${each.id}`, [
    each.kind === "pause" ? { text: each.id, className: "wide" } : { text: each.id, id: each.id }, { text: each.kind, className: "words" }, { text: each.real, className: "words" },
    { text: each.shadow, className: "words" }, each.tenant, each.model, span(each.secs_ago),
  ]]));
}

function showCluster(live) {
  const found = live.state.cluster;
  cluster.node.hidden = !found;
  if (!found) return;
  const leader = found.leader === undefined ? "no leader is known" : `leader ${found.leader}`;
  setText(cluster.note, `this is the ${found.role} ${found.name}: ${words(found.mode)}, epoch ${found.epoch}; ${leader}${found.problem === undefined ? "" : `; ${found.problem}`}`);
  gatewayRows.node.hidden = found.role !== "scheduler";
  // Those of one machine may have one name.
  gatewayRows.show((found.gateways ?? []).map((each, index) => [`${index} ${each.name}`, [
    each.name, { text: each.connected ? "linked" : "gone", className: each.connected ? "good words" : "bad words" },
    whole.format(each.in_flight), whole.format(each.waiting), `${span(each.heard_secs_ago)} ago`,
  ]]));
}

function showNavigation() {
  [...byId("sections").children].forEach((link, index) => { link.hidden = sections[index].node.hidden; });
}

function show(live, options) {
  last = live;
  showTiles(live);
  showSlots(live, options);
  showQueues(live);
  latency.node.hidden = live.state.cluster?.role === "scheduler"; // Answers pass through its gateways.
  if (!latency.node.hidden) charts.forEach((chart) => chart.show(live.ttft ?? {}, live.at, options));
  showEngines(live);
  showPrograms(live);
  showTenants(live);
  showDecisions(live);
  showShadow(live);
  showCluster(live);
  showNavigation();
  byId("fallback").hidden = !live.state.config_fallback;
  setText(byId("fallback"), live.state.config_fallback ?? "");
}

function showStatus() {
  const late = received && performance.now() - received > 5000 && !paused;
  const about = problem || (late ? "no news" : paused ? "paused" : "live");
  const since = received ? `, ${new Date(performance.timeOrigin + received).toLocaleTimeString()}` : "";
  byId("status").classList.toggle("late", Boolean(late || problem));
  setText(byId("status"), received || problem ? `${about}${since}` : "Connecting …");
}

function ask(message) {
  byId("main").hidden = true;
  byId("login").hidden = false;
  setText(byId("refused"), message);
  byId("key").focus();
}

const follower = new Follower({
  onState(live) {
    problem = "";
    received = performance.now();
    byId("login").hidden = true;
    byId("main").hidden = false;
    if (!paused) requestAnimationFrame(() => show(live));
    showStatus();
  },
  onProblem(message) {
    problem = message;
    showStatus();
  },
  onRefused(status, message) {
    sessionStorage.removeItem(KEY);
    problem = "not signed in";
    showStatus();
    ask(follower.key || status === 403 ? message : "");
  },
});

/** Show why a request is where it is. */
async function tellWhy(id) {
  setText(byId("why-title"), `Request ${id}`);
  const story = byId("story"), tell = (...nodes) => story.replaceChildren(...nodes);
  tell(element("p", { className: "quiet", textContent: "…" }));
  byId("why").showModal();
  try {
    const response = await fetch(`admin/requests/${encodeURIComponent(id)}`, { headers: { ...withKey(follower.key), accept: "application/json" }, cache: "no-store" });
    if (!response.ok) {
      tell(element("p", { textContent: response.status === 404 ? "This gateway has no story of this request: it is too long ago, or its stories are not kept." : await problemOf(response) }));
      return;
    }
    const told = await response.json(), sentences = told.sentences ?? told.story;
    const list = Array.isArray(sentences) ? [element("ol", {}, ...sentences.map((each) => element("li", { textContent: typeof each === "string" ? each : JSON.stringify(each) })))] : [];
    tell(...list, element("details", { open: !list.length }, element("summary", { textContent: "JSON" }), element("pre", { textContent: JSON.stringify(told, null, 2) })));
  } catch {
    tell(element("p", { textContent: "The gateway does not answer." }));
  }
}

slots.body.append(pools, poolNote);
queues.body.append(queueRows.node, oldestRows.node);
latency.body.append(element("div", { className: "charts" }, ...charts.map((chart) => chart.node)));
engines.body.append(engineRows.node);
programs.body.append(programRows.node);
tenants.body.append(tenantRows.node);
decisions.body.append(decisionRows.node);
shadow.body.append(kindRows.node, exampleRows.node);
cluster.body.append(gatewayRows.node);
byId("main").append(tiles.node, ...sections.map((each) => each.node));
byId("sections").append(...sections.map((each, index) => element("a", { href: `#${each.node.id}` }, element("kbd", { textContent: `${index + 1} ` }), each.title)));
charts.forEach((chart) => chart.plot.addEventListener("keydown", (event) => chart.onKey(event)));

document.addEventListener("click", (event) => {
  const id = event.target.closest?.("[data-id]")?.dataset.id;
  if (id !== undefined && event.target.closest("button.id")) tellWhy(id);
});
document.addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const section = sections[Number(event.key) - 1];
  if (section && !section.node.hidden) {
    section.node.scrollIntoView();
    section.node.focus({ preventScroll: true });
  } else if (event.key === "p") {
    paused = !paused;
    if (!paused && follower.state) show(follower.state);
    showStatus();
  } else return;
  event.preventDefault();
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  byId("key").value = "";
  sessionStorage.setItem(KEY, key);
  follower.start(key);
});
const redraw = () => last && show(last, { force: true });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(() => last && show(last)).observe(byId("main"));
setInterval(showStatus, 1000);
follower.start(sessionStorage.getItem(KEY) ?? "");
