// The page of a device: its chart, and parts of the page that follow the stream.
import { Chart } from "./chart.js";
import { isEdited, showTimes } from "./page.js";
import { follow } from "./stream.js";

const SPAN_S = 600;
const DAY_MS = 60000; // the day is asked for again after a minute

const page = document.getElementById("device");
const block = document.getElementById("points");
const state = { columns: block ? JSON.parse(block.textContent) : null, span: "minutes", chart: null, timer: 0 };
const waiting = new Map(); // parts that are new, by name

// Joins points and lets go of those that are older than ten minutes.
function joined(old, added) {
  const all = old.map((column, i) => column.concat(added[i]));
  const first = all[0].findIndex((at) => at >= all[0].at(-1) - SPAN_S);
  return first > 0 ? all.map((column) => column.slice(first)) : all;
}

function showMinutes() {
  if (state.chart && state.span === "minutes") state.chart.show(state.columns, ["Score"]);
}

async function showDay() {
  const answer = await fetch(page.dataset.minutes, { headers: { Accept: "application/json" } });
  if (!answer.ok || state.span !== "day") return;
  const day = await answer.json();
  const alarms = day.highest.map((highest, i) => (day.alarms[i] ? highest : null));
  state.chart.show([day.at, day.highest, day.threshold, alarms, day.mean], ["Highest of the minute", "Mean"]);
}

function choose(span) {
  state.span = span;
  clearInterval(state.timer);
  document.querySelectorAll("#spans button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.span === span)));
  if (span === "minutes") {
    showMinutes();
    return;
  }
  showDay();
  state.timer = setInterval(showDay, DAY_MS);
}

// Replaces a part of the page by what the server's template made of it; all in it is escaped there.
function replace(name, text) {
  const place = document.getElementById(`part-${name}`);
  if (!place) return;
  if (place.contains(document.activeElement) || isEdited(place)) {
    waiting.set(name, text); // not under the hands of who is at work in it
    return;
  }
  const opened = place.querySelector("details")?.open;
  place.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
  place.querySelector("details")?.toggleAttribute("open", opened === true);
  showTimes(place);
}

function replaceWaiting() {
  const texts = [...waiting];
  waiting.clear();
  texts.forEach(([name, text]) => replace(name, text));
}

function take({ points, all, parts, alarm }) {
  if (!state.columns && (all || points)) {
    location.reload(); // its first report: now there is a chart to show
    return;
  }
  if (all) state.columns = all;
  if (points) state.columns = joined(state.columns, points);
  if (all || points) requestAnimationFrame(showMinutes);
  Object.entries(parts ?? {}).forEach(([name, text]) => replace(name, text));
  if (alarm) document.getElementById("announced").textContent = alarm;
}

document.addEventListener("focusout", () => setTimeout(replaceWaiting));
if (block) {
  state.chart = new Chart(document.getElementById("chart"), state.columns);
  document.getElementById("spans").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(button.dataset.span);
  });
}
follow(page.dataset.live, page.dataset.since, take);
