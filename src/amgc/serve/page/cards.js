// The cards: one for each class, with its name, its pictures of this visit, and the ways to add more.

import { $, Refused, api, attempt, confirmed, count, listed, make, say, thumbnail } from "/parts.js";
import { capture, choosable, closeCamera, droppable, form, leftOut, openCamera, portions, sorted } from "/pictures.js";
import { inMemory, look, noun, state, watch } from "/state.js";

const SHOWN = 60; // views of pictures on a card
const EVERY = 200; // milliseconds between pictures while the button is held
const LONGEST = 100; // pictures of one recording

const cards = []; // in the order of the page
let made = 0; // number of cards made so far
let queue = Promise.resolve(); // lessons run one after another
let lastLesson = ""; // the newest lesson that was finished; "" if something else was changed since
let lastName = null; // the newest change of a name: { from, to, card, views }, `views` if the card was joined with another
export let lastUsed = null; // the card that was used last, or null; pasted pictures go there

export const forgetLastUsed = () => { lastUsed = null; };

/** A card. `known` says whether the server has the class; before that, the name is only on this page. */
class Card {
  constructor(label, known = false) {
    Object.assign(this, { label, known, pictures: 0, busy: 0, done: 0, total: 0, sending: null, views: 0 });
    this.element = $("card").content.firstElementChild.cloneNode(true);
    this.element.card = this;
    this.find = (selector) => this.element.querySelector(selector);
    const number = ++made;
    for (const kind of ["files", "folder"]) {
      const input = this.find(`.${kind}`);
      input.id = `card-${number}-${kind}`;
      input.previousElementSibling.htmlFor = input.id;
      choosable(input, (found) => this.take(found));
    }
    droppable(this.find(".zone"), this.element, (found) => this.take(found));
    for (const event of ["focusin", "pointerdown"]) this.element.addEventListener(event, () => { lastUsed = this; });
    this.find(".forget").addEventListener("click", () => this.forget());
    this.prepareName();
    this.prepareCamera();
    this.show();
  }

  get said() { return this.find(":scope > .said"); }

  /** Show name and number of pictures, and name the controls for screen readers. */
  show() {
    const name = this.find(".name");
    if (document.activeElement !== name) name.value = this.label;
    this.fit();
    const words = {
      ".name": `Name of the class ${this.label}`, ".files": `Choose pictures of ${this.label}`, ".folder": `Choose a folder of pictures of ${this.label}`,
      ".camera": `Camera for ${this.label}`, ".forget": `${this.known ? "Forget" : "Remove"} ${this.label}`, ".hold": `Hold to record ${this.label}`,
      ".done": `Done with the camera for ${this.label}`, video: `What the camera sees, for ${this.label}`, ".thumbs": `Pictures of ${this.label} of this visit`,
      progress: `Progress of learning ${this.label}`,
    };
    for (const [selector, text] of Object.entries(words)) this.find(selector).setAttribute("aria-label", text);
    this.find(".forget").textContent = this.known ? "Forget" : "Remove";
    this.find(".count").textContent = this.known ? (this.pictures ? count(this.pictures, noun()) : "") : "No pictures yet";
    for (const control of this.element.querySelectorAll(".zone input, .zone button")) control.disabled = state.known?.changeable === false;
    name.readOnly = this.busy > 0;
    this.find(".forget").disabled = this.busy > 0;
  }

  /** Show the name again, also where another one is being typed. */
  showName() {
    this.find(".name").value = this.label;
    this.show();
  }

  /** Give the name as many lines as it needs. */
  fit() {
    const name = this.find(".name");
    name.style.blockSize = "auto";
    const edges = name.offsetHeight - name.clientHeight; // borders, which scrollHeight does not count
    if (name.scrollHeight) name.style.blockSize = `${name.scrollHeight + edges}px`;
  }

  // ---- names ----

