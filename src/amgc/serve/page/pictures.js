// Pictures that are dropped, pasted or chosen, also in folders, and how they are sent.

import { Refused, count, listed } from "/parts.js";

const PICTURE = /\.(jpe?g|jfif|png|webp|gif|tiff?|bmp|avif|heic|heif|jp2|ppm|pgm|pbm|tga|ico)$/i;

/** Return what was dropped as a list of { file, path }; folders are read to their ends. */
export async function dropped(transfer) {
  const files = [...transfer.files];
  const entries = [...transfer.items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry?.());
  if (!entries.length || !entries.every(Boolean)) return files.map((file) => ({ file, path: file.name }));
  const found = [];
  for (const entry of entries) await walk(entry, "", found);
  return found;
}

/** Stand for a file that the browser cannot read. */
const unreadable = (name) => Object.assign(new File([], name), { unreadable: true });

async function walk(entry, above, found) {
  const path = above + entry.name;
  if (entry.isFile) {
    found.push({ file: await new Promise((done) => entry.file(done, () => done(unreadable(entry.name)))), path });
    return;
  }
  const reader = entry.createReader(), inside = [];
  for (;;) {
    const some = await new Promise((done) => reader.readEntries(done, () => done(null))); // at most 100 at a time
    if (!some) found.push({ file: unreadable(entry.name), path: `${path}/…` }); // so that it is named among what is left out
    if (!some?.length) break;
    inside.push(...some);
  }
  inside.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  for (const one of inside) await walk(one, `${path}/`, found);
}

/** Return chosen files as a list of { file, path }. */
export const chosen = (files) => [...files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

const isPicture = (file) => file.type.startsWith("image/") || PICTURE.test(file.name);

/** Split what was dropped or chosen into pictures, { file, path }, and paths of other files. What is in no folder is meant as a picture. */
export function split(found) {
  const isMeant = ({ file, path }) => !path.includes("/") || isPicture(file);
  return { pictures: found.filter(isMeant), left: found.filter((one) => !isMeant(one)).map(({ path }) => path) };
}

/** Say which files are left out; "" if there are none. */
export const leftOut = (paths) => (paths.length ? `${count(paths.length, "other file was", "other files were")} left out: ${listed(paths)}.` : "");

/**
 * Sort pictures by class: a folder that holds pictures is a class, and so is each sub-folder of one that holds none.
 * Returns { loose, folders: [{ name, files, below }], left }. `below` says that it was a sub-folder; `left` names other files.
 */
export function sorted(found) {
  const loose = [], left = [], inside = [];
  for (const { file, path } of found) {
    const parts = path.split("/");
    if (parts.length === 1) loose.push(file);
    else if (isPicture(file)) inside.push({ file, parts });
    else left.push(path);
  }
  const full = new Set(inside.filter(({ parts }) => parts.length === 2).map(({ parts }) => parts[0]));
  const folders = new Map();
  for (const { file, parts } of inside) {
    const below = !full.has(parts[0]), name = parts[below ? 1 : 0], key = `${parts[0]}/${below ? name : ""}`;
    if (!folders.has(key)) folders.set(key, { name, files: [], below });
    folders.get(key).files.push(file);
  }
  return { loose, folders: [...folders.values()], left };
}

/** Split pictures into requests within the limits of the server. A file that is too large or cannot be read goes to `refuse`. */
export async function portions(files, limits, refuse, most = limits.images) {
  const room = limits.upload_mb * 1e6 - 20_000; // leaves room for the other parts of the request
  const found = [];
  let left = 0;
  for (const file of files) {
    if (file.size > room) {
      refuse(file, `it has more than ${limits.upload_mb} MB; make it smaller first`);
      continue;
    }
    try {
      if (file.unreadable) throw new Error();
      await file.slice(0, 1).arrayBuffer(); // a folder, or a file that has gone, would break the whole request
    } catch {
      refuse(file, "the browser cannot read it");
      continue;
    }
    if (!found.length || left < file.size || found.at(-1).length >= most) {
      found.push([]);
      left = room;
    }
    found.at(-1).push(file);
    left -= file.size + 500;
  }
  return found;
}

/** Return a form with pictures. */
export function form(files, texts = {}) {
  const body = new FormData();
  for (const [name, text] of Object.entries(texts)) body.append(name, text);
  for (const file of files) body.append("images", file, file.name);
  return body;
}

/** Let a zone take what is dropped on it. */
export function droppable(zone, area, taker) {
  area.addEventListener("dragover", (event) => {
    event.preventDefault();
    event.stopPropagation();
    zone.classList.add("over");
  });
  for (const event of ["dragleave", "drop"]) area.addEventListener(event, () => zone.classList.remove("over"));
  area.addEventListener("drop", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    const found = await dropped(event.dataTransfer);
    if (found.length) taker(found);
  });
}

/** Let a file input pass what is chosen. */
export function choosable(input, taker) {
  input.addEventListener("change", () => {
    const found = chosen(input.files);
    input.value = ""; // so that the same file can be chosen again
    if (found.length) taker(found);
  });
}

// ---- the camera ---------------------------------------------------------------------------------------------------------

const LEAST = 480; // pixels of the shorter side of a picture from the camera
const NO_CAMERA = {
  NotAllowedError: "The browser was not allowed to use the camera. Its settings for this page can change that.",
  NotFoundError: "No camera was found.",
  NotReadableError: "Another program is using the camera.",
};

let stream = null, users = new Set();

/** Show the camera in a video element. The camera is shared, and switched off when nobody uses it. */
export async function openCamera(view) {
  users.add(view);
  try {
    if (!navigator.mediaDevices) throw new Refused("Browsers give the camera only to pages of this machine or over https.");
    stream ??= navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    view.srcObject = await stream;
    if (!users.has(view)) return closeCamera(view); // closed while the browser asked for permission
    await view.play();
  } catch (error) {
    stream = null;
    closeCamera(view);
    if (error.name === "AbortError") return; // closed before it played
    throw error instanceof Refused ? error : new Refused(NO_CAMERA[error.name] ?? "The camera cannot be used.");
  }
}

export function closeCamera(view) {
  users.delete(view);
  view.srcObject = null;
  if (users.size || !stream) return;
  stream.then((open) => open.getTracks().forEach((track) => track.stop()), () => {});
  stream = null;
}

let taken = 0;

/** Take a picture. */
export async function capture(view) {
  const scale = Math.min(1, LEAST / Math.min(view.videoWidth, view.videoHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(scale * view.videoWidth);
  canvas.height = Math.round(scale * view.videoHeight);
  canvas.getContext("2d").drawImage(view, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
  taken += 1;
  return new File([blob], `camera ${taken}.jpg`, { type: "image/jpeg" });
}
