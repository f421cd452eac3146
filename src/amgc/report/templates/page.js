"use strict";
// The page is complete without JavaScript. This script shows the value of a cell of a large matrix under the pointer, prints all
// methods, and removes boxes that do not need to scroll from the tab order.
for (const data of document.querySelectorAll("script.cells")) {
  const { names, totals, counts } = JSON.parse(data.textContent);
  const figure = data.closest("figure");
  const svg = figure.querySelector("svg");
  const readout = figure.querySelector(".readout");
  const found = new Map(counts.map(([row, column, count]) => [row * names.length + column, count]));
  const start = readout.textContent;
  readout.hidden = false;
  svg.addEventListener("pointermove", (event) => {
    const map = svg.querySelector(".ground").getBoundingClientRect();
    const row = Math.floor(((event.clientY - map.top) / map.height) * names.length);
    const column = Math.floor(((event.clientX - map.left) / map.width) * names.length);
    const inside = row >= 0 && column >= 0 && row < names.length && column < names.length;
    const count = found.get(row * names.length + column) ?? 0;
    readout.textContent = inside ? `${names[row]} predicted as ${names[column]}: ${count} of ${totals[row]}` : start;
  });
  svg.addEventListener("pointerleave", () => { readout.textContent = start; });
}

const boxes = document.querySelectorAll(".scroll");
const watch = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
for (const box of boxes) watch.observe(box);

let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.method:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
