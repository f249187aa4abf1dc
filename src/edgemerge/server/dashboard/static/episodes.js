// The page of episodes: cards come, change and go as the stream says, but not under a hand at work.
import { isEdited, showTimes } from "./page.js";
import { follow } from "./stream.js";

const RETRY_MS = 1000;

const root = document.getElementById("episodes");
const waiting = new Map(); // texts of cards that could not be replaced yet, by id
const state = { sections: null };

// Cards are made by the server's template; all in them is escaped there.
function made(text) {
  const card = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
  showTimes(card);
  return card;
}

const cardOf = (id) => document.getElementById(`e${id}`);
const isBusy = (card) => card.contains(document.activeElement) || card.matches(":hover") || isEdited(card);

// Puts the cards of a section in order; a card that somebody works in stays until that is done.
function arrange(name, ids) {
  const list = root.querySelector(`[data-section="${name}"]`);
  if (!list) return;
  let next = list.firstElementChild;
  for (const id of ids) {
    const known = cardOf(id);
    const text = waiting.get(id);
    const card = text !== undefined && !(known && isBusy(known)) ? made(text) : known;
    if (!card) continue;
    if (card !== known) {
      waiting.delete(id);
      if (known) {
        if (next === known) next = known.nextElementSibling;
        known.remove();
      }
    }
    if (card === next) next = next.nextElementSibling;
    else if (card !== known || !isBusy(card)) list.insertBefore(card, next);
  }
  for (const card of [...list.children]) {
    if (!ids.includes(card.dataset.id) && !isBusy(card)) card.remove();
  }
}

function show() {
  if (!state.sections) return;
  Object.entries(state.sections).forEach(([name, ids]) => arrange(name, ids));
}

function take({ cards, sections, counts, begun, mark }) {
  Object.entries(cards).forEach(([id, text]) => waiting.set(id, text));
  state.sections = sections;
  const seen = document.getElementById("seen"); // viewers have no form
  if (seen) seen.value = mark;
  for (const [name, count] of Object.entries(counts)) {
    const place = document.getElementById(`${name}-count`);
    place.textContent = count;
    if (name === "open") place.toggleAttribute("data-some", count > 0);
  }
  show();
  if (begun.length) document.getElementById("announced").textContent = `New episode: ${begun.join(", ")}`;
}

setInterval(() => { if (waiting.size) show(); }, RETRY_MS);
follow(root.dataset.live, root.dataset.since, take);