  prepareName() {
    const name = this.find(".name");
    name.addEventListener("input", () => this.fit());
    name.addEventListener("focus", () => name.select());
    name.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") name.value = this.label;
      if (event.key === "Enter" || event.key === "Escape") {
        event.preventDefault();
        name.blur();
      }
    });
    name.addEventListener("blur", () => this.rename(name.value.replace(/\s+/g, " ").trim().normalize("NFC")));
  }

  async rename(to) {
    const from = this.label;
    if (!to || to === from || this.busy) return this.showName();
    const other = cards.find((card) => card !== this && card.label === to);
    let join = false;
    if (other && !(this.known && other.known)) {
      say(this.said, `There is a class “${to}” already.`, true);
      return this.showName();
    }
    if (other) {
      join = await confirmed({
        title: `Join “${from}” and “${to}”?`, yes: "Join them", no: "Keep both",
        text: [make("p", { textContent: `There is a class “${to}” already. Joined, the pictures of both count for “${to}”.` })],
      });
      if (!join) return this.showName();
    }
    this.label = to; // at once, so that a refresh in between finds the card
    if (!this.known) return this.show();
    const place = join ? $("teach-said") : this.said;
    if (!await attempt(this.said, () => api("rename", { json: { label: from, to, join } }))) {
      this.label = from;
      return this.showName();
    }
    lastLesson = "";
    lastName = { from, to, card: this, views: join ? [...this.find(".thumbs").children] : null };
    if (join) {
      other.adopt(lastName.views);
      this.remove();
    }
    await look();
    if (!join) this.show();
    say(place, join ? `Joined “${from}” with “${to}”.` : `Renamed “${from}” to “${to}”.`);
  }

  async forget() {
    if (!this.known) {
      this.remove();
      return $("add").focus();
    }
    const label = this.label, lists = [
      ["What goes:", [`its name and its number of ${noun()}s`, `what was learned from them; ${noun()}s were never kept, so to know it again it must be taught again`]],
      ["What stays:", ["the other classes", ...state.known.forgotten]],
    ];
    const text = lists.flatMap(([title, items]) => [
      make("p", { textContent: title }), make("ul", {}, ...items.map((textContent) => make("li", { textContent }))),
    ]);
    text.push(make("p", { textContent: "This cannot be undone." }));
    if (!await confirmed({ title: `Forget “${label}”?`, text, yes: "Forget it", no: "Keep it" })) return;
    const place = $("teach-said");
    say(place, `Forgetting “${label}” …`);
    const done = await attempt(place, () => api("forget", { json: { label }, waiting: (told) => say(place, told) }));
    await look();
    if (done) say(place, `Forgot “${label}”.`);
    $("teach-title").focus(); // the focused button is gone
  }

  /** Move the card in front of another one, if there is one. */
  moveBefore(other) {
    if (!other) return;
    cards.splice(cards.indexOf(this), 1);
    cards.splice(cards.indexOf(other), 0, this);
    other.element.before(this.element);
  }

  remove() {
    const focused = this.element.contains(document.activeElement);
    closeCamera(this.find("video"));
    cards.splice(cards.indexOf(this), 1);
    this.element.remove();
    if (lastUsed === this) lastUsed = null;
    if (focused) $("teach-title").focus();
  }

  // ---- pictures ----

  /** Take what was dropped or chosen: pictures go to this card, sub-folders to cards of their own. */
  take(found) {
    const { loose, folders, left } = sorted(found);
    const own = [...loose, ...folders.filter(({ below }) => !below).flatMap(({ files }) => files)];
    const lessons = own.length ? [[this, own]] : [];
    for (const { name, files } of folders.filter(({ below }) => below)) lessons.push([named(name), files]);
    begin(lessons, left, this.said);
  }

  /** Show views of another card, whose class is now a part of this one. */
  adopt(views) {
    this.find(".thumbs").append(...views);
    this.find(".thumbs").hidden = !this.find(".thumbs").children.length;
  }

  /** Show pictures on the card; return the view of each. */
  view(files, lesson) {
    const list = this.find(".thumbs"), views = new Map();
    list.hidden = false;
    for (const file of files) {
      const item = make("li", { title: file.name, lesson }, thumbnail(file, file.name));
      views.set(file, item);
      list.prepend(item);
    }
    for (const old of [...list.children].slice(SHOWN)) if (!old.classList.contains("bad")) old.remove();
    return views;
  }

  // ---- the camera ----

  prepareCamera() {
    const video = this.find("video"), hold = this.find(".hold"), part = this.find(".recorder");
    let timer = null, recorded = [], held = false;
    const shoot = async () => {
      if (video.videoWidth && recorded.length < LONGEST) recorded.push(capture(video));
      if (held) hold.textContent = count(recorded.length, "picture");
    };
    const start = () => {
      if (held || hold.disabled) return;
      held = true;
      recorded = [];
      shoot();
      timer = setInterval(shoot, EVERY);
    };
    const stop = async () => {
      if (!held) return;
      held = false;
      clearInterval(timer);
      hold.textContent = "Hold to record";
      const files = await Promise.all(recorded);
      if (files.length) begin([[this, files]]);
    };
    hold.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      hold.setPointerCapture(event.pointerId);
      start();
    });
    for (const event of ["pointerup", "pointercancel", "blur"]) hold.addEventListener(event, stop);
    const isKey = (event) => event.key === " " || event.key === "Enter";
    hold.addEventListener("keydown", (event) => {
      if (!isKey(event)) return;
      event.preventDefault();
      if (!event.repeat) start();
    });
    hold.addEventListener("keyup", (event) => {
      if (!isKey(event)) return;
      event.preventDefault(); // in Firefox the space bar clicks when it is released
      stop();
    });
    hold.addEventListener("click", (event) => { // of a screen reader: without pointer or key, one picture
      if (event.detail === 0 && !held) {
        start();
        stop();
      }
    });
    hold.addEventListener("contextmenu", (event) => event.preventDefault()); // a long press on a phone
    this.find(".camera").addEventListener("click", async () => {
      if (!part.hidden) return this.closeRecorder();
      part.hidden = false;
      hold.disabled = true;
      say(this.said, "");
      const open = await attempt(this.said, async () => (await openCamera(video), true));
      if (!open) return this.closeRecorder();
      hold.disabled = false;
      hold.focus();
    });
    this.find(".done").addEventListener("click", () => {
      this.closeRecorder();
      this.find(".camera").focus();
    });
    part.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.closeRecorder();
      this.find(".camera").focus();
    });
  }

  closeRecorder() {
    this.find(".recorder").hidden = true;
    closeCamera(this.find("video"));
  }

  // ---- progress ----

  progress() {
    const busy = this.busy > 0, bar = this.find("progress"), now = state.known?.learning;
    this.find(":scope > .progress").hidden = !busy;
    if (!busy) return;
    const inside = this.sending && now?.label === this.label ? Math.min(now.done, this.sending) : 0;
    const done = this.done + inside;
    Object.assign(bar, { max: Math.max(this.total, 1), value: done });
    const answering = (state.known?.classes.length ?? 0) > 1 ? " It goes on answering meanwhile." : "";
    const doing = this.sending ? `Learning: ${done} of ${count(this.total, "picture")}.${answering}` : "Waiting for other lessons.";
    if (this.find(".doing").textContent !== doing) this.find(".doing").textContent = doing;
  }
}

