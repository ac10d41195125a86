import { t } from "sinkgate/lib/language.js";
import { LIMIT, TITLE_LIMIT, clean, fmt, token, tokenText, visible, wide } from "sinkgate/lib/text.js";

export function fill(el, attrs, children) {
  for (const [key, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") el.addEventListener(key, value);
    else el.setAttribute(key, value === true ? "" : value);
  }
  el.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return el;
}

export const h = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
// The page carries an empty <svg>, so its namespace is read and not spelled.
export const s = (tag, attrs, ...children) => fill(document.createElementNS(document.getElementById("seed").namespaceURI, tag), attrs, children);
export const bdi = (text) => h("bdi", {}, clean(text));
export const want = (el, change) => el.dispatchEvent(new CustomEvent("want", { bubbles: true, detail: change }));
export const say = (text) => { document.getElementById("live").textContent = text; };

/** Show the tooltip over a rectangle, or beside it; each line is text or a node. Without a rectangle, hide it. */
export function tip(rect, lines, beside = false) {
  const box = document.getElementById("tip");
  if (!rect) { box.hidden = true; return; }
  box.replaceChildren(...lines.filter(Boolean).map((line) => h("p", {}, line)));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  let left = rect.left + rect.width / 2 - width / 2, top = rect.top - height - 10 > 4 ? rect.top - height - 10 : rect.bottom + 10;
  if (beside) {
    left = rect.left + 14 + width < room - 8 ? rect.left + 14 : rect.left - width - 14;
    top = rect.top;
  }
  box.style.transform = `translate(${Math.round(Math.min(Math.max(8, left), room - width - 8))}px, ${Math.round(top)}px)`;
}

/** A pointer left: a finger leaves as soon as it has touched, and what it asked for stays. */
export const away = (event) => { if (event.pointerType === "mouse") tip(null); };

/** Hand the reader a file; its content is text or a Blob. */
export function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 2000);
}

export const fileName = (text) => clean(text).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80) || "sinkgate";

