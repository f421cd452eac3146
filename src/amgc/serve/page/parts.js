// Parts of the page: elements, requests, messages, dialogs, thumbnails.

export const $ = (id) => document.getElementById(id);

/** Create an element with attributes, properties and children; text is never parsed as HTML. */
export function make(tag, about = {}, ...children) {
  const element = Object.assign(document.createElement(tag), about);
  element.append(...children);
  return element;
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
export const percent = (share) => (share > 0 && share < 0.01 ? "< 1\u00a0%" : `${Math.round(100 * share)}\u00a0%`);
export const listed = (names) => names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");

// ---- messages and dialogs -----------------------------------------------------------------------------------------------

/** Show a message in a live region, as news or as an error. */
export function say(place, text, bad = false) {
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

/** Run an action; if it fails, show the reason in `place`. */
export async function attempt(place, action) {
  try {
    return await action();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(place, error.message, true);
    return null;
  }
}

/** Ask before something is lost. The focus is on what does no harm. */
export function confirmed({ title, text, yes, no }) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("confirm-text").replaceChildren(...text);
  $("confirm-yes").textContent = yes;
  $("confirm-no").textContent = no;
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }));
}

// ---- requests -----------------------------------------------------------------------------------------------------------

const TRIES = 5; // attempts if the server asks to try again later
const SENDABLE = /^[\x20-\x7e]*$/; // characters that `fetch` allows in a header, and the server in a token
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** An error with a message for the user, and the status of the answer, if there was one. */
export class Refused extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Send a request. `waiting` is called when the server is busy and the request will be repeated. */
export async function api(path, { body, json, type, method, file = false, waiting = () => {} } = {}) {
  for (let attempt = 1; ; attempt++) {
    const headers = {};
    if (!SENDABLE.test(sessionStorage.getItem("token") ?? "")) sessionStorage.removeItem("token"); // invalid: the server will ask for another
    const token = sessionStorage.getItem("token");
    if (token) headers.Authorization = `Bearer ${token}`;
    if (json) headers["Content-Type"] = "application/json";
    if (type) headers["Content-Type"] = type;
    const sent = json ? JSON.stringify(json) : body;
    let answer;
    try {
      answer = await fetch(`/api/${path}`, { method: method ?? (sent ? "POST" : "GET"), headers, body: sent });
    } catch {
      throw new Refused("The server does not answer. Is it still running?");
    }
    if (answer.ok) return file ? answer.blob() : answer.json();
    if (answer.status === 401) {
      await askForToken(token);
      continue;
    }
    const told = (await answer.json().catch(() => ({}))).detail ?? `The server answered with error ${answer.status}.`;
    const seconds = Number(answer.headers.get("Retry-After"));
    if (!seconds || seconds > 30 || attempt === TRIES) throw new Refused(told, answer.status);
    waiting(told);
    await wait(1000 * seconds);
  }
}

/** Take the token from the printed link, where it follows the #, and remove it from the address. */
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!found) return;
  sessionStorage.setItem("token", found);
  history.replaceState(null, "", location.pathname);
}

let asked = null;

/** Show the dialog for the token, once for all waiting requests. */
function askForToken(refused) {
  if (asked === null && sessionStorage.getItem("token") !== refused) return Promise.resolve(); // entered meanwhile
  asked ??= new Promise((done) => {
    const dialog = $("token");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("token", $("token-text").value.trim());
      $("token-text").value = "";
      asked = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asked;
}

/** Let the browser save a file. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// ---- thumbnails ---------------------------------------------------------------------------------------------------------

const SIDE = 160; // pixels of a thumbnail
let drawing = Promise.resolve(); // one after another: large photographs take much memory while they are decoded

/** Create a small view of a file; formats that the browser cannot show are shown by name. */
export function thumbnail(file, text) {
  const view = make("canvas", { className: "view", width: SIDE, height: SIDE });
  view.setAttribute("role", "img");
  view.setAttribute("aria-label", text);
  drawing = drawing.then(async () => {
    try {
      const image = await createImageBitmap(file);
      const side = Math.min(image.width, image.height);
      const from = [(image.width - side) / 2, (image.height - side) / 2, side, side];
      const pen = view.getContext("2d");
      pen.imageSmoothingQuality = "high";
      pen.drawImage(image, ...from, 0, 0, SIDE, SIDE);
      image.close();
    } catch {
      view.replaceWith(make("span", { className: "view no-view", dir: "auto", textContent: text }));
    }
  });
  return view;
}
