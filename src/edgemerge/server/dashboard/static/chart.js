// A chart of scores: logarithmic, limits as a line, alarms and episodes marked; dragging zooms. uPlot draws it.
const LOWEST = 0.01;
const HIGHEST = 1e6; // drawn; the legend has the number itself
const HEIGHT = 280;
const DAY_S = 86400;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [5, 5]]; // lines differ also without colours

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = (value) => (value === null ? null : Math.min(HIGHEST, Math.max(LOWEST, value)));

export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const text = Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3 ? value.toExponential(1) : Number(value.toPrecision(3)).toString();
  return text.replace("e+", "e");
}

const ends = (at) => [at[0] ?? 0, at.at(-1) ?? 0];

// Times between the first score and the last one; the day stands below the first of each.
function moments(plot, marks, axis, space, step) {
  const [first, last] = ends(plot.data[0]);
  const near = step < 60 ? { second: "2-digit" } : {};
  let day = "";
  return marks.map((mark) => {
    if (mark === null || mark < first || mark > last) return "";
    const then = new Date(mark * 1000);
    const date = then.toLocaleDateString([], { day: "numeric", month: "short", ...(step >= 365 * DAY_S ? { year: "numeric" } : {}) });
    if (step >= DAY_S) return date;
    const text = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...near });
    if (date === day || last - first < 43200) return text;
    day = date;
    return `${text}\n${date}`;
  });
}

// Of ten marks to a power of ten, three have a number; those that uPlot leaves out are null.
const levels = (plot, marks) => marks.map((mark) => (mark !== null && /^[125]/.test(mark.toExponential()) ? figure(mark) : ""));

// What was asked for, as far as there are scores; a single one stands in the middle of a minute.
function span(plot, low, high) {
  const [first, last] = ends(plot.data[0]);
  const [from, to] = [Math.max(low ?? first, first), Math.min(high ?? last, last)];
  return to > from ? [from, to] : [first - 30, first + 30];
}

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

// Behind the curves: the time of each episode.
function shade(plot, episodes) {
  const { left, top, width, height } = plot.bbox;
  plot.ctx.save();
  plot.ctx.fillStyle = colour("--bad-wash");
  for (const [, began, ended] of episodes) {
    const from = Math.max(left, plot.valToPos(began, "x", true));
    const to = Math.min(left + width, ended === null ? left + width : plot.valToPos(ended, "x", true));
    if (to >= from) plot.ctx.fillRect(from, top, Math.max(to - from, 2 * devicePixelRatio), height);
  }
  plot.ctx.restore();
}

function line(kind, label, i, value) {
  const [ink, accent, bad, warn] = ["--faint", "--accent", "--bad", "--warn"].map(colour);
  const plain = { label, width: 1.5, points: { show: false }, value };
  if (kind === "device") return { ...plain, stroke: colour(`--line-${i}`), dash: DASHES[i - 1] };
  if (kind === "limit") return { ...plain, stroke: warn, dash: [6, 4] };
  if (kind === "mean") return { ...plain, stroke: ink, width: 1 };
  if (kind === "alarm") return { ...plain, stroke: bad, width: 0, paths: () => null, points: { show: true, size: 8, fill: bad, stroke: bad } };
  return { ...plain, stroke: accent };
}

