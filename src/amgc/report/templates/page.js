"use strict";
// The page is complete without JavaScript. This script shows the value of a cell of a large matrix under the pointer, prints all
// methods, and removes boxes that do not need to scroll from the tab order.
for (const data of document.querySelectorAll("script.cells")) {
  const { left, top, cell, names, totals, counts } = JSON.parse(data.textContent);
  const figure = data.closest("figure");
  const svg = figure.querySelector("svg");
  const readout = figure.querySelector(".readout");
  const found = new Map(counts.map(([row, column, count]) => [row * names.length + column, count]));
  const start = readout.textContent;
  readout.hidden = false;
  svg.addEventListener("pointermove", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const row = Math.floor((point.y - top) / cell);
    const column = Math.floor((point.x - left) / cell);
    const inside = row >= 0 && column >= 0 && row < names.length && column < names.length;
    const count = found.get(row * names.length + column) ?? 0;
    readout.textContent = inside ? `${names[row]} taken for ${names[column]}: ${count} of ${totals[row]}` : start;
  });
  svg.addEventListener("pointerleave", () => { readout.textContent = start; });
}

const boxes = document.querySelectorAll(".scroll");
const watch = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
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
