// The merge page: fetches the matrix, selects devices and groups, says what a cell means.
import { showTimes } from "./page.js";

const place = document.getElementById("matrix");
const selected = document.getElementById("selected");
const boxes = () => [...document.querySelectorAll('#matrix input[name="source"]')];
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function count() {
  const chosen = boxes().filter((box) => box.checked).length;
  const words = chosen === 1 ? "1 device selected" : `${chosen} devices selected`;
  if (selected) selected.textContent = chosen ? words : "Select devices by the boxes beside their names.";
}

function select(button) {
  const { select: which, group } = button.dataset;
  for (const box of boxes()) {
    box.checked = which === "all" || (which === "group" && box.closest("tbody")?.dataset.group === group);
  }
  count();
}

function notes(words, retry) {
  const line = document.createElement("p");
  line.className = "empty";
  line.setAttribute("role", "alert");
  line.textContent = `${words} `;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain";
  button.textContent = "Try again";
  button.addEventListener("click", retry);
  line.append(button);
  return line;
}

// our own server made it and escaped every word in it; scripts in a parsed document never run
function put(html) {
  const made = new DOMParser().parseFromString(html, "text/html");
  place.replaceChildren(...made.body.childNodes);
  ready();
}

async function fetched(src) {
  const answer = await fetch(src, { headers: { Accept: "text/html" }, credentials: "same-origin" });
  if (answer.status === 401) location.reload(); // signed out meanwhile: the page leads to sign in
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.text();
}

async function load() {
  try {
    put(await fetched(place.dataset.src));
  } catch (error) {
    place.replaceChildren(notes(`The matrix did not come: ${error.message}.`, load));
  }
  place.removeAttribute("aria-busy");
}

function ready() {
  document.querySelectorAll("[data-select]").forEach((button) => { button.hidden = !boxes().length; });
  const grid = place.querySelector(".grid");
  if (grid) {
    grid.addEventListener("mouseover", (event) => show(event.target.closest("tbody td")));
    grid.addEventListener("click", (event) => show(event.target.closest("tbody td")));
    grid.addEventListener("keydown", walk);
  }
  count();
  showTimes(place);
}

const cellsOf = (row) => [...row.querySelectorAll("td")];

function show(cell) {
  if (!cell) return;
  const row = cell.closest("tr");
  const column = cellsOf(row).indexOf(cell);
  const whose = row.querySelector('th[scope="row"]');
  const data = place.querySelectorAll('thead th[scope="col"]')[column];
  place.querySelectorAll(".here").forEach((old) => old.classList.remove("here"));
  [cell, whose, data].forEach((each) => each.classList.add("here"));
  const line = document.getElementById("cell");
  line.hidden = false;
  const ratio = cell.textContent || cell.getAttribute("aria-label");
  line.textContent = `The readout of ${whose.textContent.trim()} on the data of ${data.textContent.trim()}: ${ratio} times its own loss`;
}

function walk(event) {
  const way = ARROWS[event.key];
  if (!way || event.target !== event.currentTarget) return;
  event.preventDefault();
  const rows = [...place.querySelectorAll("tbody tr")];
  const now = place.querySelector("td.here");
  const y = now ? rows.indexOf(now.closest("tr")) + way[0] : 0;
  const x = now ? cellsOf(now.closest("tr")).indexOf(now) + way[1] : 0;
  const next = rows[y] && cellsOf(rows[y])[x];
  show(next);
  next?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

if (place) {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-select]");
    if (button) select(button);
  });
  place.addEventListener("change", count);
  if (place.querySelector("table")) ready();
  else load();
}
