// The chart of scores: logarithmic, with the threshold as a line and alarms marked. uPlot draws it.
const LOWEST = 0.01;
const HIGHEST = 1e6; // drawn; the legend has the number itself
const HEIGHT = 280;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = (value) => (value === null ? null : Math.min(HIGHEST, Math.max(LOWEST, value)));

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const text = Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3 ? value.toExponential(1) : Number(value.toPrecision(3)).toString();
  return text.replace("e+", "e");
}

function moments(plot, marks) {
  const near = marks.length < 2 || marks.at(-1) - marks[0] < 7200;
  const form = { hour: "2-digit", minute: "2-digit", ...(near ? { second: "2-digit" } : {}) };
  return marks.map((at) => new Date(at * 1000).toLocaleTimeString([], form));
}

// Of ten marks to a power of ten, three have a number; those that uPlot leaves out are null.
const levels = (plot, marks) => marks.map((mark) => (mark !== null && /^[125]/.test(mark.toExponential()) ? figure(mark) : ""));

// At least a minute, so that a single point has a place in time.
const span = (plot, first, last) => [Math.min(first ?? 0, (last ?? 0) - 60), last ?? 0];

// From half a power of ten to another, so that the axis does not jump with every point.
function range(plot, low, high) {
  const half = (value, round) => 10 ** (round(2 * Math.log10(value)) / 2);
  return [half(Math.min(low ?? 0.5, 0.5), Math.floor), half(Math.max(high ?? 10, 10), Math.ceil)];
}

// Without a pointer on the chart its legend shows the newest point.
function tellLast(plot) {
  const last = plot.data[0].length - 1;
  if (last >= 0 && (plot.cursor.left ?? -1) < 0 && plot.legend.idx !== last) plot.setLegend({ idx: last });
}

function options(width, raw, labels) {
  const [ink, line, accent, bad, warn] = ["--faint", "--line", "--accent", "--bad", "--warn"].map(colour);
  const value = (plot, _v, series, i) => figure(i === null || i === undefined ? null : raw.columns[series][i]);
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    scales: { x: { time: true, range: span }, y: { distr: 3, range } },
    axes: [
      { ...axis, values: moments, space: 90 },
      { ...axis, values: levels, size: 52 },
    ],
    series: [
      { label: "Time", value: (plot, at) => (at ? new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }) : "–") },
      { label: labels[0], stroke: accent, width: 1.5, points: { show: false }, value },
      { label: "Threshold", stroke: warn, width: 1.5, dash: [6, 4], points: { show: false }, value },
      { label: "Alarm", stroke: bad, width: 0, paths: () => null, points: { show: true, size: 8, fill: bad, stroke: bad }, value },
      ...(labels[1] ? [{ label: labels[1], stroke: ink, width: 1, points: { show: false }, value }] : []),
    ],
    cursor: { drag: { x: false, y: false } },
    hooks: { draw: [tellLast], setCursor: [tellLast] },
  };
}

export class Chart {
  constructor(place, columns, labels = ["Score"]) {
    this.place = place;
    this.raw = { columns };
    this.labels = labels;
    this.draw();
    new ResizeObserver(() => this.fit()).observe(place);
    document.addEventListener("theme", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get data() {
    const [at, ...values] = this.raw.columns;
    return [at, ...values.map((column) => column.map(drawn))];
  }

  draw() {
    this.plot?.destroy();
    this.plot = new uPlot(options(this.place.clientWidth, this.raw, this.labels), this.data, this.place);
  }

  fit() {
    const width = this.place.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  show(columns, labels = this.labels) {
    const same = labels.join() === this.labels.join();
    this.raw.columns = columns;
    this.labels = labels;
    if (!same) this.draw();
    else this.plot.setData(this.data);
  }
}
