// What every page does: times in the viewer's zone, ages that stay true, the theme, forms sent once.
const DAY_S = 86400;

export function age(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 2 * DAY_S) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / DAY_S)} d`;
}

export function clock(at) {
  const then = new Date(at * 1000);
  const near = Math.abs(Date.now() / 1000 - at) < DAY_S && then.getDate() === new Date().getDate();
  const day = near ? {} : { year: "numeric", month: "short", day: "numeric" };
  return then.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

const whole = new Intl.DateTimeFormat([], { dateStyle: "full", timeStyle: "long" }); // made once: a page may have thousands

// <time data-at="unix seconds" data-form="age|clock">: its text, and the whole moment as a hint
export function showTime(element, skew = 0) {
  const at = Number(element.dataset.at);
  if (!at) return;
  const old = Date.now() / 1000 + skew - at;
  const text = element.dataset.form === "age" ? `${age(old)} ago` : clock(at);
  if (element.textContent !== text) element.textContent = text;
  if (!element.title) element.title = whole.format(at * 1000);
}

export const showTimes = (root = document) => root.querySelectorAll("time[data-at]").forEach((e) => showTime(e));

// Whether somebody has typed something here that was not sent.
export const isEdited = (place) => [...place.querySelectorAll("input, select, textarea")].some((field) => field.type !== "hidden" && (field.value !== (field.defaultValue ?? field.value) || (field.defaultChecked ?? false) !== (field.checked ?? false)));

function zone() {
  const found = document.getElementById("zone");
  if (found) found.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "this device";
}

function themes() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => {
    button.textContent = dark() ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // then it holds for this page only
    }
    name();
    document.dispatchEvent(new Event("theme"));
  });
  name();
}

function once() {
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    const button = event.submitter;
    if (button) setTimeout(() => { button.disabled = true; });
  });
  addEventListener("pageshow", () => document.querySelectorAll("button:disabled[data-once]").forEach((b) => { b.disabled = false; }));
}

zone();
themes();
once();
showTimes();
setInterval(showTimes, 5000);
