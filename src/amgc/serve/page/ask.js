// Ask: pictures as a grid with a table to download, the camera live, and corrections.

import { $, Refused, api, attempt, count, make, percent, save, say, thumbnail } from "/parts.js";
import { begin, named } from "/cards.js";
import { capture, choosable, closeCamera, droppable, form, leftOut, openCamera, portions, split } from "/pictures.js";
import { state, watch } from "/state.js";

const TOP = 5; // classes shown with an answer
const TOGETHER = 8; // pictures of a request
const FEW = 4; // answers up to which each is shown with everything
const ALL = 8; // classes up to which the camera's bars keep their order
const UNLIKE = 0.05; // fit below which the page says that a picture is unlike what was learned

let results = []; // of the pictures on the page, in their order
let asking = Promise.resolve();

/** Explain an answer in words. */
function inWords({ answer, fit, classes }) {
  if (fit === null) {
    const why = state.known?.changeable === false ? "This model cannot tell" : "It has learned too few pictures to tell";
    return { title: answer, text: `${why} whether this is something else.` };
  }
  if (fit < UNLIKE) {
    const few = fit < 0.01 ? "Fewer than 1\u00a0%" : `Only about ${percent(fit)}`;
    const text = `The nearest is “${classes[0].label}”. ${few} of pictures of what it knows are less typical.`;
    return { title: "Unlike anything it has learned", text, kind: "none" };
  }
  if (fit >= 0.5) return { title: answer, text: "As typical as most pictures of what it knows." };
  return { title: answer, text: `More typical than about ${percent(fit)} of pictures of what it knows.` };
}

// ---- pictures -----------------------------------------------------------------------------------------------------------

/** Ask about any number of pictures, { file, path }. Those of one call are shown in their order, above earlier ones. */
export function ask(found) {
  const { pictures, left } = split(found), others = leftOut(left);
  if (!pictures.length) return say($("ask-said"), `There are no pictures. ${others}`, true);
  asking = asking.then(() => askNow(pictures, others)).catch((error) => console.error(error));
}

async function askNow(pictures, others) {
  const files = pictures.map(({ file }) => file), paths = new Map(pictures.map(({ file, path }) => [file, path]));
  const place = $("ask-said"), list = $("answers"), before = list.firstElementChild, rows = [];
  let done = 0;
  const bar = $("ask-bar");
  const show = (file, words, answer = null) => {
    rows.push({ path: paths.get(file), words, answer });
    list.insertBefore(answerCard(file, paths.get(file), words), before);
    list.classList.toggle("many", list.children.length > FEW);
    Object.assign(bar, { max: files.length, value: ++done });
  };
  const refused = (text) => ({ title: "No answer", text, kind: "bad", classes: [] });
  $("ask-progress").hidden = files.length < 2;
  $("ask-clear").disabled = true; // the place of these answers is in front of the earlier ones
  Object.assign(bar, { max: files.length, value: 0 });
  say(place, files.length > 1 ? `Looking at ${count(files.length, "picture")} …` : `Looking at ${files[0].name} …`);
  const limits = state.known?.limits ?? { upload_mb: 8, images: 1 };
  for (const part of await portions(files, limits, (file, reason) => show(file, refused(`${file.name} could not be used: ${reason}.`)), TOGETHER)) {
    const answered = await predict(part, place);
    part.forEach((file, at) => {
      const answer = answered[at];
      if (answer instanceof Refused) show(file, refused(answer.message));
      else show(file, { ...inWords(answer), classes: answer.classes }, answer);
    });
  }
  results = [...rows, ...results];
  $("ask-progress").hidden = true;
  $("ask-clear").disabled = false;
  $("ask-tools").hidden = false;
  $("ask-sum").textContent = count(results.length, "picture");
  say(place, others);
  const told = rows.length === 1 ? `${rows[0].path}: ${rows[0].words.title}. ${rows[0].words.text}` : `${count(rows.length, "picture")} answered.`;
  place.append(make("span", { className: "unseen", textContent: told }));
}

/** Return the answer of each picture. If one of several cannot be used, each is asked alone, so that the others get theirs. */
async function predict(files, place) {
  try {
    return (await api(`predict?top=${TOP}`, { body: form(files), waiting: (text) => say(place, text) })).answers;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (files.length === 1 || ![413, 422].includes(error.status)) return files.map(() => error);
    const found = [];
    for (const file of files) found.push(...await predict([file], place));
    return found;
  }
}

function bars(list, classes, order = null) {
  const sorted = order ? [...classes].sort((one, other) => order.indexOf(one.label) - order.indexOf(other.label)) : classes;
  while (list.children.length > sorted.length) list.lastElementChild.remove();
  sorted.forEach(({ label, probability }, at) => {
    const row = list.children[at] ?? list.appendChild(make(
      "li", {}, make("span", { dir: "auto" }), make("span", { className: "share" }),
      make("span", { className: "track", ariaHidden: "true" }, make("span")),
    ));
    const [name, share, track] = row.children;
    if (name.textContent !== label) name.textContent = label;
    share.textContent = percent(probability);
    track.firstElementChild.style.inlineSize = `${100 * probability}%`;
    row.classList.toggle("first", label === classes[0].label);
  });
}