// ---- lessons ------------------------------------------------------------------------------------------------------------

/** Return the card with this name; make one if there is none. */
export function named(name) {
  const label = name.trim().normalize("NFC");
  return cards.find((card) => card.label === label) ?? add(label);
}

/** Add a card, with a name that is free. */
export function add(label = "") {
  const taken = new Set(cards.map((card) => card.label));
  for (let number = 1; !label; number++) if (!taken.has(`Class ${number}`)) label = `Class ${number}`;
  const card = new Card(label);
  cards.push(card);
  $("cards").append(card.element);
  card.fit();
  return card;
}

/** Learn from pictures, [[card, files], …], as one lesson. `left` names files that are no pictures. */
export function begin(lessons, left = [], place = $("teach-said")) {
  const others = leftOut(left);
  if (!lessons.length) return say(place, `There are no pictures. ${others}`, true);
  say($("teach-said"), others);
  const number = `${Date.now()}-${Math.random()}`;
  return Promise.all(lessons.map(([card, files]) => {
    const views = card.view(files, number);
    card.busy += 1;
    card.total += files.length;
    say(card.said, "");
    card.show();
    card.progress();
    state.lessons += 1;
    queue = queue.then(() => learn(card, files, views, number)).catch((error) => console.error(error)).finally(() => {
      state.lessons -= 1;
      card.busy -= 1;
      if (!card.busy) card.done = card.total = 0;
      card.show();
      card.progress();
      if (state.known) showUndo(state.known);
    });
    return queue;
  }));
}

