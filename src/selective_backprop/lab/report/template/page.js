"use strict";
const page = JSON.parse(document.getElementById("page-data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const hidden = new Set();
const drawn = new Map();  // id of a figure -> its Vega view

function rowsOf(number) {
  const columns = Object.entries(page.tables[number]).map(([name, column]) =>
    [name, column.words ? column.numbers.map(i => column.words[i]) : column]);
  return columns[0][1].map((_, i) => Object.fromEntries(columns.map(([name, values]) => [name, values[i]])));
}

function shownRows(id) {
  const figure = page.figures[id];
  return figure.picked ? rowsOf(figure.choices).filter(row => figure.picked.has(row.example)) : rowsOf(figure.table);
}

async function draw(element) {
  const id = element.id, figure = page.figures[id], chart = element.querySelector(".chart");
  const theme = page.themes[dark.matches ? "dark" : "light"];
  const spec = {width: "container", height: 260, description: chart.getAttribute("aria-label"), ...figure.spec,
    data: {name: "rows", values: shownRows(id)}};
  // Legends wrap by the room there is: bars have long names on their left, phones have little of it anyway.
  const narrow = chart.clientWidth <= 420, bars = figure.spec.encoding?.y?.type === "nominal";
  const config = {...theme,
    axis: {...theme.axis, ...(narrow ? {labelLimit: 110, tickCount: 4} : {})},
    legend: {...theme.legend, ...(narrow ? {columns: bars ? 1 : 2, layout: {top: {direction: "vertical", anchor: "start"}}}
      : bars ? {columns: 3} : {})}};
  const result = await vegaEmbed(chart, spec, {
    renderer: "svg", config, downloadFileName: id,
    actions: {export: true, source: false, compiled: false, editor: false},
  });
  drawn.set(id, result.view);
  chart.querySelector("summary")?.setAttribute("aria-label", "Save as SVG or PNG");
  if (figure.spec.params?.some(param => param.name === "hidden")) await result.view.signal("hidden", [...hidden]).runAsync();
  element.dataset.drawn = "yes";
}

// Charts are drawn when they come near the screen: a page of many opens at once.
const near = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) {
    if (isIntersecting && !drawn.has(target.id)) { drawn.set(target.id, null); draw(target); }
  }
}, {rootMargin: "400px"});
const figures = Object.keys(page.figures).map(id => document.getElementById(id));
figures.forEach(figure => near.observe(figure));
addEventListener("beforeprint", () => figures.forEach(figure => drawn.has(figure.id) || draw(figure)));
dark.addEventListener("change", () => figures.forEach(figure => drawn.has(figure.id) && draw(figure)));

for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    const shown = chip.getAttribute("aria-pressed") !== "true";
    chip.setAttribute("aria-pressed", String(shown));
    hidden[shown ? "delete" : "add"](chip.dataset.name);
    for (const [id, view] of drawn) {
      if (view && page.figures[id].spec.params?.some(param => param.name === "hidden")) view.signal("hidden", [...hidden]).run();
    }
  });
}

document.getElementById("only")?.addEventListener("change", event => {
  for (const part of document.querySelectorAll("[data-comparison]")) {
    part.hidden = event.target.value !== "" && part.dataset.comparison !== event.target.value;
  }
});

function dataTable(id) {
  const rows = shownRows(id), columns = Object.keys(rows[0] ?? {});
  const table = document.createElement("table"), scroll = document.createElement("div"), save = document.createElement("a");
  const line = (parent, kind, cells) => {
    const row = parent.insertRow();
    for (const cell of cells) row.appendChild(document.createElement(kind)).textContent = cell ?? "";
  };
  line(table.createTHead(), "th", columns);
  const body = table.createTBody();
  for (const row of rows) line(body, "td", columns.map(name => row[name]));
  const quoted = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const lines = [columns, ...rows.map(row => columns.map(name => row[name]))].map(cells => cells.map(quoted).join(","));
  save.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], {type: "text/csv"}));
  save.download = `${id}.csv`;
  save.textContent = "save as CSV";
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.append(table);
  return [save, scroll];
}

for (const figure of figures) {
  const details = figure.querySelector("details");
  details.addEventListener("toggle", () => {
    details.replaceChildren(details.querySelector("summary"), ...(details.open ? dataTable(figure.id) : []));
  });
}

for (const form of document.querySelectorAll(".picker")) {
  const id = form.closest("figure").id, figure = page.figures[id];
  const known = [...new Set(rowsOf(figure.choices).map(row => row.example))];
  const input = form.querySelector("input"), hint = form.querySelector("[role=status]");
  input.value = [...new Set(rowsOf(figure.table).map(row => row.example))].join(", ");
  const show = () => {
    const asked = input.value.split(/[\s,]+/).filter(Boolean).map(Number);
    const missing = asked.filter(example => !known.includes(example));
    hint.textContent = missing.length ? `Not in this page: ${missing.join(", ")}. It holds ${known.length} examples, among them ${known.slice(0, 8).join(", ")}.` : "";
    const found = asked.filter(example => known.includes(example)).slice(0, 8);
    if (!found.length) return;
    figure.picked = new Set(found);
    drawn.get(id)?.data("rows", shownRows(id)).run();
  };
  form.addEventListener("submit", event => { event.preventDefault(); show(); });
  form.querySelector(".others").addEventListener("click", () => {
    input.value = Array.from({length: 5}, () => known[Math.floor(Math.random() * known.length)]).join(", ");
    show();
  });
}
