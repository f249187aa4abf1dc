// The page that compares devices: one chart, whose ranges and zoom work as on the page of a device.
import { RangedChart } from "./chart.js";

const RENEW_MS = 60000;
const [place, links, reset, words] = ["chart", "spans", "reset", "chart-words"].map((id) => document.getElementById(id));
const devices = new URL(place.dataset.scores, location.origin).search.slice(1).replace(/&$/, "");

function shown(data) {
  words.textContent = data.words;
  document.querySelectorAll("a[data-query]").forEach((a) => { a.search = `${devices}&${data[a.dataset.query]}`; });
}

const chart = new RangedChart({ place, links, reset, first: JSON.parse(document.getElementById("chart-data").textContent), shown });
setInterval(() => chart.renew(), RENEW_MS);
