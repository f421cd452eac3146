// The page: teach the model, ask it, list its classes.

import { $, Refused, api, count, make, portions, takeToken, thumbnail, zones } from "/parts.js";

const SHOWN = 12; // maximum number of answers on the page
const UNLIKE = 0.05; // fit below which the page says that a picture is unlike what was learned
const percent = (share) => (share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(100 * share)} %`);

let known = null; // last response of /api/classes
let chosen = []; // pictures to learn from
let lessons = 0; // number of unfinished requests to learn
let looks = 0, latest = 0; // number of refreshes started, and of the one that is shown

/** Show a message in a live region, as news or as an error. */
function say(place, text, bad = false) {
  place.textContent = text;
  place.classList.toggle("bad", bad);
}

/** Run an action; if it fails, show the reason in `place`. */
async function attempt(place, action) {
  try {
    return await action();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(place, error.message, true);
    return null;
  }
}

// ---- classes ------------------------------------------------------------------------------------------------------------

async function look() {
  const mine = ++looks;
  try {
    const now = await api("classes");
    if (mine < latest) return; // a later refresh has finished first
    latest = mine;
    show(now);
    trouble(known.problem);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    trouble(error.message);
  }
}

function trouble(text) {
  if ($("trouble").textContent !== (text ?? "")) $("trouble").textContent = text ?? "";
  $("trouble").hidden = !text;
}

function show(now) {
  const changed = JSON.stringify(known?.classes) !== JSON.stringify(now.classes);
  known = now;
  progress();
  if (!changed) return;
  const names = now.classes.map(({ label }) => label);
  const all = now.classes.reduce((sum, { pictures }) => sum + (pictures ?? 0), 0);
  $("known-sum").textContent = names.length
    ? `${count(names.length, "class", "classes")}${all ? `, learned from ${count(all, "picture")}. None of them was kept.` : "."}`
    : "Nothing yet. Show it a few pictures of one thing under Teach, name it, and press Learn.";
  $("ask-needs").textContent = [
    "It has to learn something before it can answer.",
    `It knows one class only, so it has no choice yet. Teach it a second one.`,
  ][names.length] ?? "";
  showClasses(now.classes);
  $("known-names").replaceChildren(...names.map((value) => make("option", { value })));
  $("not-kept").replaceChildren(...now.not_kept.map((textContent) => make("li", { textContent })));
  $("kept").replaceChildren(...now.kept.map((textContent) => make("li", { textContent })));
  $("keeps").hidden = !names.length;
  for (const element of $("teach-form").elements) element.disabled = !now.changeable;
  if (!now.changeable) say($("teach-said"), "This model cannot learn more: it was made without statistics of its classes.");
}

/** Update the list in place: unchanged rows keep the focus. */
function showClasses(classes) {
  const list = $("classes"), focused = list.contains(document.activeElement);
  const rows = new Map([...list.children].map((item) => [item.label, item]));
  const labels = new Set(classes.map(({ label }) => label));
  for (const [label, item] of rows) if (!labels.has(label)) item.remove();
  classes.forEach(({ label, pictures }, place) => {
    const item = rows.get(label) ?? row(label);
    if (list.children[place] !== item) list.insertBefore(item, list.children[place] ?? null);
    item.querySelector(".soft").textContent = pictures ? count(pictures, "picture") : "";
  });
  if (focused && !list.contains(document.activeElement)) $("known-title").focus(); // the focused class was forgotten
}

function row(label) {
  const forget = make("button", { type: "button", className: "quiet", textContent: "Forget" });
  forget.setAttribute("aria-label", `Forget ${label}`);
  forget.addEventListener("click", () => askToForget(label));
  return make("li", { label }, make("span", { dir: "auto", textContent: label }), make("span", { className: "soft" }), forget);
}

function askToForget(label) {
  const dialog = $("forget");
  $("forget-title").textContent = `Forget “${label}”?`;
  dialog.returnValue = "no";
  dialog.addEventListener("close", async () => {
    if (dialog.returnValue !== "yes") return;
    const place = $("known-said");
    say(place, `Forgetting “${label}” …`);
    const done = await attempt(place, () => api("forget", { json: { label }, waiting: (text) => say(place, text) }));
    await look();
    if (done) say(place, `Forgot “${label}”.`);
    $("known-title").focus(); // the focused button is gone
  }, { once: true });
  dialog.showModal();
}

// ---- teach --------------------------------------------------------------------------------------------------------------

function choose(files) {
  chosen.push(...files);
  say($("teach-said"), "");
  showChosen();
}

function showChosen() {
  const list = $("teach-thumbs");
  list.hidden = !chosen.length;
  const views = new Map([...list.children].map((item) => [item.file, item]));
  list.replaceChildren(...chosen.map((file) => views.get(file) ?? view(file)));
  $("teach-go").textContent = chosen.length ? `Learn from ${count(chosen.length, "picture")}` : "Learn";
}

function view(file) {
  const remove = make("button", { type: "button", textContent: "×" });
  remove.setAttribute("aria-label", `Leave out ${file.name}`);
  const item = make("li", { file, title: file.name }, thumbnail(file, file.name), remove);
  remove.addEventListener("click", () => {
    const next = (item.nextElementSibling ?? item.previousElementSibling)?.querySelector("button") ?? $("teach-files");
    chosen = chosen.filter((other) => other !== file);
    showChosen();
    next.focus();
  });
  return item;
}

async function learn(event) {
  event.preventDefault();
  const place = $("teach-said"), name = $("teach-name"), label = name.value.trim();
  if (!chosen.length) return say(place, "Add at least one picture first.", true);
  if (!label) {
    say(place, "Give it a name first.", true);
    return name.focus();
  }
  if (!known) return say(place, "The server has not answered yet; try again in a moment.", true);
  const files = chosen;
  const parts = await attempt(place, async () => portions(files, known.limits));
  if (!parts) return;
  chosen = [];
  showChosen();
  name.value = "";
  say(place, "");
  lessons += 1;
  progress();
  let pictures = 0, seconds = 0, sent = 0;
  const skipped = [];
  const done = await attempt(place, async () => {
    for (const part of parts) {
      const body = new FormData();
      body.append("label", label);
      for (const file of part) body.append("images", file, file.name);
      const lesson = await api("learn", { body, waiting: (text) => say(place, text) });
      pictures += lesson.pictures;
      seconds += lesson.seconds;
      skipped.push(...lesson.skipped);
      sent += part.length;
    }
    return true;
  });
  lessons -= 1;
  if (!done) {
    chosen = [...files.slice(sent), ...chosen]; // can be sent again
    showChosen();
    if (!name.value) name.value = label;
  }
  await look();
  if (!done) return;
  const left = skipped.map(({ source, reason }) => ` ${source} could not be used: ${reason}.`).slice(0, 3).join("");
  const more = skipped.length > 3 ? ` And ${skipped.length - 3} more could not be used.` : "";
  say(place, `Learned “${label}” from ${count(pictures, "picture")} in ${seconds.toFixed(1)} s. None of them was kept.${left}${more}`);
}

/** Show the progress of learning, by this page or another. */
function progress() {
  const now = known?.learning, bar = $("teach-bar");
  const busy = Boolean(now) || lessons > 0;
  if (busy) {
    if (now?.total && now.done < now.total) Object.assign(bar, { max: now.total, value: now.done });
    else bar.removeAttribute("value"); // being sent or solved: progress is unknown
    const doing = now ? `Learning “${now.label}”: ${now.done} of ${count(now.total, "picture")}.` : "Sending the pictures …";
    const waiting = known?.waiting ? ` ${count(known.waiting, "more lesson")} waiting.` : "";
    $("teach-doing").textContent = `${doing}${waiting}${known?.classes.length ? " It goes on answering meanwhile." : ""}`;
  }
  $("teach-progress").hidden = !busy;
}

// ---- ask ----------------------------------------------------------------------------------------------------------------

async function ask(files) {
  const place = $("ask-said");
  for (const file of files) {
    say(place, `Looking at ${file.name} …`);
    const words = await answered(file, place);
    $("answers").prepend(card(file, words));
    while ($("answers").children.length > SHOWN) $("answers").lastElementChild.remove();
    say(place, "");
    place.append(make("span", { className: "unseen", textContent: `${file.name}: ${words.title}. ${words.text}` }));
  }
}

/** Return the answer for one picture. An unreadable picture gets an error as its answer and does not affect the others. */
async function answered(file, place) {
  try {
    if (known) portions([file], known.limits);
    const body = new FormData();
    body.append("images", file, file.name);
    const { answers: [answer] } = await api("predict?top=5", { body, waiting: (text) => say(place, text) });
    return { ...inWords(answer), classes: answer.classes };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { title: "No answer", text: error.message, kind: "bad", classes: [] };
  }
}

/** Explain an answer in words. */
function inWords({ answer, fit, classes }) {
  if (fit === null) {
    const why = known?.changeable === false ? "This model cannot tell" : "It has learned too few pictures to tell";
    return { title: answer, text: `${why} whether this is something else.` };
  }
  if (fit < UNLIKE) {
    const few = fit < 0.01 ? "Fewer than 1 %" : `Only about ${percent(fit)}`;
    const text = `The nearest is “${classes[0].label}”. ${few} of pictures of what it knows are less typical.`;
    return { title: "Unlike anything it has learned", text, kind: "none" };
  }
  return { title: answer, text: `More typical than about ${percent(fit)} of pictures of what it knows.` };
}

function card(file, words) {
  const bars = words.classes.map(({ label, probability }) => {
    const fill = make("span");
    fill.style.inlineSize = `${100 * probability}%`;
    const track = make("span", { className: "track", ariaHidden: "true" }, fill);
    const name = make("span", { dir: "auto", textContent: label });
    return make("li", {}, name, make("span", { className: "share", textContent: percent(probability) }), track);
  });
  const text = make(
    "div", {},
    make("h3", { dir: "auto", textContent: words.title }),
    make("ol", { className: "bars", hidden: !bars.length }, ...bars),
    make("p", { className: "soft", textContent: words.text }),
  );
  return make("li", { className: words.kind ?? "" }, thumbnail(file, file.name), text);
}

// ---- start --------------------------------------------------------------------------------------------------------------

takeToken();
zones({ teach: choose, ask });
$("teach-form").addEventListener("submit", learn);

/** Refresh repeatedly: often while the model learns, rarely otherwise, never while the page is hidden. */
async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, known?.learning || lessons ? 400 : 4000);
}
keepLooking();
document.addEventListener("visibilitychange", () => document.hidden || look());
