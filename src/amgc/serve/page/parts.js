// Parts of the page: requests, elements, drop zones, the camera.

export const $ = (id) => document.getElementById(id);

/** Create an element with attributes, properties and children; text is never parsed as HTML. */
export function make(tag, about = {}, ...children) {
  const element = Object.assign(document.createElement(tag), about);
  element.append(...children);
  return element;
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

// ---- requests -----------------------------------------------------------------------------------------------------------

const TRIES = 5; // attempts if the server asks to try again later
const SENDABLE = /^[\x20-\x7e]*$/; // characters that `fetch` allows in a header, and the server in a token
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** An error with a message for the user. */
export class Refused extends Error {}

/** Send a request. `waiting` is called when the server is busy and the request will be repeated. */
export async function api(path, { body, json, waiting = () => {} } = {}) {
  for (let attempt = 1; ; attempt++) {
    const headers = {};
    if (!SENDABLE.test(sessionStorage.getItem("token") ?? "")) sessionStorage.removeItem("token"); // invalid: the server will ask for another
    const token = sessionStorage.getItem("token");
    if (token) headers.Authorization = `Bearer ${token}`;
    if (json) headers["Content-Type"] = "application/json";
    const sent = json ? JSON.stringify(json) : body;
    let answer;
    try {
      answer = await fetch(`/api/${path}`, { method: sent ? "POST" : "GET", headers, body: sent });
    } catch {
      throw new Refused("The server does not answer. Is it still running?");
    }
    if (answer.ok) return answer.json();
    if (answer.status === 401) {
      await askForToken(token);
      continue;
    }
    const told = (await answer.json().catch(() => ({}))).detail ?? `The server answered with error ${answer.status}.`;
    const seconds = Number(answer.headers.get("Retry-After"));
    if (!seconds || seconds > 30 || attempt === TRIES) throw new Refused(told);
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

/** Split pictures into requests within the limits of the server. */
export function portions(files, limits) {
  const most = limits.upload_mb * 1e6 - 20_000; // leaves room for the other parts of the request
  const found = [];
  let room = 0;
  for (const file of files) {
    if (file.size > most) throw new Refused(`${file.name} has more than ${limits.upload_mb} MB; make it smaller first.`);
    if (!found.length || room < file.size || found.at(-1).length === limits.images) {
      found.push([]);
      room = most;
    }
    found.at(-1).push(file);
    room -= file.size + 500;
  }
  return found;
}

// ---- drop zones ---------------------------------------------------------------------------------------------------------

/** Accept dropped, pasted, chosen and taken pictures in the named zones and pass them to `takers` as files. */
export function zones(takers) {
  let last = "ask"; // target of pasted pictures: the zone that was used last
  const give = (name, files) => {
    const pictures = [...files].filter((file) => file instanceof Blob);
    if (pictures.length) takers[name](pictures);
  };
  for (const name of Object.keys(takers)) {
    const part = $(name), zone = part.querySelector(".zone"), input = $(`${name}-files`);
    for (const event of ["focusin", "pointerdown"]) part.addEventListener(event, () => { last = name; });
    zone.addEventListener("dragover", (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
    for (const event of ["dragleave", "drop"]) zone.addEventListener(event, () => zone.classList.remove("over"));
    zone.addEventListener("drop", (event) => {
      last = name;
      give(name, event.dataTransfer.files);
    });
    input.addEventListener("change", () => {
      give(name, input.files);
      input.value = ""; // so that the same file can be chosen again
    });
    part.querySelector("[data-camera]").addEventListener("click", () => camera((file) => takers[name]([file]), name === "ask"));
  }
  for (const event of ["dragover", "drop"]) document.addEventListener(event, (dropped) => dropped.preventDefault());
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) give(last, event.clipboardData.files);
  });
}

/** Create a thumbnail of a file; formats that the browser cannot show are shown by name. */
export function thumbnail(file, text) {
  const url = URL.createObjectURL(file);
  const image = make("img", { src: url, alt: text });
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  image.addEventListener("error", () => image.replaceWith(make("span", { className: "no-view", dir: "auto", textContent: text })), { once: true });
  return image;
}

// ---- the camera ---------------------------------------------------------------------------------------------------------

const NO_CAMERA = {
  NotAllowedError: "The browser was not allowed to use the camera. Its settings for this page can change that.",
  NotFoundError: "No camera was found.",
  NotReadableError: "Another program is using the camera.",
};

/** Open the camera and pass one or several pictures to `taker`. */
async function camera(taker, once) {
  const dialog = $("camera"), view = $("camera-view"), said = $("camera-said"), take = $("camera-take");
  let stream = null, taken = 0;
  const ended = new AbortController();
  const on = (element, name, action) => element.addEventListener(name, action, { signal: ended.signal });
  on(dialog, "close", () => {
    stream?.getTracks().forEach((track) => track.stop());
    view.srcObject = null;
    ended.abort();
  });
  on($("camera-close"), "click", () => dialog.close());
  on(take, "click", async () => {
    const canvas = make("canvas", { width: view.videoWidth, height: view.videoHeight });
    canvas.getContext("2d").drawImage(view, 0, 0);
    const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
    taken += 1;
    taker(new File([blob], `camera ${taken}.png`, { type: "image/png" }));
    said.textContent = `${count(taken, "picture")} taken.`;
    if (once) dialog.close();
  });
  said.textContent = "";
  view.hidden = false;
  take.disabled = true;
  dialog.showModal();
  try {
    if (!navigator.mediaDevices) throw new Refused("Browsers give the camera only to pages of this machine or over https.");
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    if (ended.signal.aborted) {
      stream.getTracks().forEach((track) => track.stop()); // closed while the browser asked for permission
      return;
    }
    view.srcObject = stream;
    await view.play();
    take.disabled = false;
    take.focus();
  } catch (error) {
    view.hidden = true;
    said.textContent = error instanceof Refused ? error.message : NO_CAMERA[error.name] ?? "The camera cannot be used.";
  }
}
