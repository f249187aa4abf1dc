// The stream of a page: says whether it is live, comes back by itself, and leads to sign-in when the session is over.
const SLOWEST_MS = 10000;
const HIDDEN_MS = 5000; // a hidden page closes its connection: browsers have only six

const live = document.getElementById("live");
const wall = location.pathname.startsWith("/ui/wall/"); // its link is the only way in: there is no sign-in

function show(state, words) {
  if (!live || live.dataset.state === state) return;
  live.hidden = false;
  live.dataset.state = state;
  live.textContent = words;
}

function toSignIn() {
  const here = location.pathname + location.search;
  location.assign(`/ui/sign-in?next=${encodeURIComponent(here)}`);
}

// Gives the status of the session, or of the link of a wall screen: 200, 401 or 403, or 0 without an answer.
async function session() {
  try {
    return (await fetch(wall ? location.pathname : "/ui/session", { headers: { Accept: "application/json" }, cache: "no-store" })).status;
  } catch {
    return 0;
  }
}

// Follows a stream; take(data) is called with what changed since the event id `since`.
export function follow(address, since, take) {
  const state = { source: null, lastId: since, wait: 1000, timer: 0, over: false };

  const open = () => {
    clearTimeout(state.timer);
    if (state.source || state.over) return;
    const url = new URL(address, location.origin);
    if (state.lastId) url.searchParams.set("since", state.lastId);
    state.source = new EventSource(url);
    state.source.onopen = () => { state.wait = 1000; show("live", "live"); };
    state.source.onmessage = (event) => { state.lastId = event.lastEventId; take(JSON.parse(event.data)); };
    state.source.addEventListener("gone", () => { close(); leave(); });
    state.source.onerror = lost;
  };

  const close = () => {
    if (state.source) state.source.close();
    state.source = null;
  };

  const lost = () => {
    show("away", "reconnecting");
    if (state.source && state.source.readyState === EventSource.CLOSED) {
      close();
      again();
    }
  };

  const again = () => {
    state.timer = setTimeout(async () => {
      if ([401, 403].includes(await session())) leave();
      else if (!document.hidden) open();
    }, state.wait * (0.75 + Math.random() / 2));
    state.wait = Math.min(SLOWEST_MS, state.wait * 1.7);
  };

  // The session is over, or what the page shows is no longer there.
  const leave = async () => {
    state.over = true;
    if ((await session()) === 401) toSignIn();
    else location.reload();
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(state.timer);
    if (!document.hidden) open();
    else state.timer = setTimeout(close, HIDDEN_MS);
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
