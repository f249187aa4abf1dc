// The page of a device: its chart, and parts of the page that follow the stream.
<<<<<<< HEAD
import { Chart } from "./chart.js";
import { isEdited, showTimes } from "./page.js";
=======
import { RangedChart } from "./chart.js";
import { showTimes } from "./page.js";
>>>>>>> a2732fbb7a11e1bf8c6fb1be81f7773bda30b054
import { follow } from "./stream.js";

const LIVE_S = 600;
const RENEW_MS = 60000; // longer ranges are asked for again after a minute

const page = document.getElementById("device");
const block = document.getElementById("chart-data");
const waiting = new Map(); // parts that are new, by name
const first = block ? JSON.parse(block.textContent) : null;
const state = { chart: null, live: first?.range === "live" ? first : null };

// Joins points and lets go of those that are older than ten minutes.
function joined(old, added) {
  const all = old.map((column, i) => column.concat(added[i]));
  const newest = all[0].findIndex((at) => at >= all[0].at(-1) - LIVE_S);
  return newest > 0 ? all.map((column) => column.slice(newest)) : all;
}

function showLive() {
  if (state.chart?.range === "live" && state.live) state.chart.set(state.live);
}

<<<<<<< HEAD
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
=======
const isEdited = (place) => [...place.querySelectorAll("input, select, textarea")].some((field) => field.type !== "hidden" && (field.value !== (field.defaultValue ?? field.value) || (field.defaultChecked ?? false) !== (field.checked ?? false)));
>>>>>>> a2732fbb7a11e1bf8c6fb1be81f7773bda30b054

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

function take({ points, all, episodes, parts, alarm }) {
  if (!block && (all || points)) {
    location.reload(); // its first report: now there is a chart to show
    return;
  }
  if (state.live) {
    const columns = all ?? (points ? joined(state.live.columns, points) : state.live.columns);
    state.live = { ...state.live, columns, episodes: episodes ?? state.live.episodes };
    if (all || points || episodes) requestAnimationFrame(showLive);
  }
  Object.entries(parts ?? {}).forEach(([name, text]) => replace(name, text));
  if (alarm) document.getElementById("announced").textContent = alarm;
}

// Says what the chart shows, and lets the links beside it lead to the same time.
function shown(data) {
  if (data.range === "live") state.live = data;
  document.getElementById("chart-words").textContent = data.words;
  document.querySelectorAll("a[data-query]").forEach((a) => { a.search = data[a.dataset.query]; });
}

document.addEventListener("focusout", () => setTimeout(replaceWaiting));
if (block) {
  const [place, links, reset] = ["chart", "spans", "reset"].map((id) => document.getElementById(id));
  state.chart = new RangedChart({ place, links, reset, first, shown });
  setInterval(() => { if (state.chart.range !== "live") state.chart.renew(); }, RENEW_MS);
}
follow(page.dataset.live, page.dataset.since, take);
