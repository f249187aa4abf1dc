// The cells of a device in the table of its fleet: changed only where what they show has changed.
import { tell } from "./page.js";

const NOTHING = "–";
const WIDTH = 120;
const MARGIN = 2;
const STEP = 2;

// The order in which the stream sends a row.
export const FIELDS = ["device", "state", "alarm", "alarmed", "pattern", "learntText", "learnt", "revision",
  "shared", "merged", "scoreText", "score", "thresholdText", "above", "heights", "threshold", "alarms"];

export const named = (values) => Object.fromEntries(FIELDS.map((name, i) => [name, values[i]]));

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setPath(path, d) {
  if (path.getAttribute("d") !== d) path.setAttribute("d", d);
}

function mark(word, name) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = word;
  return made;
}

function moment(cell, at) {
  const found = cell.querySelector("time");
  if (at === null) {
    if (found) found.remove();
    if (!cell.querySelector(".faint")) cell.append(mark("never", "faint"));
    return;
  }
  const time = found || document.createElement("time");
  if (time.dataset.at === String(at)) return;
  time.dataset.at = at;
  time.dataset.form = "age";
  time.dateTime = new Date(at * 1000).toISOString();
  time.removeAttribute("title");
  tell(time);
  if (!found) {
    cell.querySelector(".faint")?.remove();
    cell.append(time);
  }
}

function state(cell, value) {
  const span = cell.firstElementChild;
  if (span.dataset.state === value) return;
  span.dataset.state = value;
  span.textContent = value;
}

function alarm(cell, now, at) {
  const found = cell.querySelector(".state");
  if (now && !found) {
    const made = mark("alarm", "state");
    made.dataset.state = "alarm";
    cell.prepend(made, " ");
  }
  if (!now && found) found.remove();
  moment(cell, at);
}

function pattern(cell, value) {
  const span = cell.firstElementChild;
  if (span.title === (value ?? "")) return;
  span.title = value ?? "";
  span.textContent = value ?? NOTHING;
}

function score(cell, told) {
  const [value, threshold] = cell.children;
  setText(value, told.scoreText);
  setText(threshold, told.thresholdText);
  value.classList.toggle("above", told.above === 1);
}

const x = (i, heights) => WIDTH - MARGIN - STEP * (heights.length - 1 - i);

function spark(cell, { heights, threshold, alarms }) {
  const [line, curve, marks] = cell.firstElementChild.children;
  const steps = heights.slice(1).map((height, i) => `${STEP} ${height - heights[i]}`);
  setPath(line, threshold === null ? "" : `M0 ${threshold}H${WIDTH}`);
  setPath(curve, heights.length ? `M${x(0, heights)} ${heights[0]}l${["0 0", ...steps].join(" ")}` : "");
  setPath(marks, alarms.map((i) => `M${x(i, heights)} ${heights[i]}h0`).join(""));
}

// Shows what was told of a device in its row, whose cells are in the order of the columns.
export function paint(row, told) {
  const [, stateCell, alarmCell, patternCell, learnt, revision, shared, merged, scoreCell, sparkCell] = row.cells;
  row.classList.toggle("alarmed", told.alarm === 1);
  state(stateCell, told.state);
  alarm(alarmCell, told.alarm === 1, told.alarmed);
  pattern(patternCell, told.pattern);
  setText(learnt, told.learntText);
  setText(revision, told.revision === null ? NOTHING : String(told.revision));
  moment(shared, told.shared);
  moment(merged, told.merged);
  score(scoreCell, told);
  spark(sparkCell, told);
}
