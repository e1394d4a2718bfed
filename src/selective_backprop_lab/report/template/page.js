"use strict";
const page = JSON.parse(document.getElementById("page-data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const asked = new URLSearchParams(location.search);
const hidden = new Set(asked.getAll("hide"));
const drawn = new Map();  // id of a figure -> its Vega view
const restored = takeState();

// What the reader did before the page loaded itself again, apart from what is in its address; null if it did not.
function takeState() {
  if (location.protocol === "about:") return null; // in the frame of a notebook, which has no store of its own
  const state = sessionStorage.getItem(location.pathname);
  sessionStorage.removeItem(location.pathname);
  return state && JSON.parse(state);
}

function rowsOf(number) {
  const columns = Object.entries(page.tables[number]).map(([name, column]) =>
    [name, column.words ? column.numbers.map(i => column.words[i]) : column]);
  return columns[0][1].map((_, i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
}

const shownRows = id => rowsOf(page.figures[id].table);

function legendFields(spec, found = new Set()) {
  for (const {field, legend} of Object.values(spec.encoding ?? {})) if (field && legend) found.add(field);
  for (const part of spec.layer ?? []) legendFields(part, found);
  return found;
}

async function draw(element) {
  const id = element.id, figure = page.figures[id], chart = element.querySelector(".chart");
  const theme = page.themes[dark.matches ? "dark" : "light"];
  const spec = {width: "container", height: 260, description: chart.getAttribute("aria-label"), ...figure.spec,
    // On the right there is room for half a label of a tick that stands at the end of its axis.
    padding: {left: 5, top: 5, right: 16, bottom: 5}, data: {name: "rows", values: shownRows(id)}};
  // Legends wrap by the room there is: bars have long names on their left, phones have little of it anyway.
  const room = chart.clientWidth * (figure.spec.mark === "bar" ? 0.65 : 1) - 80, fields = [...legendFields(figure.spec)];
  const longest = Math.max(...spec.data.values.flatMap(row => fields.map(field => String(row[field] ?? "").length)));
  const columns = Math.max(1, Math.min(6, Math.floor(room / (30 + 7 * longest))));
  const config = {...theme,
    axis: {...theme.axis, ...(chart.clientWidth <= 420 ? {tickCount: 4} : {})},
    legend: {...theme.legend, columns}};
  // What the reader had chosen below the chart stays chosen when it is drawn again, or loaded again.
  const before = drawn.get(id), signals = before ? before.getState().signals : restored?.signals[id] ?? {};
  const chosen = (figure.spec.params ?? []).filter(param => param.bind && param.name in signals
    && (param.bind.options?.includes(signals[param.name]) ?? true));
  if (before) chart.style.minHeight = `${chart.offsetHeight}px`;  // or all below it would jump
  const inner = document.createElement("div");  // Vega gives it a role of its own
  before?.finalize();
  chart.replaceChildren(inner);
  const result = await vegaEmbed(inner, spec, {
    renderer: "svg", config, actions: false,
  });
  drawn.set(id, result.view);
  if (figure.spec.params?.some(param => param.name === "hidden")) result.view.signal("hidden", [...hidden]);
  for (const {name} of chosen) result.view.signal(name, signals[name]);
  await result.view.runAsync();
  chart.style.minHeight = "";
  element.dataset.drawn = "yes";
}

// In the page, the title is above the chart: a file needs it in it.
async function picture(id, kind) {
  const figure = page.figures[id], rows = shownRows(id), view = drawn.get(id);
  const chosen = (figure.spec.params ?? []).filter(param => param.bind).map(param => `${param.bind.name}: ${view.signal(param.name)}`);
  const subtitle = [figure.subtitle, ...chosen].filter(Boolean).join(", ");
  const spec = {width: 480, height: 260, padding: 12, ...figure.spec, background: "white",
    title: {text: figure.title, subtitle, offset: 14}, data: {name: "rows", values: rows}};
  const {view: copy} = await vegaEmbed(document.createElement("div"), spec,
    {renderer: "svg", actions: false, config: {...page.themes.light, background: "white"}});
  for (const {name} of figure.spec.params ?? []) copy.signal(name, view.signal(name));
  await copy.runAsync();
  const url = await copy.toImageURL(kind, 2);
  copy.finalize();
  return url;
}

const onClick = (what, act) => document.addEventListener("click", event => {
  const found = event.target.closest(what);
  if (found) act(found);
});

onClick(".save button", async button => {
  const figure = button.closest("figure"), link = document.createElement("a");
  if (!drawn.get(figure.id)) await draw(figure);
  link.href = await picture(figure.id, button.dataset.kind);
  link.download = `${figure.id}.${button.dataset.kind}`;
  link.click();
});

// Charts are drawn when they come near the screen: a page of many opens at once.
const near = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) {
    if (isIntersecting && !drawn.has(target.id)) { drawn.set(target.id, null); draw(target); }
  }
}, {rootMargin: "400px"});
const figures = Object.keys(page.figures).map(id => document.getElementById(id));
figures.forEach(figure => near.observe(figure));
addEventListener("beforeprint", () => {
  document.querySelectorAll("details.workload").forEach(details => { details.open = true; });
  figures.forEach(figure => drawn.has(figure.id) || draw(figure));
});
dark.addEventListener("change", () => figures.forEach(figure => drawn.has(figure.id) && draw(figure)));

// What is hidden and what was opened is in the address: a reader can pass it on, and it survives a reload.
function remember() {
  if (location.protocol === "about:") return; // in the frame of a notebook, which has no address of its own
  const state = new URLSearchParams();
  hidden.forEach(name => state.append("hide", name));
  document.querySelectorAll("details.workload[open]").forEach(details => state.append("open", details.id));
  const query = state.toString();
  history.replaceState(null, "", location.pathname + (query ? `?${query}` : "") + location.hash);
}

function showMethods() {
  for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.name)));
  for (const row of document.querySelectorAll("tr[data-method]")) {
    row.hidden = hidden.has(row.dataset.method) || (row.dataset.budget !== "" && hidden.has(row.dataset.budget));
  }
  for (const [id, view] of drawn) {
    if (view && page.figures[id].spec.params?.some(param => param.name === "hidden")) view.signal("hidden", [...hidden]).run();
  }
  for (const details of document.querySelectorAll("details.data[open]")) fill(details);
}

