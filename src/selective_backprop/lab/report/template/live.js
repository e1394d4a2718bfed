"use strict";
// A newer page of the same runs takes the place of this one, part by part. What is open, hidden, chosen, typed or
// scrolled to stays, and so does every chart whose data are the same.

const keyOf = node => node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.name || "" : "";
const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
// Made by the page's script or by the reader: the server knows nothing of them.
const OWN_ATTRIBUTES = ["open", "aria-pressed", "data-drawn"];
const OWN_CONTENT = ".chart, details.data, .picker";

function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const {name, value} of [...fresh.attributes]) {
    if (!OWN_ATTRIBUTES.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const {name} of [...old.attributes]) {
    if (!OWN_ATTRIBUTES.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  if (old.matches(OWN_CONTENT)) return;
  let place = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    let found = place;
    while (found && !alike(found, child)) found = found.nextSibling;
    if (found) become(found, child);
    else found = document.importNode(child, true);
    if (found === place) place = place.nextSibling;
    else old.insertBefore(found, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

async function update(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html"), data = fresh.getElementById("page-data");
  if (!data) throw new Error(fresh.body.textContent.trim());  // there is no report now; the server says why
  const content = id => page.figures[id] && JSON.stringify([page.figures[id].spec, page.tables[page.figures[id].table]]);
  const before = new Map([...drawn.keys()].map(id => [id, content(id)]));
  const picked = Object.entries(page.figures).map(([id, figure]) => [id, figure.picked]);
  Object.assign(page, JSON.parse(data.textContent));
  for (const [id, examples] of picked) if (examples && page.figures[id]) page.figures[id].picked = examples;
  document.title = fresh.title;
  become(document.querySelector("style"), fresh.querySelector("style"));
  for (const part of ["header", ".legend", "main"]) become(document.querySelector(part), fresh.querySelector(part));
  figures.splice(0, figures.length, ...Object.keys(page.figures).map(id => document.getElementById(id)));
  for (const [id, view] of drawn) {
    if (page.figures[id]) continue;
    view?.finalize();
    drawn.delete(id);
  }
  fillPickers();
  showMethods();
  figures.forEach(figure => drawn.has(figure.id) || near.observe(figure));
  await Promise.all(figures.filter(({id}) => drawn.get(id) && before.get(id) !== content(id)).map(draw));
  document.body.dataset.version = fresh.body.dataset.version;
}

async function look() {
  const live = document.getElementById("live");
  let said = "updates as runs go on";
  try {
    const version = await (await fetch("/version", {cache: "no-store"})).text();
    if (version !== document.body.dataset.version) {
      const answer = await fetch("/", {cache: "no-store"});
      await update(await answer.text()).catch(error => { said = `not updated: ${error.message}`; });
    }
  } catch { said = "the server has stopped; this is what it showed last"; }
  if (live.textContent !== said) live.textContent = said;
  setTimeout(look, 2000);
}
setTimeout(look, 2000);