/** The drawing, already a file of its own, as a PNG of twice its size. */
export async function savePng(name, drawing) {
  const address = URL.createObjectURL(new Blob([drawing], { type: "image/svg+xml" }));
  try {
    const picture = h("img", { alt: "" });
    picture.src = address;
    await picture.decode();
    const canvas = h("canvas", { width: 2 * picture.naturalWidth, height: 2 * picture.naturalHeight });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    save(name, "image/png", await new Promise((done) => canvas.toBlob(done, "image/png")));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** The buttons that save a drawing: as SVG, as PNG, and its numbers as CSV. `drawing` gives the SVG, `data` the rows. */
export const savers = ({ title, name, drawing, data }) => h("span", { class: "tools" },
  h("button", { type: "button", "aria-label": t("Save “{title}” as SVG", { title }), click: () => save(`${name}.svg`, "image/svg+xml", drawing()) }, "SVG"),
  h("button", { type: "button", "aria-label": t("Save “{title}” as PNG", { title }), click: () => savePng(`${name}.png`, drawing()) }, "PNG"),
  data && h("button", { type: "button", "aria-label": t("Save the numbers of “{title}” as CSV", { title }), click: () => save(`${name}.csv`, "text/csv", csv(data())) }, "CSV"));

/** Rows as CSV; text that a spreadsheet would run as a formula is quoted with an apostrophe. */
export function csv(rows) {
  const field = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(+value.toPrecision(6));
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return "\ufeff" + rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

export const KEPT = { fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", "stroke-linecap": "butt",
  "stroke-linejoin": "miter", opacity: "1", "font-family": "", "font-size": "", "font-weight": "400", "text-anchor": "start" };

/** A copy of a drawing with its styles written out and without what only serves the page. */
export function plain(svg) {
  const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((el, i) => {
    const style = getComputedStyle(el), text = el.tagName === "text" || el === svg;
    for (const [key, usual] of Object.entries(KEPT)) {
      if ((key.startsWith("font") || key === "text-anchor") && !text) continue;
      const value = style.getPropertyValue(key);
      if (value && value !== usual) to[i].setAttribute(key, value.replaceAll('"', "'"));
    }
    for (const { name } of [...to[i].attributes]) if (/^(class|tabindex|style|role|aria-.*|data-.*|pointer-events)$/.test(name)) to[i].removeAttribute(name);
  });
  from.forEach((el, i) => el.classList.contains("ui") && to[i].remove());
  return copy;
}

/** The drawing as a file of its own: its title above; a colour scale and a line of text, if any, below. */
export function standalone(svg, title, scale, text) {
  const copy = plain(svg), page = getComputedStyle(document.body), rise = 30;
  const width = Math.max(svg.width.baseVal.value, 360), height = svg.height.baseVal.value, line = { x: 0, fill: page.color, stroke: "none", "font-size": 12 };
  const cut = (words, size) => {
    let kept = [...words];
    while (kept.length && wide(kept.join(""), size) > width) kept = kept.slice(0, -1);
    return kept.length < [...words].length ? kept.slice(0, -1).join("") + "…" : words;
  };
  let bottom = height;
  if (scale) { copy.append(fill(plain(scale), { y: bottom + 12 }, [])); bottom += 50; }
  let row = "";
  const put = () => { copy.append(s("text", { ...line, y: bottom + 18 }, cut(row, 11.5))); bottom += 18; };
  for (const part of text ? text.split(" · ") : []) {
    if (row && wide(`${row} · ${part}`, 11.5) > width) { put(); row = ""; }
    row += (row ? " · " : "") + part;
  }
  if (row) { put(); bottom += 6; }
  for (const [key, value] of [["viewBox", `-12 ${-rise} ${width + 24} ${bottom + rise + 12}`], ["width", width + 24], ["height", bottom + rise + 12]]) copy.setAttribute(key, value);
  copy.prepend(
    s("title", {}, title),
    s("rect", { x: -12, y: -rise, width: width + 24, height: bottom + rise + 12, fill: page.backgroundColor }),
    s("text", { ...line, y: -12, "font-weight": 600, "font-size": 13 }, cut(title, 12.5)));
  return new XMLSerializer().serializeToString(copy);
}

/** A titled drawing that is redrawn when its width changes, with buttons that save it. */
export function figure({ title, note, name, about, draw, data }) {
  const plot = h("div", { class: "plot" });
  const drawing = () => standalone(plot.querySelector("svg"), `${title}${about ? ` · ${clean(about)}` : ""}`);
  const tools = savers({ title, name: fileName(name), drawing, data });
  const box = h("figure", {}, h("figcaption", {}, h("span", { class: "t" }, title), tools), plot, note && h("p", { class: "note" }, note));
  watch(plot, (width) => { plot.replaceChildren(draw(width)); tools.hidden = !plot.querySelector("svg"); });
  return box;
}

export function watch(el, paint) {
  let last = 0;
  new ResizeObserver(() => requestAnimationFrame(() => {
    const width = Math.floor(el.clientWidth);
    if (width && width !== last) paint((last = width));
  })).observe(el);
}

/** A table from columns {head, get, show?, num?, wide?, rowhead?}: `get` feeds the CSV, `show` the page. */
export function table({ caption, columns, rows, name, empty = t("None.") }) {
  if (!rows.length) return h("div", { class: "table" }, h("h3", {}, caption), h("p", { class: "empty" }, empty));
  const kind = (column) => [column.num && "n", column.wide && "wide"].filter(Boolean).join(" ") || null;
  const cell = (column, row, i) => {
    const value = column.show ? column.show(row) : fmt(column.get(row));
    return column.rowhead ? h("th", { scope: "row", class: kind(column) }, value) : h("td", { class: kind(column) }, value);
  };
  const field = (value) => (value && typeof value === "object" ? tokenText(value, TITLE_LIMIT) : typeof value === "string" ? clean(value) : value);
  const button = h("button", { type: "button", "aria-label": t("Save the table “{caption}” as CSV", { caption }), click: () =>
    save(`${fileName(name)}.csv`, "text/csv", csv([columns.map((c) => c.head), ...rows.map((row) => columns.map((c) => field(c.get(row))))])) }, "CSV");
  const scroll = h("div", { class: "scroll" }, h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map((c) => h("th", { scope: "col", class: kind(c) }, c.head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((c) => cell(c, row)))))));
  // A box that scrolls sideways must be reachable by keyboard, and only then.
  watch(scroll, () => {
    const wide = scroll.scrollWidth > scroll.clientWidth + 1;
    fill(scroll, wide ? { tabindex: 0, role: "region", "aria-label": caption } : {}, []);
    if (!wide) ["tabindex", "role", "aria-label"].forEach((key) => scroll.removeAttribute(key));
  });
  return h("div", { class: "table tablewrap" }, h("span", { class: "tools" }, button), scroll);
}

export function tokenNode(raw) {
  const { text, length } = token(raw);
  const runs = visible([...text].slice(0, LIMIT).join(""), true);
  const box = h("bdi", { class: "tok" }, runs.map(([run, escaped]) => (escaped ? h("span", { class: run === "·" && text.trim() ? "esc space" : "esc" }, run) : run)));
  if (!length) box.append(h("span", { class: "esc" }, t("⟨empty⟩")));
  if (length > LIMIT) {
    box.append(h("span", { class: "esc" }, "…"));
    box.title = t("{length} characters: {text}", { length: fmt(length), text: tokenText(raw, TITLE_LIMIT) });
  }
  return box;
}

export const tokenColumn = () => ({ head: t("token"), get: (row) => tokenText(row.token, TITLE_LIMIT), show: (row) => tokenNode(row.token), rowhead: true });

export function segments(box, name, choices, chosen, pick) {
  const legend = box.querySelector("legend");
  box.replaceChildren(legend, ...choices.map(([value, label]) => h("label", {},
    fill(h("input", { type: "radio", name, value, change: () => pick(value) }), { checked: value === chosen }, []), h("span", {}, label))));
}