onClick(".chip", chip => {
  hidden[hidden.has(chip.dataset.name) ? "delete" : "add"](chip.dataset.name);
  showMethods();
  remember();
});

for (const details of document.querySelectorAll("details.workload")) {
  if (asked.getAll("open").includes(details.id)) details.open = true;
}
// It does not bubble, hence the capture.
document.addEventListener("toggle", event => {
  if (event.target.matches("details.workload")) remember();
  if (event.target.matches("details.data")) fill(event.target);
}, true);

// A link to something within a workload that is closed opens it.
function openTarget() {
  const target = location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  const details = target?.closest("details.workload");
  if (details) { details.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);

// Fields that the chart itself prints as percentages.
function percentages(spec, found = new Set()) {
  if (spec && typeof spec === "object") {
    const format = spec.format ?? spec.axis?.format;
    if (spec.field && typeof format === "string" && /[%p]$/.test(format)) found.add(spec.field);
    for (const [key, part] of Object.entries(spec)) if (key !== "data") percentages(part, found);
  }
  return found;
}

function dataTable(id) {
  const rows = shownRows(id).filter(row => !hidden.has(row.method) && !hidden.has(row.budget));
  const names = Object.keys(rows[0] ?? {}), percent = percentages(page.figures[id].spec);
  if (percent.has("error")) percent.add("lowest").add("highest");
  // The label says both method and budget.
  const columns = names.includes("run") ? ["run", ...names.filter(name => !["run", "method", "budget"].includes(name))]
    : ["method", ...names].filter((name, i, all) => names.includes(name) && all.indexOf(name) === i);
  const titles = columns.map(name => name === "run" ? "method" : name);
  const print = (value, name) => typeof value === "number" && percent.has(name) ? `${Number((100 * value).toPrecision(4))}%` : value;
  const table = document.createElement("table"), scroll = document.createElement("div"), save = document.createElement("a");
  const line = (parent, kind, cells) => {
    const row = parent.insertRow();
    for (const cell of cells) row.appendChild(document.createElement(kind)).textContent = cell ?? "";
  };
  line(table.createTHead(), "th", titles);
  const body = table.createTBody();
  for (const row of rows) line(body, "td", columns.map(name => print(row[name], name)));
  const quoted = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const lines = [titles, ...rows.map(row => columns.map(name => row[name]))].map(cells => cells.map(quoted).join(","));
  save.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], {type: "text/csv"}));
  save.download = `${id}.csv`;
  save.textContent = "save as CSV";
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.append(table);
  return [save, scroll];
}

function fill(details) {
  details.replaceChildren(details.querySelector("summary"), ...(details.open ? dataTable(details.closest("figure").id) : []));
}

// ---- while runs go on, the file is written again and again: load it again, and look the same

const topOf = element => element.getBoundingClientRect().top;

function save() {
  const state = {signals: {}, heights: {}};
  for (const [id, view] of drawn) {
    if (!view) continue;
    const names = (page.figures[id].spec.params ?? []).filter(param => param.bind).map(param => param.name);
    state.signals[id] = Object.fromEntries(names.map(name => [name, view.signal(name)]));
    state.heights[id] = document.getElementById(id).querySelector(".chart").offsetHeight;
  }
  state.tables = [...document.querySelectorAll("details.data[open]")].map(details => details.closest("figure").id);
  // What is at the top of the screen may be elsewhere in the new page.
  const seen = [...document.querySelectorAll("main [id]")].findLast(element => element.getClientRects().length && topOf(element) <= 1);
  if (scrollY && seen) Object.assign(state, {seen: seen.id, top: topOf(seen)});
  sessionStorage.setItem(location.pathname, JSON.stringify(state));
}

function restore({heights, tables, seen, top}) {
  for (const [id, height] of Object.entries(heights)) {
    const chart = document.getElementById(id)?.querySelector(".chart");
    if (chart) chart.style.minHeight = `${height}px`;
  }
  for (const id of tables) {
    const details = document.getElementById(id)?.querySelector("details.data");
    if (details) { details.open = true; fill(details); }
  }
  const element = document.getElementById(seen);
  if (element) scrollBy(0, topOf(element) - top);
}

let touched = 0;  // when the reader did something last: nobody is interrupted
for (const kind of ["pointerdown", "keydown", "input", "wheel"]) {
  addEventListener(kind, () => { touched = Date.now(); }, {capture: true, passive: true});
}

function loadAgain() {
  if (document.hidden || Date.now() - touched < 4000 || String(getSelection())) { setTimeout(loadAgain, 1000); return; }
  save();
  location.reload();
}

showMethods();
if (restored) restore(restored);
else openTarget();
if (document.body.dataset.written) {
  history.scrollRestoration = "manual";
  // The older the page, the more rarely it looks for a newer one.
  const age = Date.now() / 1000 - Number(document.body.dataset.written);
  setTimeout(loadAgain, 1000 * Math.min(60, Math.max(5, age / 5)));
}