async function learn(card, files, views, lesson) {
  const unused = [];
  let pictures = 0, seconds = 0, copies = 0, before = 0, failed = "";
  const refuse = (file, reason) => {
    unused.push(file.name);
    card.done += 1;
    mark(views.get(file), file, reason);
  };
  if (!state.known) await look();
  if (!state.known) return giveUp(card, files, views, "The server has not answered yet; try again in a moment.");
  const parts = await portions(files, state.known.limits, refuse);
  for (const part of parts) {
    card.sending = part.length;
    card.progress();
    try {
      const path = `learn?lesson=${encodeURIComponent(lesson)}`;
      const told = await api(path, { body: form(part, { label: card.label }), waiting: (text) => say(card.said, text) });
      card.label = told.label;
      card.known = true;
      lastLesson = lesson;
      pictures += told.pictures;
      seconds += told.seconds;
      copies += told.repeated.length;
      before += told.learned_before.length;
      const open = [...part];
      const leaveOut = (source, reason) => {
        const place = Math.max(open.findIndex((file) => file.name.slice(0, 200) === source), 0);
        const [file] = open.splice(place, 1);
        mark(views.get(file), file, reason);
        return file.name;
      };
      for (const { source, reason } of told.skipped) unused.push(leaveOut(source, reason));
      for (const source of told.repeated) leaveOut(source, "the same as another picture");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (![413, 422].includes(error.status)) {
        failed = error.message;
        giveUp(card, parts.slice(parts.indexOf(part)).flat(), views, error.message);
        break;
      }
      for (const file of part) { // none of them could be used
        unused.push(file.name);
        mark(views.get(file), file, error.message);
      }
      failed = pictures ? "" : error.message;
    } finally {
      card.sending = null;
      card.done += part.length;
    }
    if (part !== parts.at(-1)) await look();
  }
  await look();
  if (failed) return say(card.said, failed, true);
  const skipped = unused.length ? ` ${count(unused.length, "picture")} could not be used: ${listed(unused)}.` : "";
  if (!pictures) return say(card.said, skipped.trim(), true);
  const again = copies ? ` ${count(copies, "copy was", "copies were")} left out.` : "";
  const twice = before ? ` ${count(before, "picture was", "pictures were")} probably taught before and ${before === 1 ? "counts" : "count"} twice now; Undo takes that back.` : "";
  say(card.said, `Learned from ${count(pictures, "picture")} in ${seconds.toFixed(1)} s.${again}${twice}${skipped}`);
}

/** Mark a picture that could not be used, in its place, with the reason. */
function mark(item, file, reason) {
  item.classList.add("bad");
  item.title = `${file.name}: ${reason}`;
  item.replaceChildren(make("span", { className: "view no-view", dir: "auto", textContent: file.name }));
  item.append(make("span", { className: "unseen", textContent: ` could not be used: ${reason}` }));
}

function giveUp(card, files, views, reason) {
  for (const file of files) mark(views.get(file), file, "it was not learned");
  say(card.said, reason, true);
}

