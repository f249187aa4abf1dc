// The page of a fleet: search and order as one types, and rows that follow the stream.
import { named, paint, setText } from "./cells.js";
import { follow } from "./stream.js";
import { Table } from "./table.js";

const REST_MS = 3000; // rows do not move under a hand that is at work
const TICK_MS = 1000;

const element = document.getElementById("devices");
const table = new Table(element.tBodies[0], element.dataset.sort);
const field = document.getElementById("q");
const chosen = document.getElementById("sort");
const count = document.getElementById("count");
const none = document.getElementById("none");
const waiting = new Map(); // updates that are not shown yet, by device
const now = { totals: null, touched: 0, unordered: false, due: 0, painted: 0 };

function showCount() {
  const shown = table.shown;
  setText(count, `${shown} of ${table.entries.length} devices`);
  if (none.hidden !== shown > 0) none.hidden = shown > 0;
}

function remember() {
  const url = new URL(location);
  for (const [name, value] of [["q", field.value.trim()], ["sort", table.sort]]) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }
  history.replaceState(null, "", url);
}

function find() {
  table.filter(field.value);
  showCount();
  remember();
}

function showOrder() {
  chosen.value = table.sort;
  for (const button of element.tHead.querySelectorAll("button")) {
    const { name } = button.dataset;
    const direction = { [name]: "ascending", [`-${name}`]: "descending" }[table.sort];
    if (direction) button.closest("th").setAttribute("aria-sort", direction);
    else button.closest("th").removeAttribute("aria-sort");
  }
}

function sortBy(sort) {
  table.sort = sort;
  table.arrange();
  now.unordered = false;
  showOrder();
  remember();
}

function next({ name, falling }) {
  const first = falling === undefined ? name : `-${name}`;
  const second = falling === undefined ? `-${name}` : name;
  return table.sort === first ? second : first;
}

function added(device) {
  const row = document.getElementById("row").content.firstElementChild.cloneNode(true);
  const name = row.querySelector(".c-device").firstElementChild;
  name.textContent = name.title = device;
  if (name.href) name.href += encodeURIComponent(device); // on a wall screen nothing leads anywhere
  return table.add(row, device);
}

function showRow(update) {
  const entry = table.byName.get(update.device) ?? added(update.device);
  const before = { ...entry };
  Object.assign(entry, update, { row: entry.row });
  paint(entry.row, update);
  table.sift(entry);
  now.unordered ||= moves(before, entry);
  return update.alarm === 1 && before.alarm === 0;
}

function moves(before, entry) {
  const name = table.sort.replace(/^-/, "") || "alarm";
  const key = table.sort === "-alarm" || table.sort === "alarm" ? "alarmed" : name;
  return before[key] !== entry[key];
}

function showTotals(totals) {
  for (const [name, words] of Object.entries(totals)) {
    const place = document.querySelector(`[data-total="${name}"]`);
    if (place) setText(place, words);
  }
  document.getElementById("alarms").toggleAttribute("data-some", totals.alarms !== "0");
}

function announce(names) {
  if (!names.length) return;
  const first = names.slice(0, 3).join(", ");
  document.getElementById("announced").textContent = `Alarm: ${first}${names.length > 3 ? ` and ${names.length - 3} more` : ""}`;
}

function show() {
  now.due = 0;
  now.painted = performance.now();
  const news = [...waiting.values()].filter(showRow);
  if (waiting.size) showCount();
  waiting.clear();
  if (now.totals) showTotals(now.totals);
  now.totals = null;
  announce(news.map((update) => update.device));
}

// Shows updates at the next frame, but not more than once in a second.
function later() {
  if (now.due) return;
  const wait = Math.max(0, TICK_MS - (performance.now() - now.painted));
  now.due = setTimeout(() => requestAnimationFrame(show), wait);
}

function take({ rows, totals }) {
  rows.map(named).forEach((update) => waiting.set(update.device, update));
  now.totals = totals;
  later();
}

function settle() {
  if (!now.unordered || performance.now() - now.touched < REST_MS) return;
  now.unordered = false;
  table.arrange();
}

field.addEventListener("input", find);
chosen.addEventListener("change", () => sortBy(chosen.value));
element.tHead.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  event.preventDefault();
  sortBy(next(button.dataset));
});
document.getElementById("find").addEventListener("submit", (event) => event.preventDefault());
for (const name of ["pointermove", "pointerdown", "focusin", "keydown"]) {
  element.addEventListener(name, () => { now.touched = performance.now(); }, { passive: true });
}
if (field.value) find();
setInterval(settle, TICK_MS);
follow(element.dataset.live, element.dataset.since, take);
