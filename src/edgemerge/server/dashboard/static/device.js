// The page of a device: its chart, and parts of the page that follow the stream.
import { RangedChart } from "./chart.js";
import { isEdited, showTimes } from "./page.js";
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