/** Take the last lesson, correction or name back. */
async function undo() {
  const place = $("teach-said");
  say(place, "Undoing …");
  const done = await attempt(place, () => api("undo", { method: "POST" }));
  if (done) {
    const isName = lastName && done.undone === `renaming “${lastName.from}” to “${lastName.to}”`;
    if (isName && !lastName.views) lastName.card.label = lastName.from; // the card keeps its place and its views
    for (const item of document.querySelectorAll(".thumbs > li")) {
      if (item.lesson === lastLesson && done.undone.startsWith("learning")) item.remove();
    }
    lastLesson = "";
    for (const said of document.querySelectorAll(".card > .said, #ask details > .said")) say(said, ""); // it may not be true any more
    await look();
    if (isName && lastName.views) cards.find((card) => card.label === lastName.from)?.adopt(lastName.views);
    lastName = null;
    for (const card of cards) card.find(".thumbs").hidden = !card.find(".thumbs").children.length;
  }
  if (done) say(place, `Undone: ${done.undone}.`);
}

// ---- start --------------------------------------------------------------------------------------------------------------

function showUndo({ undo: change }) {
  $("undo").disabled = !change || state.lessons > 0;
  $("undo").setAttribute("aria-label", change ? `Undo ${change}` : "Undo");
  $("undo").title = change ? `Undo ${change}` : "";
}

/** Bring the cards up to date in place: unchanged ones keep the focus. */
function showClasses(now, changed) {
  showUndo(now);
  for (const card of cards) card.progress();
  if (!changed) return;
  const labels = new Map(now.classes.map((one) => [one.label, one]));
  for (const card of [...cards]) {
    const own = labels.get(card.label);
    if (card.known && !own && !card.busy) card.remove();
    if (own) card.known = true;
    if (!own && card.busy) card.known = false;
    card.pictures = own?.pictures ?? 0;
    labels.delete(card.label);
  }
  for (const { label, pictures } of labels.values()) {
    const card = add(label);
    Object.assign(card, { known: true, pictures });
    const later = now.classes.slice(now.classes.findIndex((one) => one.label === label) + 1);
    card.moveBefore(cards.find((one) => later.some((known) => known.label === one.label)));
  }
  if (!cards.length && now.changeable && noun() === "picture") for (let number = 0; number < 2; number++) add();
  const names = now.classes.map(({ label }) => label);
  const all = now.classes.reduce((sum, { pictures }) => sum + (pictures ?? 0), 0);
  for (const card of cards) card.show();
  $("known-names").replaceChildren(...names.map((value) => make("option", { value })));
  $("known-sum").textContent = names.length
    ? `${count(names.length, "class", "classes")}${all ? `, learned from ${count(all, noun())}. None of them was kept.` : "."}`
    : noun() === "vector" ? "Nothing learned yet." : "Nothing learned yet. Give each thing a name and show a few pictures of it.";
  const waiting = inMemory(now);
  $("in-memory").textContent = waiting
    ? `${waiting} Fewer than ${now.hold} new ${noun()}s of a class are written to the model's folder together with later ones, or when the server is stopped, so that two copies of the folder do not tell one ${noun()}. If the server is killed, they are lost.`
    : "";
  $("add").disabled = $("add-folder").disabled = !now.changeable;
  if (!now.changeable) say($("teach-said"), "This model cannot learn more: it was made without statistics of its classes.");
}

/** Take what was dropped beside the cards: each folder gets a card, loose pictures a new one together. */
function takeNew(found) {
  const { loose, folders, left } = sorted(found);
  const lessons = folders.map(({ name, files }) => [named(name), files]);
  if (loose.length) lessons.unshift([cards.find((card) => !card.known && !card.busy) ?? add(), loose]);
  begin(lessons, left);
  const used = new Set(lessons.map(([card]) => card));
  if (folders.length) for (const card of [...cards]) { // the empty cards of the start are not needed any more
    if (!card.known && !card.busy && !used.has(card) && /^Class \d+$/.test(card.label)) card.remove();
  }
}

export function startCards() {
  watch(showClasses);
  $("undo").addEventListener("click", undo);
  $("add").addEventListener("click", () => {
    const card = add();
    card.find(".name").focus();
  });
  choosable($("add-folder"), takeNew);
  droppable($("add-zone"), $("teach"), takeNew);
  addEventListener("resize", () => cards.forEach((card) => card.fit()));
}
