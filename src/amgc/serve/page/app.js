// The page: teach the model, ask it, see how good it is, take it along.

import { ask, startAsk } from "/ask.js";
import { begin, forgetLastUsed, lastUsed, startCards } from "/cards.js";
import { $, api, attempt, confirmed, count, make, percent, save, say, takeToken } from "/parts.js";
import { chosen } from "/pictures.js";
import { inMemory, keepLooking, look, noun, state, watch } from "/state.js";

takeToken();
startCards();
startAsk();

// ---- pasted pictures go to what was used last ---------------------------------------------------------------------------

for (const event of ["dragover", "drop"]) document.addEventListener(event, (dropped) => dropped.preventDefault());
for (const event of ["focusin", "pointerdown"]) $("ask").addEventListener(event, forgetLastUsed);
document.addEventListener("paste", ({ clipboardData }) => {
  const files = [...clipboardData.files];
  if (!files.length || noun() === "vector") return;
  if (lastUsed) begin([[lastUsed, files]]);
  else ask(chosen(files));
});

// ---- a model of vectors is taught and asked by programs -----------------------------------------------------------------

watch(({ input }) => {
  const vectors = input.kind === "vector";
  document.body.classList.toggle("vectors", vectors);
  $("takes-vectors").hidden = !vectors;
  const length = input.numbers ? ` of ${count(input.numbers, "number")}` : "";
  const text = `This model takes vectors${length}, not pictures. Programs teach it and ask it; here you can rename and forget classes, undo, see how good it is and take it along.`;
  if (vectors && $("vectors-text").textContent !== text) $("vectors-text").textContent = text;
});

// ---- how good is it? ----------------------------------------------------------------------------------------------------

watch(({ classes, quality, enough, changeable }) => {
  let figure = "", text = "", pair = "";
  if (quality) {
    const low = Math.max(0, quality.accuracy - quality.margin), high = Math.min(1, quality.accuracy + quality.margin);
    figure = `about ${percent(quality.accuracy)}`;
    text = `of new ${noun()}s like these would be named correctly; it may be ${percent(low).replace("\u00a0%", "")} to ${percent(high)}.`;
    if (quality.margin < 0.2 && quality.confusion >= 0.01) {
      const [one, other] = quality.confused;
      pair = `It confuses “${one}” and “${other}” most: about ${percent(quality.confusion)} of one pass for the other. More ${noun()}s of these help most.`;
    } else if (quality.margin >= 0.2) pair = `With more ${noun()}s of each class it can say more.`;
  } else if (!changeable) text = "This model cannot tell: it has no statistics of its classes.";
  else if (classes.length < 2) text = "That can be said when it knows two classes.";
  else text = `Too few ${noun()}s to say: each class needs ${enough} or more.`;
  for (const [place, words] of Object.entries({ "quality-figure": figure, "quality-text": text, "quality-pair": pair })) {
    if ($(place).textContent !== words) $(place).textContent = words;
  }
});

// ---- take it along ------------------------------------------------------------------------------------------------------

async function take(path, name, doing) {
  const place = $("take-said");
  say(place, doing);
  const file = await attempt(place, () => api(path, { file: true }));
  if (!file) return;
  save(file, name);
  const without = inMemory(state.known);
  say(place, `Saved ${name}, ${(file.size / 1e6).toFixed(1)} MB. It holds no pictures.${without ? ` What is not written yet is not in it. ${without}` : ""}`);
}
$("take-zip").addEventListener("click", () => take("model.zip", "model.zip", "Packing the model …"));
$("take-onnx").addEventListener("click", () => take("model.onnx", "model.onnx", "Writing and checking the ONNX file; this takes a few seconds …"));

$("open-file").addEventListener("change", async () => {
  const [file] = $("open-file").files, place = $("take-said");
  $("open-file").value = "";
  if (!file) return;
  if (state.known?.classes.length && !await confirmed({
    title: "Replace the model?", yes: "Replace it", no: "Keep it",
    text: [make("p", { textContent: `${file.name} takes the place of all classes on this page. Undo brings them back until the next change.` })],
  })) return;
  const most = state.known?.limits.upload_mb ?? 64;
  if (file.size > most * 1e6) return say(place, `${file.name} has more than ${most} MB. Start the server with a larger --max-upload.`, true);
  say(place, `Opening ${file.name} …`);
  const body = await file.arrayBuffer().catch(() => null);
  if (!body) return say(place, `The browser cannot read ${file.name}.`, true);
  const done = await attempt(place, () => api("open", { body, type: "application/zip" }));
  await look();
  if (done) say(place, `Opened ${file.name}.`);
});

$("example").addEventListener("toggle", async () => {
  if (!$("example-code").textContent) $("example-code").textContent = await (await fetch("/classify.py")).text();
}, { once: true });

// ---- what is kept -------------------------------------------------------------------------------------------------------

watch(({ kept, not_kept: notKept, reveals, classes }, changed) => {
  if (!changed) return;
  $("not-kept").replaceChildren(...notKept.map((textContent) => make("li", { textContent })));
  $("kept").replaceChildren(...kept.map((textContent) => make("li", { textContent })));
  $("reveals").replaceChildren(...reveals.map((textContent) => make("li", { textContent })));
  $("reveals-title").hidden = !reveals.length;
  for (const id of ["take-zip", "take-onnx"]) $(id).disabled = !classes.length;
});

keepLooking();
