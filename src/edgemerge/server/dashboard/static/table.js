// The table of a fleet: one entry for each row, found by its name, filtered and put in order.
const STATES = ["online", "problem", "quiet", "offline", "revoked"];

const number = (text) => (text === "" || text === undefined || text === "–" ? null : Number(text));
const when = (cell) => number(cell.querySelector("time")?.dataset.at);

// What a row says, read once from the page; afterwards from the stream.
function read(row) {
  const [device, state, alarm, review, pattern, learnt, score] = row.cells;
  return {
    row,
    device: device.firstElementChild.textContent,
    label: device.lastElementChild.textContent,
    state: state.firstElementChild.dataset.state,
    stateText: state.textContent,
    alarm: row.classList.contains("alarmed") ? 1 : 0,
    alarmed: when(alarm),
    review: number(review.dataset.key),
    needs: [...review.querySelectorAll(".tag")].map((tag) => [tag.textContent, ""]),
    pattern: pattern.firstElementChild.title || null,
    learnt: number(learnt.dataset.key),
    score: number(score.dataset.key),
  };
}

const byName = (a, b) => (a.device < b.device ? -1 : a.device > b.device ? 1 : 0);
const keyOf = (entry, name) => (name === "state" ? STATES.indexOf(entry.state) : name === "alarm" ? entry.alarmed : entry[name]);

// Compares two rows by a column, "-" before its name for the largest first; by none: alarms first.
export function order(sort) {
  if (!sort) return (a, b) => b.alarm - a.alarm || byName(a, b);
  const sign = sort.startsWith("-") ? -1 : 1;
  const name = sort.replace(/^-/, "");
  return (a, b) => {
    const [left, right] = [keyOf(a, name), keyOf(b, name)];
    if (left === right) return byName(a, b);
    if (left === null || left === undefined) return 1;
    if (right === null || right === undefined) return -1;
    return sign * (left < right ? -1 : 1);
  };
}

export function matches(entry, words) {
  const needs = (entry.needs ?? []).map(([name]) => name).join(" ");
  const text = `${entry.device} ${entry.label ?? ""} ${entry.state} ${entry.stateText ?? ""} ${entry.pattern ?? ""}${entry.alarm ? " alarm" : ""} ${needs}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export class Table {
  constructor(body, sort) {
    this.body = body;
    this.sort = sort;
    this.words = [];
    this.entries = [...body.rows].map(read);
    this.byName = new Map(this.entries.map((entry) => [entry.device, entry]));
  }

  add(row, device) {
    const entry = { row, device };
    this.entries.push(entry);
    this.byName.set(device, entry);
    this.body.append(row);
    return entry;
  }

  get shown() {
    return this.entries.filter((entry) => !entry.row.hidden).length;
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.entries.forEach((entry) => this.sift(entry));
  }

  sift(entry) {
    const hidden = !matches(entry, this.words);
    if (entry.row.hidden !== hidden) entry.row.hidden = hidden;
  }

  // Puts the rows in order; only those are moved that stand elsewhere, and what has the focus keeps it.
  arrange() {
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    this.entries.sort(order(this.sort));
    const fixed = this.unmoved();
    let next = null;
    for (const entry of this.entries.toReversed()) {
      if (!fixed.has(entry)) this.body.insertBefore(entry.row, next);
      next = entry.row;
    }
    if (focused && document.activeElement !== focused) focused.focus({ preventScroll: true });
  }

  // The longest run of rows that are in order already: these can stay where they are.
  unmoved() {
    const places = new Map([...this.body.rows].map((row, i) => [row, i]));
    const ends = []; // ends[k]: the entry with the lowest place that ends an ordered run of k + 1
    const before = new Map();
    for (const entry of this.entries) {
      const place = places.get(entry.row);
      let low = 0;
      let high = ends.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (places.get(ends[middle].row) < place) low = middle + 1;
        else high = middle;
      }
      before.set(entry, ends[low - 1]);
      ends[low] = entry;
    }
    const found = new Set();
    for (let entry = ends.at(-1); entry; entry = before.get(entry)) found.add(entry);
    return found;
  }
}