function answerCard(file, path, words) {
  const list = make("ol", { className: "bars", hidden: !words.classes.length });
  bars(list, words.classes);
  const text = make(
    "div", {},
    make("h3", { dir: "auto", textContent: words.title }), list, make("p", { className: "soft", textContent: words.text }),
    ...(words.classes.length && state.known?.changeable ? [correction(() => file, words.title)] : []),
  );
  return make("li", { className: words.kind ?? "", title: path }, thumbnail(file, path), text);
}

/** “No, this is …”: teach the picture to a class. */
function correction(picture, title) {
  const name = make("input", { dir: "auto", maxLength: 1000, autocomplete: "off", placeholder: "Name of a class" });
  name.setAttribute("list", "known-names");
  name.setAttribute("aria-label", "What it is");
  const said = make("p", { className: "said" });
  said.setAttribute("role", "status");
  const entry = make("form", { className: "correct" }, name, make("button", { textContent: "Teach" }));
  const summary = make("summary", { textContent: "No, this is …" });
  if (title) summary.setAttribute("aria-label", `No, this is not ${title} but …`);
  const part = make("details", {}, summary, entry, said);
  let file = null;
  part.addEventListener("toggle", () => {
    if (!part.open) return;
    file = picture();
    name.focus();
  });
  entry.addEventListener("submit", async (event) => {
    event.preventDefault();
    const label = name.value.trim();
    if (!label) return name.focus();
    if (!file) return say(said, "There is no picture yet.", true);
    const card = named(label), taught = file;
    name.value = "";
    say(said, `Teaching “${label}” …`);
    await begin([[card, [taught]]]);
    file = picture();
    const problem = card.said.classList.contains("bad") ? card.said.textContent : "";
    say(said, problem || `Learned this picture as “${label}”.`, Boolean(problem));
  });
  return part;
}

/** Return the answers as comma-separated values. */
function table() {
  const safe = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : value); // not a formula
  const cell = (value) => `"${String(safe(value) ?? "").replaceAll('"', '""')}"`;
  const most = Math.max(1, ...results.map(({ words }) => words.classes.length));
  const head = ["picture", "answer", "fit", ...Array.from({ length: most }, (_, at) => [`class ${at + 1}`, `probability ${at + 1}`]).flat()];
  const rows = results.map(({ path, words, answer }) => [
    path, words.title, answer?.fit ?? "", ...words.classes.flatMap(({ label, probability }) => [label, probability]),
  ]);
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

// ---- the camera ---------------------------------------------------------------------------------------------------------

let running = 0; // number of the current run; 0 if the camera is off
let runs = 0, frame = null;

async function toggleLive() {
  if (running) return stopLive();
  const view = $("live-view"), said = $("live-said"), mine = running = ++runs;
  $("live").hidden = false;
  $("live-words").hidden = true;
  pressed(true);
  say(said, "");
  if (!await attempt(said, async () => (await openCamera(view), true))) return stopLive();
  const times = [];
  let title = "";
  while (running === mine) {
    if (document.hidden || !view.videoWidth || (state.known?.classes.length ?? 0) < 1) {
      await new Promise((done) => setTimeout(done, 100));
      continue;
    }
    const file = await capture(view);
    try {
      const top = Math.max(TOP, Math.min(ALL, state.known.classes.length));
      const { answers: [answer] } = await api(`predict?top=${top}`, { body: form([file]) });
      if (running !== mine) return;
      frame = file;
      const words = inWords(answer);
      $("live-words").hidden = false;
      if ($("live-title").textContent !== words.title) $("live-title").textContent = words.title;
      $("live").classList.toggle("none", words.kind === "none");
      bars($("live-bars"), answer.classes, state.known.classes.length <= ALL ? state.known.classes.map(({ label }) => label) : null);
      $("live-text").textContent = words.text;
      if (words.title !== title) {
        title = words.title; // told to screen readers only when it changes
        say(said, "");
        said.append(make("span", { className: "unseen", textContent: title }));
      }
      times.push(performance.now());
      if (times.length > 20) times.shift();
      if (times.length > 4) {
        const rate = 1000 * (times.length - 1) / (times.at(-1) - times[0]);
        $("live-speed").textContent = `${rate.toFixed(1)} answers a second`;
      }
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      say(said, error.message, true);
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

function stopLive() {
  running = 0;
  frame = null;
  closeCamera($("live-view"));
  $("live").hidden = true;
  pressed(false);
}

function pressed(on) {
  $("live-toggle").setAttribute("aria-pressed", String(on));
  $("live-toggle").textContent = on ? "Stop the camera" : "Use the camera";
}

// ---- start --------------------------------------------------------------------------------------------------------------

export function startAsk() {
  droppable($("ask-zone"), $("ask"), ask);
  for (const id of ["ask-files", "ask-folder"]) choosable($(id), ask);
  $("live-toggle").addEventListener("click", toggleLive);
  $("live-correct").append(correction(() => frame, ""));
  $("ask-table").addEventListener("click", () => save(new Blob(["\ufeff", table()], { type: "text/csv" }), "answers.csv"));
  $("ask-clear").addEventListener("click", () => {
    results = [];
    $("answers").replaceChildren();
    $("ask-tools").hidden = true;
    $("ask-title").focus();
  });
  watch(({ classes }, changed) => {
    if (!changed) return;
    $("ask-needs").textContent = [
      "It has to learn something before it can answer.",
      "It knows one class only, so it has no choice yet. Teach it a second one.",
    ][classes.length] ?? "";
  });
}
