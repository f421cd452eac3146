// What the server knows, refreshed again and again.

import { $, Refused, api } from "/parts.js";

export const state = { known: null, lessons: 0 }; // last response of /api/classes; lessons that this page has not finished
export const noun = () => (state.known?.input.kind === "vector" ? "vector" : "picture");
/** Say how many pictures are not written to the model's folder yet; "" if all are. */
export function inMemory(now) {
  const own = now?.classes.filter(({ in_memory }) => in_memory) ?? [];
  const all = own.reduce((sum, { in_memory }) => sum + in_memory, 0);
  return all ? `In memory only: ${own.map(({ label, in_memory }) => `${in_memory} of “${label}”`).join(", ")}.` : "";
}
const watchers = [];
let looks = 0, latest = 0; // number of refreshes started, and of the one that is shown

/** Call `watcher` with each response of /api/classes, and with whether the classes have changed. */
export const watch = (watcher) => watchers.push(watcher);

export async function look() {
  const mine = ++looks;
  try {
    const now = await api("classes");
    if (mine < latest) return; // a later refresh has finished first
    latest = mine;
    const changed = JSON.stringify(state.known?.classes) !== JSON.stringify(now.classes);
    state.known = now;
    for (const watcher of watchers) watcher(now, changed);
    trouble(now.problem);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    trouble(error.message);
  }
}

function trouble(text) {
  if ($("trouble").textContent !== (text ?? "")) $("trouble").textContent = text ?? "";
  $("trouble").hidden = !text;
}

/** Refresh repeatedly: often while the model learns, rarely otherwise, never while the page is hidden. */
export async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, state.known?.learning || state.lessons ? 400 : 4000);
}
document.addEventListener("visibilitychange", () => document.hidden || look());
