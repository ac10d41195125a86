"use strict";
// The page is whole without this: it shows the numbers under the pointer, and lets the reader choose a theme.

const box = document.getElementById("tip");

function show(svg, figure, k) {
  const cross = svg.querySelector(".cross"), at = figure.x[k];
  cross.setAttribute("transform", `translate(${at} 0)`);
  cross.setAttribute("visibility", "visible");
  const head = document.createElement("p");
  head.textContent = `${figure.place[k]} ${figure.unit}`;
  const table = document.createElement("table");
  const rows = figure.lines.filter((line) => line.text[k] !== null).sort((a, b) => b.value[k] - a.value[k]);
  for (const line of rows) {
    const row = table.insertRow();
    row.insertCell().textContent = line.name;
    row.insertCell().textContent = line.text[k];
  }
  box.replaceChildren(head, table);
  box.hidden = false;
  const area = svg.getBoundingClientRect(), size = box.getBoundingClientRect();
  const x = area.left + at * area.width / svg.viewBox.baseVal.width, room = document.documentElement.clientWidth;
  const left = x + 14 + size.width < room - 8 ? x + 14 : x - size.width - 14;
  box.style.transform = `translate(${Math.round(Math.max(8, left))}px, ${Math.round(Math.max(8, area.top + 20))}px)`;
}

function hide(svg) {
  svg.querySelector(".cross").setAttribute("visibility", "hidden");
  box.hidden = true;
}

for (const figure of JSON.parse(document.getElementById("payload").textContent)) {
  const svg = document.getElementById(figure.id);
  let k = figure.x.length - 1;
  if (!svg || k < 0) continue;
  const nearest = (event) => {
    const area = svg.getBoundingClientRect();
    const at = (event.clientX - area.left) * svg.viewBox.baseVal.width / area.width;
    figure.x.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(figure.x[k] - at)) k = i; });
    show(svg, figure, k);
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(svg); });
  svg.addEventListener("blur", () => hide(svg));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") hide(svg);
    if (step === undefined) return;
    event.preventDefault();
    k = Math.min(figure.x.length - 1, Math.max(0, k + step));
    show(svg, figure, k);
  });
}

const themes = document.getElementById("theme");
for (const [name, label] of [["", "System"], ["light", "Light"], ["dark", "Dark"]]) {
  const choice = document.createElement("label"), input = document.createElement("input"), text = document.createElement("span");
  Object.assign(input, { type: "radio", name: "theme", value: name, checked: name === "" });
  input.addEventListener("change", () => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
  });
  text.textContent = label;
  choice.append(input, text);
  themes.append(choice);
}