export class Chart {
  // `data` is {columns, lines: [[kind, label], …], episodes}; `zoomed` is called with [from, to], or null when all is shown again.
  constructor(place, data, zoomed = () => {}) {
    Object.assign(this, { place, data, zoomed, zoom: null });
    place.replaceChildren(); // the picture for pages without scripts
    this.draw();
    new ResizeObserver(() => this.fit()).observe(place);
    document.addEventListener("theme", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get columns() {
    const [at, ...values] = this.data.columns;
    return [at, ...values.map((column) => column.map(drawn))];
  }

  get options() {
    const [ink, grid] = ["--faint", "--line"].map(colour);
    const value = (plot, _v, series, i) => figure(i === null || i === undefined ? null : this.data.columns[series][i]);
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
    const when = (plot, at) => (at ? new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }) : "–");
    return {
      width: this.place.clientWidth,
      height: HEIGHT,
      padding: [8, 32, 0, 0], // half a time fits beside the last mark
      scales: { x: { time: true, range: span }, y: { distr: 3, range } },
      axes: [{ ...axis, values: moments, space: 80 }, { ...axis, values: levels, size: 52 }],
      series: [{ label: "Time", value: when }, ...this.data.lines.map(([kind, label], i) => line(kind, label, i + 1, value))],
      cursor: { drag: { x: true, y: false, setScale: true, dist: 8 }, bind: { dblclick: () => () => this.reset() } },
      hooks: {
        drawClear: [(plot) => shade(plot, this.data.episodes ?? [])],
        draw: [tellLast],
        setCursor: [tellLast],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  draw() {
    this.plot?.destroy();
    this.plot = new uPlot(this.options, this.columns, this.place);
    this.scale();
  }

  fit() {
    const width = this.place.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  scale() {
    const [min, max] = this.zoom ?? ends(this.data.columns[0]);
    this.place.toggleAttribute("data-zoomed", this.zoom !== null);
    this.plot.setScale("x", { min, max });
  }

  select({ select, posToVal }) {
    if (select.width <= 0) return;
    this.zoom = [posToVal(select.left, "x"), posToVal(select.left + select.width, "x")];
    this.place.toggleAttribute("data-zoomed", true);
    this.zoomed(this.zoom);
  }

  reset() {
    if (!this.zoom) return;
    this.zoom = null;
    this.scale();
    this.zoomed(null);
  }

  // Shows other data; a zoom stays.
  show(data) {
    const same = JSON.stringify(data.lines) === JSON.stringify(this.data.lines);
    this.data = data;
    if (!same) this.draw();
    else {
      this.plot.setData(this.columns, false);
      this.scale();
    }
  }
}

// A chart with links to ranges: they are followed here, without loading the page again.
//
// `place` has data-scores, where JSON is asked for; `links` the links, `reset` the button that ends a zoom. `shown(data)` is called with
// what is shown. A zoom asks for the same time in shorter steps.
export class RangedChart {
  constructor({ place, links, reset, first, shown }) {
    Object.assign(this, { place, links, reset, shown, whole: first, asked: 0 });
    this.chart = new Chart(place, first, (zoom) => this.zoomed(zoom));
    links.addEventListener("click", (event) => this.follow(event));
    reset.addEventListener("click", () => this.chart.reset());
  }

  get range() {
    return this.whole.range;
  }

  async ask(query) {
    const number = ++this.asked;
    const url = new URL(this.place.dataset.scores, location.origin);
    new URLSearchParams(query).forEach((value, name) => url.searchParams.set(name, value));
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    return answer.ok && number === this.asked ? answer.json() : null;
  }

  async follow(event) {
    const link = event.target.closest("a[data-range]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const found = await this.ask(`range=${link.dataset.range}`);
    if (!found) return;
    history.replaceState(null, "", link.href);
    this.chart.zoom = null;
    this.set(found);
  }

  // Shows the same range as it is now.
  async renew() {
    if (this.chart.zoom || !this.range) return;
    const found = await this.ask(`range=${this.range}`);
    if (found && !this.chart.zoom) this.set(found);
  }

  set(data) {
    this.whole = data;
    this.links.querySelectorAll("a[data-range]").forEach((a) => {
      if (a.dataset.range === data.range) a.setAttribute("aria-current", "true");
      else a.removeAttribute("aria-current");
    });
    this.reset.hidden = this.chart.zoom === null;
    this.chart.show(data);
    this.shown(data);
  }

  async zoomed(zoom) {
    this.reset.hidden = zoom === null;
    if (zoom === null) {
      this.asked += 1; // what was asked for meanwhile is too late
      this.chart.show(this.whole);
      this.shown(this.whole);
      return;
    }
    if (!(this.whole.step_s > 60)) return; // there is nothing finer
    const found = await this.ask(`since=${Math.floor(zoom[0])}&until=${Math.ceil(zoom[1])}`);
    if (!found || !this.chart.zoom || found.columns[0].length < 2) return;
    this.chart.show(found);
    this.shown(found);
  }
}
