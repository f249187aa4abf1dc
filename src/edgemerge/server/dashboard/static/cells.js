// The cells of a device in the table of its fleet: changed only where what they show has changed.
import { showTime } from "./page.js";

const NOTHING = "–";
const WIDTH = 120;
const MARGIN = 2;
const STEP = 2;

// The order in which the stream sends a row.
export const FIELDS = ["device", "state", "alarm", "alarmed", "pattern", "learntText", "learnt",
  "scoreText", "score", "thresholdText", "above", "heights", "threshold", "alarms", "review", "needs",
  "stateText", "label"];

export const named = (values) => Object.fromEntries(FIELDS.map((name, i) => [name, values[i]]));

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setPath(path, d) {
  if (path.getAttribute("d") !== d) path.setAttribute("d", d);
}

function span(word, name) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = word;
  return made;
}

function moment(cell, at) {
  const found = cell.querySelector("time");
  if (at === null) {
    if (found) found.remove();
    if (!cell.querySelector(".faint")) cell.append(span("never", "faint"));
    return;
  }
  const time = found || document.createElement("time");
  if (time.dataset.at === String(at)) return;
  time.dataset.at = at;
  time.dataset.form = "age";
  time.dateTime = new Date(at * 1000).toISOString();
  time.removeAttribute("title");
  showTime(time);
  if (!found) {
    cell.querySelector(".faint")?.remove();
    cell.append(time);
  }
}

function state(cell, value, words) {
  const span = cell.firstElementChild;
  if (span.dataset.state !== value) span.dataset.state = value;
  setText(span, words);
}

function alarm(cell, now, at) {
  const found = cell.querySelector(".state");
  if (now && !found) {
    const made = span("alarm", "state");
    made.dataset.state = "alarm";
    cell.prepend(made, " ");
  }
  if (!now && found) found.remove();
  moment(cell, at);
}

function needs(cell, update) {
  cell.dataset.key = update.review ?? "";
  const key = JSON.stringify(update.needs);
  if (cell.dataset.shown === key) return;
  cell.dataset.shown = key;
  const tags = update.needs.map(([words, kind]) => span(words, `tag ${kind}`));
  cell.replaceChildren(...(tags.length ? tags : [span(NOTHING, "faint")]));
}

function pattern(cell, value) {
  const span = cell.firstElementChild;
  if (span.title === (value ?? "")) return;
  span.title = value ?? "";
  span.textContent = value ?? NOTHING;
}

function score(cell, update) {
  const [value, threshold] = cell.children;
  setText(value, update.scoreText);
  setText(threshold, update.thresholdText);
  value.classList.toggle("above", update.above === 1);
}

const x = (i, heights) => WIDTH - MARGIN - STEP * (heights.length - 1 - i);

function spark(cell, { heights, threshold, alarms }) {
  const [line, curve, dots] = cell.firstElementChild.children;
  const steps = heights.slice(1).map((height, i) => `${STEP} ${height - heights[i]}`);
  setPath(line, threshold === null ? "" : `M0 ${threshold}H${WIDTH}`);
  setPath(curve, heights.length ? `M${x(0, heights)} ${heights[0]}l${["0 0", ...steps].join(" ")}` : "");
  setPath(dots, alarms.map((i) => `M${x(i, heights)} ${heights[i]}h0`).join(""));
}

// Shows an update of a device in its row, whose cells are in the order of the columns.
export function paint(row, update) {
  const [deviceCell, stateCell, alarmCell, reviewCell, patternCell, learnt, scoreCell, sparkCell] = row.cells;
  row.classList.toggle("alarmed", update.alarm === 1);
  setText(deviceCell.lastElementChild.firstElementChild, update.label);
  state(stateCell, update.state, update.stateText);
  alarm(alarmCell, update.alarm === 1, update.alarmed);
  needs(reviewCell, update);
  pattern(patternCell, update.pattern);
  setText(learnt, update.learntText);
  score(scoreCell, update);
  spark(sparkCell, update);
}
