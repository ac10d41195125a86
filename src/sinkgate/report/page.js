"use strict";
// The report's page. Each draw* function fills an element from (payload, state) and keeps nothing; a control
// says what it wants with a "want" event that bubbles to start(), which owns the state and the address.
// Text from a model or a corpus is only ever written as text nodes, after clean() or token().

// ---------------------------------------------------------------- text and numbers

const LIMIT = 40, TITLE_LIMIT = 200;
const GAP = "\u2009", DASH = "—", MINUS = "−";

/** One code point as it should be read: itself, or a visible escape when it cannot be seen or moves others;
    `strict` counts the wide, thin and unbreakable spaces among those. */
function glyph(c, strict) {
  const code = c.codePointAt(0);
  if (c === "\n") return "↵";
  if (c === "\t") return "⇥";
  if (/[\p{C}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u034f\ufe00-\ufe0f\u{e0100}-\u{e01ef}\u2800]/u.test(c) || (strict && c !== " " && /\p{Zs}/u.test(c)))
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return c;
}

/** Split text into [string, escaped?] runs; `edges` marks the spaces at both ends and in runs. */
function visible(text, edges = false) {
  const chars = [...text], runs = [];
  let marks = 0;
  chars.forEach((c, i) => {
    let shown = glyph(c, edges), escaped = shown !== c;
    if (edges && c === " " && (i === 0 || i === chars.length - 1 || chars[i - 1] === " " || chars[i + 1] === " ")) {
      shown = "·";
      escaped = true;
    }
    marks = /\p{M}/u.test(c) ? marks + 1 : 0;
    if (marks > 2) {
      shown = `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
      escaped = true;
    } else if (marks && i === 0) shown = "◌" + c;
    const last = runs.at(-1);
    if (last && last[1] === escaped) last[0] += shown;
    else runs.push([shown, escaped]);
  });
  return runs;
}

const clean = (text) => visible(String(text ?? "")).map((run) => run[0]).join("");

/** A token as {text, length}: a long one arrives cut, with its true length. */
function token(raw) {
  const text = raw === null || raw === undefined ? "" : typeof raw === "object" ? String(raw.text) : String(raw);
  return { text, length: typeof raw === "object" && raw ? raw.length : [...text].length };
}

function tokenText(raw, limit = LIMIT) {
  const { text, length } = token(raw);
  const cut = [...text].slice(0, limit).join("");
  return visible(cut, true).map((run) => run[0]).join("") + (length > limit ? "…" : "");
}

function tokenNode(raw) {
  const { text, length } = token(raw);
  const runs = visible([...text].slice(0, LIMIT).join(""), true);
  const box = h("bdi", { class: "tok" }, runs.map(([run, escaped]) => (escaped ? h("span", { class: run === "·" && text.trim() ? "esc space" : "esc" }, run) : run)));
  if (!length) box.append(h("span", { class: "esc" }, "⟨empty⟩"));
  if (length > LIMIT) {
    box.append(h("span", { class: "esc" }, "…"));
    box.title = `${length} characters: ${tokenText(raw, TITLE_LIMIT)}`;
  }
  return box;
}

const SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Three significant digits, a true minus, powers of ten written as such; null is a dash. */
function fmt(value, unit = "") {
  if (value === null || value === undefined) return DASH;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return clean(value);
  const size = Math.abs(value);
  let text;
  if (size >= 1e7 || (size > 0 && size < 5e-4)) {
    const [digits, power] = size.toExponential(1).split("e");
    const raised = [...String(Math.abs(+power))].map((d) => SUPER[+d]).join("");
    text = `${digits}×10${+power < 0 ? "⁻" : ""}${raised}`;
  } else if (Number.isInteger(value) || size >= 1000) text = Math.round(size).toLocaleString("en-US");
  else text = size.toPrecision(size < 0.1 ? 2 : 3);
  return (value < 0 ? MINUS : "") + text + (unit ? (/^[×%]/.test(unit) ? "" : GAP) + clean(unit) : "");
}

const number = (value) => typeof value === "number";
const percent = (value) => (number(value) ? `${(100 * value).toFixed(1)}%` : DASH);
/** Numbers for an axis: no trailing zeros. */
const tick = (value) => fmt(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
const plural = (n, word) => `${fmt(n)} ${word}${n === 1 ? "" : "s"}`;

// ---------------------------------------------------------------- elements

function fill(el, attrs, children) {
  for (const [key, value] of Object.entries(attrs ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") el.addEventListener(key, value);
    else el.setAttribute(key, value === true ? "" : value);
  }
  el.append(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
  return el;
}

const h = (tag, attrs, ...children) => fill(document.createElement(tag), attrs, children);
// The page carries an empty <svg>, so its namespace is read and not spelled.
const s = (tag, attrs, ...children) => fill(document.createElementNS(document.getElementById("seed").namespaceURI, tag), attrs, children);
const bdi = (text) => h("bdi", {}, clean(text));
const want = (el, change) => el.dispatchEvent(new CustomEvent("want", { bubbles: true, detail: change }));
const say = (text) => { document.getElementById("live").textContent = text; };

/** Show the tooltip over a rectangle, or beside it; each line is text or a node. Without a rectangle, hide it. */
function tip(rect, lines, beside = false) {
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
const away = (event) => { if (event.pointerType === "mouse") tip(null); };

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 2000);
}

const fileName = (text) => clean(text).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80) || "sinkgate";

/** Rows as CSV; text that a spreadsheet would run as a formula is quoted with an apostrophe. */
function csv(rows) {
  const field = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(+value.toPrecision(6));
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return "\ufeff" + rows.map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

const KEPT = { fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", "stroke-linecap": "butt",
  "stroke-linejoin": "miter", opacity: "1", "font-family": "", "font-size": "", "font-weight": "400", "text-anchor": "start" };

/** A copy of a drawing with its styles written out and without what only serves the page. */
function plain(svg) {
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
function standalone(svg, title, scale, text) {
  const copy = plain(svg), page = getComputedStyle(document.body), rise = 30;
  const width = Math.max(svg.width.baseVal.value, 360), height = svg.height.baseVal.value, line = { x: 0, fill: page.color, stroke: "none", "font-size": 12 };
  const cut = (words, size) => (words.length * size > width ? words.slice(0, Math.floor(width / size)) + "…" : words);
  let bottom = height;
  if (scale) { copy.append(fill(plain(scale), { y: bottom + 12 }, [])); bottom += 50; }
  let row = "";
  const put = () => { copy.append(s("text", { ...line, y: bottom + 18 }, cut(row, 6))); bottom += 18; };
  for (const part of text ? text.split(" · ") : []) {
    if (row && (row.length + part.length + 3) * 6 > width) { put(); row = ""; }
    row += (row ? " · " : "") + part;
  }
  if (row) { put(); bottom += 6; }
  for (const [key, value] of [["viewBox", `-12 ${-rise} ${width + 24} ${bottom + rise + 12}`], ["width", width + 24], ["height", bottom + rise + 12]]) copy.setAttribute(key, value);
  copy.prepend(
    s("title", {}, title),
    s("rect", { x: -12, y: -rise, width: width + 24, height: bottom + rise + 12, fill: page.backgroundColor }),
    s("text", { ...line, y: -12, "font-weight": 600, "font-size": 13 }, cut(title, 6.6)));
  return new XMLSerializer().serializeToString(copy);
}

/** A titled drawing that is redrawn when its width changes, with buttons that save it. */
function figure({ title, note, name, about, draw, data }) {
  const plot = h("div", { class: "plot" });
  const tools = h("span", { class: "tools" },
    h("button", { type: "button", "aria-label": `Save “${title}” as SVG`, click: () => save(`${fileName(name)}.svg`, "image/svg+xml", standalone(plot.querySelector("svg"), `${title}${about ? ` · ${clean(about)}` : ""}`)) }, "SVG"),
    data && h("button", { type: "button", "aria-label": `Save the numbers of “${title}” as CSV`, click: () => save(`${fileName(name)}.csv`, "text/csv", csv(data())) }, "CSV"));
  const box = h("figure", {}, h("figcaption", {}, h("span", { class: "t" }, title), tools), plot, note && h("p", { class: "note" }, note));
  watch(plot, (width) => plot.replaceChildren(draw(width)));
  return box;
}

function watch(el, paint) {
  let last = 0;
  new ResizeObserver(() => requestAnimationFrame(() => {
    const width = Math.floor(el.clientWidth);
    if (width && width !== last) paint((last = width));
  })).observe(el);
}

/** A table from columns {head, get, show?, num?, wide?, rowhead?}: `get` feeds the CSV, `show` the page. */
function table({ caption, columns, rows, name, empty = "None." }) {
  if (!rows.length) return h("div", { class: "table" }, h("h3", {}, caption), h("p", { class: "empty" }, empty));
  const kind = (column) => [column.num && "n", column.wide && "wide"].filter(Boolean).join(" ") || null;
  const cell = (column, row, i) => {
    const value = column.show ? column.show(row) : fmt(column.get(row));
    return column.rowhead ? h("th", { scope: "row", class: kind(column) }, value) : h("td", { class: kind(column) }, value);
  };
  const field = (value) => (value && typeof value === "object" ? tokenText(value, TITLE_LIMIT) : typeof value === "string" ? clean(value) : value);
  const button = h("button", { type: "button", "aria-label": `Save the table “${caption}” as CSV`, click: () =>
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

const tokenColumn = { head: "token", get: (row) => tokenText(row.token, TITLE_LIMIT), show: (row) => tokenNode(row.token), rowhead: true };

// ---------------------------------------------------------------- scales and colours

const VIRIDIS = ["#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725"];
const DIVERGING = {
  light: ["#0b4a7a", "#2f7db8", "#83b7dc", "#cfe0ea", "#efece6", "#f3d7b0", "#e5a556", "#bf6a14", "#7f3b08"],
  dark: ["#b5dcf7", "#69afe0", "#3479ab", "#24486a", "#262b30", "#6a4423", "#b06c1c", "#e5a04a", "#ffdca6"],
};
// Okabe and Ito's colours, each with a letter, so that hue is never the only sign.
const KINDS = {
  sink: ["#d55e00", "S"], local: ["#0072b2", "L"], previous: ["#56b4e9", "P"], uniform: ["#b8b8b8", "U"],
  specific: ["#009e73", "K"], none: ["none", ""], unmeasured: ["hatch", ""],
};
const SPARE = ["#cc79a7", "#f0e442", "#8c6d31", "#7570b3"];
const WARNING = "Brightness is not importance: a key holding 90% whose value is near zero writes almost nothing. See “sink write ratio”.";
const massLike = (metric) => metric.scale !== "category" && /mass|excess|margin|other.key|sink.rate/i.test(`${metric.id} ${metric.label}`);
const aboutWrites = (metric) => /write/i.test(`${metric.id} ${metric.label}`);

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function mix(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [channels(stops[i]), channels(stops[i + 1])];
  return "#" + a.map((v, k) => Math.round(v + (b[k] - v) * (at - i)).toString(16).padStart(2, "0")).join("");
}

function ink(hex) {
  const [r, g, b] = channels(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#14171a" : "#ffffff";
}

/** Where a value lies on its metric's colour scale, 0 to 1. */
function place(metric, value) {
  const { lo, hi, scale } = metric;
  if (scale === "log") return value <= 0 ? 0 : Math.log(value / lo) / Math.log(hi / lo);
  if (scale === "diverging") return 0.5 + (0.5 * value) / (Math.max(Math.abs(lo), Math.abs(hi)) || 1);
  return (value - lo) / (hi - lo || 1);
}

function kindOf(metric, value) {
  if (KINDS[value]) return KINDS[value];
  const others = [...new Set(metric.values.flat().filter((v) => v !== null && !KINDS[v]))].sort();
  return [SPARE[others.indexOf(value) % SPARE.length] ?? SPARE[0], (clean(value)[0] ?? "?").toUpperCase()];
}

function colour(metric, value, dark) {
  if (value === null || value === undefined) return null;
  if (metric.scale === "category") return kindOf(metric, value)[0];
  if (!number(value)) return null;
  return mix(metric.scale === "diverging" ? DIVERGING[dark ? "dark" : "light"] : VIRIDIS, place(metric, value));
}

function ticks(lo, hi, count) {
  const rough = (hi - lo) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= rough * 0.999) ?? power;
  const out = [];
  for (let v = Math.ceil(lo / step - 1e-9) * step; v <= hi + step * 1e-6; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : +v.toPrecision(12));
  return out;
}

function logTicks(lo, hi, count) {
  const sets = [[1, 2, 5], [1, 3], [1]];
  for (const set of sets) {
    const out = [];
    for (let e = Math.floor(Math.log10(lo)); e <= Math.ceil(Math.log10(hi)); e++)
      for (const m of set) { const v = +`${m}e${e}`; if (v >= lo * 0.999 && v <= hi * 1.001) out.push(v); }
    if (out.length <= count + 1) return out.length >= 2 ? out : ticks(lo, hi, count).filter((v) => v > 0);
  }
  const decades = Math.log10(hi / lo), step = Math.ceil(decades / count), out = [];
  for (let e = Math.ceil(Math.log10(lo) - 1e-9); e <= Math.log10(hi) + 1e-9; e += step) out.push(+`1e${e}`);
  return out;
}

let hatches = 0;

function hatch(size = 6) {
  const id = `hatch${++hatches}`;
  return [id, s("defs", {}, s("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: size, height: size, class: "hatchback" }), s("line", { x1: 0, y1: 0, x2: 0, y2: size, class: "hatchline" })))];
}

// ---------------------------------------------------------------- charts

/** Lines over one list of x. spec: {label, x, xlabel, xlog, xnames, xfmt, ylabel, ylog, ylo, yhi, yfmt, series: [{name, cls, y, lo, hi}]} */
function lineChart(width, spec) {
  const W = Math.max(width, 200), height = spec.height ?? 218, keep = (v, log) => number(v) && (!log || v > 0);
  const xs = spec.x, use = xs.map((v, i) => keep(v, spec.xlog) && spec.series.some((line) => keep(line.y[i], spec.ylog)));
  const ys = spec.series.flatMap((line) => [line.y, line.lo ?? [], line.hi ?? []].flat()).filter((v) => keep(v, spec.ylog));
  const xv = xs.filter((_, i) => use[i]);
  if (!xv.length) return h("p", { class: "empty" }, spec.empty ?? "Not measurable here.");
  const yfmt = spec.yfmt ?? fmt, xfmt = spec.xfmt ?? tick, mark = spec.ytick ?? tick;
  let [x0, x1] = [Math.min(...xv), Math.max(...xv)], [y0, y1] = [spec.ylo ?? Math.min(...ys), spec.yhi ?? Math.max(...ys)];
  if (x0 === x1) [x0, x1] = spec.xlog ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
  if (spec.ylog) { y0 /= 1.25; y1 *= 1.25; }
  else {
    const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
    if (spec.ylo === undefined || y0 === y1) y0 -= pad;
    if (spec.yhi === undefined || y0 === y1) y1 += pad;
  }
  const yticks = spec.ylog ? logTicks(y0, y1, 5) : ticks(y0, y1, 4);
  const left = Math.max(30, 10 + 6.6 * Math.max(...yticks.map((v) => mark(v).length))), right = 14, foot = spec.xnames ? 46 : 38;
  const legend = [];
  let lx = 0, ly = 26;
  for (const line of spec.series) {
    const need = 26 + line.name.length * 6.4 + 14;
    if (lx && lx + need > W) { lx = 0; ly += 16; }
    legend.push([line, lx, ly]);
    lx += need;
  }
  const top = ly + 16, H = height + ly - 26;
  const X = (v) => left + (W - left - right) * (spec.xlog ? Math.log(v / x0) / Math.log(x1 / x0) : (v - x0) / (x1 - x0));
  const Y = (v) => top + (H - top - foot) * (1 - (spec.ylog ? Math.log(v / y0) / Math.log(y1 / y0) : (v - y0) / (y1 - y0)));
  const room = Math.max(2, Math.floor((W - left) / 64));
  let xticks = spec.xnames ? xs.slice() : spec.xlog ? logTicks(x0, x1, room) : ticks(x0, x1, Math.min(room, 8));
  if (spec.xint) xticks = xticks.filter(Number.isInteger);
  if (spec.xnames) { const every = Math.ceil(xs.length / Math.max(1, Math.floor((W - left) / 84))); xticks = xticks.filter((_, i) => i % every === 0); }
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: 0, "aria-label": spec.label },
    s("text", { x: 0, y: 11 }, spec.ylabel),
    legend.map(([line, x, y]) => [
      s("line", { x1: x, x2: x + 20, y1: y - 4, y2: y - 4, class: `series ${line.cls}` }),
      s("text", { x: x + 26, y, class: "strong" }, line.name)]),
    yticks.map((v) => [s("line", { x1: left, x2: W - right, y1: Y(v), y2: Y(v), class: "gridline" }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, mark(v))]),
    s("line", { x1: left, x2: W - right, y1: H - foot, y2: H - foot, class: "axis" }),
    xticks.map((v) => [s("line", { x1: X(v), x2: X(v), y1: H - foot, y2: H - foot + 4, class: "axis" }),
      s("text", { x: X(v), y: H - foot + 17, "text-anchor": spec.xnames && v === xs[0] ? "start" : spec.xnames && v === xs.at(-1) ? "end" : "middle" },
        spec.xnames ? (spec.xnames[v].length > 13 ? spec.xnames[v].slice(0, 12) + "…" : spec.xnames[v]) : xfmt(v))]),
    s("text", { x: (left + W - right) / 2, y: H - 4, "text-anchor": "middle" }, spec.xlabel));
  for (const line of spec.series) {
    const ok = (i) => keep(xs[i], spec.xlog) && keep(line.y[i], spec.ylog);
    const dots = xs.filter((_, i) => ok(i)).length;
    if (line.lo && line.hi) {
      const at = xs.map((_, i) => i).filter((i) => ok(i) && keep(line.lo[i], spec.ylog) && keep(line.hi[i], spec.ylog));
      if (at.length) svg.append(s("path", { class: `band ${line.cls.replace("c-", "f-")}`, d: `M${[...at.map((i) => `${X(xs[i])} ${Y(line.hi[i])}`), ...at.reverse().map((i) => `${X(xs[i])} ${Y(line.lo[i])}`)].join("L")}Z` }));
    }
    let path = "", pen = false;
    xs.forEach((v, i) => {
      if (!ok(i)) { pen = false; return; }
      path += `${pen ? "L" : "M"}${X(v).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`;
      pen = true;
    });
    svg.append(s("path", { d: path, class: `series ${line.cls}` }));
    // A value without neighbours has no line to lie on.
    const dotted = (i) => ok(i) && ((dots <= 24 && !line.cls.includes("null")) || (!ok(i - 1) && !ok(i + 1)));
    xs.forEach((v, i) => dotted(i) && svg.append(s("circle", { cx: X(v), cy: Y(line.y[i]), r: dots > 12 ? 2.2 : 3, class: line.cls.replace("c-", "f-") })));
  }
  const cross = s("g", { class: "ui" });
  svg.append(cross);
  const order = xs.map((_, i) => i).filter((i) => use[i]);
  let at = order.length - 1;
  const show = (k) => {
    at = Math.min(Math.max(k, 0), order.length - 1);
    const i = order[at], x = X(xs[i]);
    cross.replaceChildren(s("line", { x1: x, x2: x, y1: top, y2: H - foot, class: "cross" }),
      ...spec.series.filter((line) => keep(line.y[i], spec.ylog)).map((line) => s("circle", { cx: x, cy: Y(line.y[i]), r: 4, class: line.cls.replace("c-", "f-") })));
    const lines = [`${spec.xname ?? spec.xlabel} ${spec.xnames ? spec.xnames[i] : xfmt(xs[i])}`,
      ...spec.series.map((line) => `${line.name}: ${yfmt(line.y[i])}${line.lo && number(line.lo[i]) && number(line.hi[i]) ? ` (${yfmt(line.lo[i])} to ${yfmt(line.hi[i])})` : ""}`)];
    const box = svg.getBoundingClientRect();
    tip({ left: box.left + x, width: 0, top: box.top + top, bottom: box.top + H }, lines, true);
    return lines.join(", ");
  };
  const hide = () => { cross.replaceChildren(); tip(null); };
  svg.addEventListener("pointermove", (event) => {
    const x = event.clientX - svg.getBoundingClientRect().left;
    show(order.reduce((best, i, k) => (Math.abs(X(xs[i]) - x) < Math.abs(X(xs[order[best]]) - x) ? k : best), 0));
  });
  svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined) { if (event.key === "Escape") hide(); return; }
    event.preventDefault();
    say(show(at + step));
  });
  return svg;
}

const lineData = (spec) => () => [[spec.xname ?? spec.xlabel, ...spec.series.flatMap((line) => [line.name, ...(line.lo ? [`${line.name} lo`, `${line.name} hi`] : [])])],
  ...spec.x.map((v, i) => [spec.xnames ? spec.xnames[i] : v, ...spec.series.flatMap((line) => [line.y[i], ...(line.lo ? [line.lo[i], line.hi[i]] : [])])])];

/** A figure of a lineChart. */
const lines = (title, name, about, spec, note) => figure({ title, name, about, note, draw: (width) => lineChart(width, { label: `${title}. ${spec.label ?? ""} Arrow keys read the values.`, ...spec, label: `${title}. Arrow keys read the values.` }), data: lineData(spec) });

function histogram(width, counts) {
  const W = Math.max(width, 200), H = 150, left = 44, foot = 38, top = 20, n = counts.length, total = counts.reduce((a, b) => a + b, 0);
  const most = Math.max(...counts, 1), step = (W - left - 10) / n, Y = (v) => top + (H - top - foot) * (1 - v / most);
  const marks = ticks(0, most, 3).filter(Number.isInteger);
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Histogram of the sink's weight over ${total} queries` },
    s("text", { x: 0, y: 11 }, "queries"),
    marks.map((v) => [s("line", { x1: left, x2: W - 10, y1: Y(v), y2: Y(v), class: "gridline" }), s("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, fmt(v))]),
    counts.map((v, i) => {
      const lines = [`pₛ from ${tick(i / n)} to ${tick((i + 1) / n)}`, `${plural(v, "query").replace("querys", "queries")}, ${percent(v / (total || 1))}`];
      const show = (event) => tip(event.currentTarget.getBoundingClientRect(), lines);
      return s("g", { pointerenter: show, pointerleave: away },
        s("rect", { x: left + i * step, y: top, width: step, height: H - top - foot, fill: "none", "pointer-events": "all" }),
        s("rect", { x: left + i * step + 0.75, y: v ? Math.min(Y(v), H - foot - 1) : H - foot, width: Math.max(step - 1.5, 1), height: v ? Math.max(H - foot - Y(v), 1) : 0, class: "f-sink" }));
    }),
    s("line", { x1: left, x2: W - 10, y1: H - foot, y2: H - foot, class: "axis" }),
    [0, 0.25, 0.5, 0.75, 1].map((v) => s("text", { x: left + v * n * step, y: H - foot + 16, "text-anchor": "middle" }, String(v))),
    s("text", { x: (left + W - 10) / 2, y: H - 4, "text-anchor": "middle" }, "weight on the sink, pₛ"));
  return svg;
}

/** Two stacked bars: what the weights spend, and what that weight carries. */
function splitBars(width, split) {
  const W = Math.max(width, 200), [id, defs] = hatch(), { p, g } = split;
  const outlet = number(p) && number(g) ? Math.max(0, 1 - p - g) : 0;
  const bars = [["weight spent", [["sink pₛ", p, "f-sink"], ...(outlet > 5e-4 ? [["learned outlet", outlet, "f-other"]] : []), ["content g", g, "f-content"]]],
    ["weight × value norm ‖v‖", [["sink", number(split.v_sink) ? p * split.v_sink : null, "f-sink"], ["content", number(split.v_content) ? g * split.v_content : null, "f-content"]]]];
  const spoken = [];
  const drawn = bars.map(([label, parts], i) => {
    const y = i * 60, total = parts.reduce((sum, part) => sum + part[1], 0), known = parts.every((part) => number(part[1])) && total > 0;
    spoken.push(`${label}: ${known ? parts.map(([name, v]) => `${name} ${fmt(v)}`).join(", ") : "not measurable"}`);
    if (!known) return [s("text", { x: 0, y: y + 11 }, label), s("rect", { x: 0, y: y + 17, width: W, height: 16, fill: `url(#${id})` }), s("text", { x: 0, y: y + 48 }, "not measurable")];
    let x = 0;
    return [s("text", { x: 0, y: y + 11 }, label), parts.map(([name, v, cls], n) => {
      const from = x, wide = (W * v) / total, last = n === parts.length - 1;
      x += wide;
      return [s("rect", { x: from + (n ? 0.75 : 0), y: y + 17, width: Math.max(wide - (last ? 0.75 : 1.5), 0), height: 16, class: cls }),
        s("text", { x: last ? W : n ? W / 2 : 0, y: y + 48, "text-anchor": last ? "end" : n ? "middle" : "start", class: "strong" }, parts.length > 2 ? `${name} ${fmt(v)}` : `${name} ${fmt(v)} (${percent(v / total)})`)];
    })];
  });
  return s("svg", { width: W, height: 118, viewBox: `0 0 ${W} 118`, role: "img", "aria-label": spoken.join("; ") }, defs, drawn);
}

// ---------------------------------------------------------------- header

function drawHeader(el, payload) {
  const { model: m, settings: t } = payload;
  const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined && pair[1] !== "").map(([key, value, mono]) => [h("dt", {}, key), h("dd", { class: mono ? "mono" : null }, bdi(value))]));
  const size = number(m.parameters) ? (m.parameters >= 1e9 ? fmt(m.parameters / 1e9, "B") : m.parameters >= 1e6 ? fmt(m.parameters / 1e6, "M") : fmt(m.parameters)) : DASH;
  el.replaceChildren(
    h("div", { class: "lede" },
      h("h1", {}, bdi(payload.title)),
      h("p", {}, "Measured ", bdi(payload.created)),
      h("ul", { class: "verdict", role: "list" }, payload.verdict.map((line) => h("li", {}, bdi(line)))),
      payload.notes.length > 0 && h("ul", { class: "notes", role: "list", "aria-label": "Notes" }, payload.notes.map((line) => h("li", {}, bdi(line))))),
    h("div", {},
      facts([["model", m.name], ["class", m.class, true], ["parameters", size], ["layers × heads", `${m.layers} × ${m.heads}${m.kv_heads && m.kv_heads !== m.heads ? `, ${m.kv_heads} key–value` : ""}`], ["head width", m.head_dim], ["run as", `${m.dtype} on ${m.device}`], ["attention", m.attention, true], ["fingerprint", m.fingerprint, true]]),
      facts([["text", t.text], ["length", `${plural(t.tokens, "token")} × ${plural(t.samples, "sample")}`], ["begin token", t.bos], ["sink threshold", tick(t.threshold)], ["detail", t.detail], ["local window", plural(t.local_window, "key")]])));
}

function drawContents(el, sections) {
  el.replaceChildren(...sections.map(([id, label]) => h("button", { type: "button", "data-go": id }, label)));
}

/** Radio buttons drawn as a row of choices. */
function segments(box, name, choices, chosen, pick) {
  const legend = box.querySelector("legend");
  box.replaceChildren(legend, ...choices.map(([value, label]) => h("label", {},
    fill(h("input", { type: "radio", name, value, change: () => pick(value) }), { checked: value === chosen }, []), h("span", {}, label))));
}

function drawTheme(el, state) {
  segments(el, "theme", [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]], state.theme, (theme) => want(el, { theme }));
}

// ---------------------------------------------------------------- the map

function drawMetric(el, payload, state) {
  const metric = metricOf(payload, state);
  if (el.dataset.made !== "yes") {
    el.replaceChildren(h("fieldset", { class: "seg" }, h("legend", { class: "sr" }, "Quantity on the map")), h("p", { class: "help" }));
    segments(el.firstChild, "metric", payload.metrics.map((m) => [m.id, clean(m.label)]), metric.id, (id) => want(el, { metric: id }));
    el.dataset.made = "yes";
  }
  el.querySelectorAll("input").forEach((input) => { input.checked = input.value === metric.id; });
  el.lastChild.textContent = clean(metric.help);
}

const metricOf = (payload, state) => payload.metrics.find((m) => m.id === state.metric) ?? payload.metrics[0];
const span = (layer) => (layer.kind === "window" ? `window of ${fmt(layer.window)}` : layer.kind === "unmeasured" ? "not measured" : "full attention");

/** What is known of one cell, as lines of text. */
function cellLines(payload, metric, l, k) {
  const layer = payload.layers[l], found = metric.values[l][k], value = found === "unmeasured" ? null : found, kind = payload.heads[`${l}.${k}`]?.kind;
  const why = value !== null ? null : layer.kind === "unmeasured" ? layer.reason : aboutWrites(metric) ? layer.write_reason ?? layer.reason : layer.reason;
  return [`Layer ${l} · head ${k}`, `${clean(metric.label)}: ${value === null ? "not measurable" : fmt(value, metric.unit)}`,
    why ? `Reason: ${clean(why)}` : null, kind && metric.scale !== "category" && layer.kind !== "unmeasured" ? `${clean(kind)} head, ${span(layer)}` : layer.kind === "window" ? span(layer) : null].filter(Boolean);
}

function drawMap(el, payload, state) {
  const metric = metricOf(payload, state), dark = isDark(state), layers = payload.model.layers, heads = payload.model.heads;
  const key = `${metric.id} ${dark} ${el.clientWidth}`;
  if (el.dataset.key === key) { markMap(el, state); return; }
  el.dataset.key = key;
  const coarse = matchMedia("(pointer: coarse)").matches, least = coarse ? 24 : 15;
  const groups = payload.model.kv_heads > 0 && payload.model.kv_heads < heads && heads % payload.model.kv_heads === 0 ? payload.model.kv_heads : 1;
  const marked = payload.layers.some((layer) => layer.kind === "window" || layer.learned_sink), left = marked ? 50 : 38, top = 30, gap = groups > 1 ? 4 : 0;
  const cw = Math.min(Math.max((el.clientWidth - left - 4 - gap * (groups - 1)) / heads, least), 44);
  const ch = Math.max(Math.min(Math.round(cw * 0.66), layers > 36 ? 18 : 23), least), air = cw > 20 ? 1.5 : 1;
  const X = (k) => left + k * cw + gap * Math.floor((k * groups) / heads), Y = (l) => top + l * ch;
  const W = Math.ceil(X(heads - 1) + cw + 4), H = Y(layers) + 4;
  const [id, defs] = hatch();
  const everyX = cw < 18 ? (heads > 40 ? 8 : 4) : 1, everyY = ch < 13 ? 5 : 1;
  const rows = payload.layers.map((layer, l) => s("g", { role: "row" },
    metric.values[l].map((value, k) => {
      const shade = colour(metric, value, dark), rect = { x: X(k) + air / 2, y: Y(l) + air / 2, width: cw - air, height: ch - air };
      const blank = shade === null || shade === "hatch", hollow = shade === "none";
      const cell = s("rect", { ...rect, class: `cell${hollow ? " cellframe" : ""}`, fill: blank ? `url(#${id})` : hollow ? "transparent" : shade, role: "gridcell", tabindex: -1,
        "data-l": l, "data-k": k, "pointer-events": "all", "aria-label": cellLines(payload, metric, l, k).join(", ") });
      const letter = metric.scale === "category" && !blank && cw >= 14 ? kindOf(metric, value)[1] : "";
      return letter ? [cell, s("text", { x: X(k) + cw / 2, y: Y(l) + ch / 2 + 4, "text-anchor": "middle", "pointer-events": "none", "aria-hidden": true, style: `fill:${ink(shade)};font-size:${Math.min(11, ch - 4)}px` }, letter)] : cell;
    })));
  const labels = s("g", { "aria-hidden": true },
    s("rect", { x: 0, y: 0, width: left - 2, height: H, class: "backdrop" }),
    s("text", { x: 0, y: 11 }, "layer ↓"),
    payload.layers.map((layer, l) => l % everyY === 0 && [s("text", { x: left - 8, y: Y(l) + ch / 2 + 4, "text-anchor": "end", style: "font-size:11px" }, String(l)),
      marked && s("text", { x: 0, y: Y(l) + ch / 2 + 4, style: "font-size:10px" }, `${layer.kind === "window" ? "w" : ""}${layer.learned_sink ? "z" : ""}`)]));
  const svg = s("svg", { width: W, height: H, viewBox: `0 0 ${W} ${H}` },
    defs, s("text", { x: left + 12, y: 11, "aria-hidden": true }, "head →"),
    payload.metrics[0].values[0].map((_, k) => k % everyX === 0 && s("text", { x: X(k) + cw / 2, y: 25, "text-anchor": "middle", "aria-hidden": true, style: "font-size:11px" }, String(k))),
    s("g", { role: "grid", "aria-label": `${clean(metric.label)} by layer and head`, "aria-rowcount": layers, "aria-colcount": heads }, rows),
    s("rect", { class: "ring halo ui" }), s("rect", { class: "ring chosen ui" }), s("rect", { class: "ring focus ui", visibility: "hidden" }), labels);
  const had = el.contains(document.activeElement) && document.activeElement.classList.contains("cell");
  const scroll = h("div", { class: "mapscroll", scroll: () => labels.setAttribute("transform", `translate(${scroll.scrollLeft} 0)`) }, svg);
  const caption = `Map of ${clean(metric.label)}`, legend = legendOf(payload, metric, dark, groups, Math.min(el.clientWidth, 420));
  const tools = h("span", { class: "tools" },
    h("button", { type: "button", "aria-label": `Save “${caption}” as SVG`, click: () => save(`map-${fileName(metric.id)}.svg`, "image/svg+xml", standalone(svg, `${clean(metric.label)} · ${clean(payload.model.name)}`, legend.querySelector(":scope > svg"), legend.querySelector(".keys")?.dataset.text)) }, "SVG"),
    h("button", { type: "button", "aria-label": `Save the numbers of “${caption}” as CSV`, click: () =>
      save(`map-${fileName(metric.id)}.csv`, "text/csv", csv([["layer", ...metric.values[0].map((_, k) => `head ${k}`)], ...metric.values.map((row, l) => [l, ...row])])) }, "CSV"));
  el.replaceChildren(h("p", { class: "readout", id: "readout" }),
    h("figure", {}, h("figcaption", {}, h("span", { class: "t" }, clean(metric.label)), tools), scroll),
    legend, ...(massLike(metric) ? [h("p", { class: "warn" }, WARNING)] : []), strongest(payload, metric, state));

  const at = (node) => (node?.classList?.contains("cell") ? [+node.dataset.l, +node.dataset.k] : null);
  const describe = (node, loud) => {
    const lines = cellLines(payload, metric, ...at(node));
    tip(node.getBoundingClientRect(), lines);
    readout(el, lines);
    if (loud) say(lines.join(", "));
  };
  const open = (node, focus) => want(el, { layer: at(node)[0], head: at(node)[1], open: focus });
  svg.addEventListener("pointerover", (event) => { if (at(event.target)) describe(event.target, false); });
  svg.addEventListener("pointerleave", (event) => { away(event); rest(el, payload, metric); });
  svg.addEventListener("click", (event) => { if (at(event.target)) open(event.target, "look"); });
  svg.addEventListener("focusin", (event) => {
    if (!at(event.target)) return;
    svg.querySelector('.cell[tabindex="0"]')?.setAttribute("tabindex", -1);
    event.target.setAttribute("tabindex", 0);
    // The layer labels stay in place and would cover a cell that scrolled in from the left.
    scroll.scrollLeft = Math.min(scroll.scrollLeft, +event.target.getAttribute("x") - left);
    frame(svg.querySelector(".ring.focus"), event.target, 0);
    svg.querySelector(".ring.focus").setAttribute("visibility", event.target.matches(":focus-visible") ? "visible" : "hidden");
    if (event.target.matches(":focus-visible")) describe(event.target, true);
  });
  svg.addEventListener("focusout", () => { svg.querySelector(".ring.focus").setAttribute("visibility", "hidden"); tip(null); rest(el, payload, metric); });
  svg.addEventListener("keydown", (event) => {
    const here = at(event.target);
    if (!here) return;
    if (event.key === "Escape") { tip(null); return; }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(event.target, "focus"); return; }
    let [l, k] = here;
    const far = event.ctrlKey || event.metaKey;
    switch (event.key) {
      case "ArrowLeft": k--; break;
      case "ArrowRight": k++; break;
      case "ArrowUp": l--; break;
      case "ArrowDown": l++; break;
      case "PageUp": l -= 5; break;
      case "PageDown": l += 5; break;
      case "Home": k = 0; if (far) l = 0; break;
      case "End": k = heads - 1; if (far) l = layers - 1; break;
      default: return;
    }
    event.preventDefault();
    cellAt(svg, Math.min(Math.max(l, 0), layers - 1), Math.min(Math.max(k, 0), heads - 1)).focus();
  });
  markMap(el, state);
  rest(el, payload, metric);
  scroll.scrollLeft = Math.max(0, X(state.head) - left - (el.clientWidth - left) / 2);
  if (had) cellAt(svg, state.layer, state.head)?.focus();
}

const cellAt = (el, l, k) => el.querySelector(`.cell[data-l="${l}"][data-k="${k}"]`);

function frame(ring, cell, out) {
  for (const key of ["x", "y"]) ring.setAttribute(key, +cell.getAttribute(key) - out);
  for (const key of ["width", "height"]) ring.setAttribute(key, +cell.getAttribute(key) + 2 * out);
}

function markMap(el, state) {
  const cell = cellAt(el, state.layer, state.head);
  if (!cell) return;
  el.querySelectorAll('.cell[aria-selected="true"]').forEach((old) => old.removeAttribute("aria-selected"));
  el.querySelectorAll('.cell[tabindex="0"]').forEach((old) => old.setAttribute("tabindex", -1));
  cell.setAttribute("aria-selected", "true");
  cell.setAttribute("tabindex", 0);
  frame(el.querySelector(".ring.halo"), cell, 1);
  frame(el.querySelector(".ring.chosen"), cell, 1);
  el.querySelectorAll(".top button").forEach((button) => button.setAttribute("aria-pressed", button.dataset.at === `${state.layer}.${state.head}`));
  el.dataset.at = `${state.layer}.${state.head}`;
}

function readout(el, lines) {
  el.querySelector("#readout").replaceChildren(h("b", {}, lines[0]), ` ${DASH} `, lines.slice(1).join(" · "));
}

const rest = (el, payload, metric) => { if (el.dataset.at) readout(el, cellLines(payload, metric, ...el.dataset.at.split(".").map(Number))); };

function legendOf(payload, metric, dark, groups, width) {
  const small = (shade, letter) => {
    const [id, defs] = hatch();
    const blank = shade === "hatch", hollow = shade === "none";
    return s("svg", { width: 20, height: 14, "aria-hidden": true }, defs, s("rect", { x: 0.5, y: 0.5, width: 19, height: 13, fill: blank ? `url(#${id})` : hollow ? "transparent" : shade, class: hollow ? "cellframe" : null }),
      letter && s("text", { x: 10, y: 11, "text-anchor": "middle", style: `fill:${ink(shade)};font-size:11px` }, letter));
  };
  const flat = metric.values.flat(), holes = flat.some((v, i) => v === null || v === "unmeasured" || payload.layers[Math.floor(i / payload.model.heads)].kind === "unmeasured");
  const keys = [];
  let bar = null;
  if (metric.scale === "category") {
    const names = [...Object.keys(KINDS), ...new Set(flat.filter((v) => v !== null && !KINDS[v]))].filter((name) => name !== "unmeasured");
    for (const name of names) {
      const count = flat.filter((v) => v === name).length;
      if (count) keys.push(h("li", {}, small(...kindOf(metric, name)), ` ${clean(name)} (${count})`));
    }
  } else {
    const W = width - 24, steps = 60, { lo, hi, scale } = metric, X = (share) => 12 + share * W;
    const value = (share) => (scale === "log" ? lo * (hi / lo) ** share : lo + (hi - lo) * share);
    const where = (v) => (scale === "log" ? Math.log(v / lo) / Math.log(hi / lo) : (v - lo) / (hi - lo || 1));
    const marks = (scale === "log" ? logTicks(lo, hi, 6) : ticks(lo, hi, 5)).filter((v) => where(v) > -0.001 && where(v) < 1.001);
    const numbers = flat.filter(number), cut = [numbers.some((v) => v < lo), numbers.some((v) => v > hi)];
    bar = s("svg", { width, height: 34, viewBox: `0 0 ${width} 34`, role: "img", "aria-label": `Colour scale from ${fmt(lo, metric.unit)} to ${fmt(hi, metric.unit)}${scale === "log" ? ", logarithmic" : ""}` },
      Array.from({ length: steps }, (_, i) => s("rect", { x: X(i / steps), y: 0, width: W / steps + 0.6, height: 12, fill: colour(metric, value((i + 0.5) / steps), dark) })),
      cut[0] && s("path", { d: "M12 0L4 6L12 12Z", fill: colour(metric, lo, dark) }), cut[1] && s("path", { d: `M${12 + W} 0l8 6l-8 6Z`, fill: colour(metric, hi, dark) }),
      marks.map((v) => [s("line", { x1: X(where(v)), x2: X(where(v)), y1: 12, y2: 16, class: "axis" }), s("text", { x: X(where(v)), y: 28, "text-anchor": "middle", style: "font-size:11px" }, tick(v) + (metric.unit === "×" ? "×" : ""))]));
    if (scale === "log" || metric.unit) keys.push(h("li", {}, [scale === "log" ? "logarithmic scale" : scale === "diverging" ? "two-sided scale around 0" : "linear scale", metric.unit && metric.unit !== "×" ? `in ${clean(metric.unit)}` : null].filter(Boolean).join(", ")));
  }
  if (holes) keys.push(h("li", {}, small("hatch"), "not measurable"));
  if (payload.layers.some((layer) => layer.kind === "window")) keys.push(h("li", {}, h("b", {}, "w"), "windowed layer"));
  if (payload.layers.some((layer) => layer.learned_sink)) keys.push(h("li", {}, h("b", {}, "z"), "learned sink logit"));
  if (groups > 1) keys.push(h("li", {}, "gaps part heads that share a key–value head"));
  return h("div", { class: "legend" }, bar, keys.length > 0 && h("ul", { class: "keys", role: "list", "data-text": keys.map((key) => key.textContent).join(" · ") }, keys));
}

function ranked(payload, metric) {
  return metric.values.flatMap((row, l) => row.map((value, k) => [value, l, k])).filter((item) => number(item[0])).sort((a, b) => b[0] - a[0]);
}

function strongest(payload, metric, state) {
  const best = ranked(payload, metric).slice(0, 5);
  if (!best.length) return "";
  return h("p", { class: "top" }, h("span", { class: "muted" }, "Highest:"), best.map(([value, l, k]) =>
    h("button", { type: "button", "data-at": `${l}.${k}`, "aria-pressed": false,
      click: (event) => want(event.currentTarget, { layer: l, head: k, open: "look" }) }, h("span", { class: "sr" }, "Open layer·head "), `${l}·${k}  ${fmt(value, metric.unit)}`)));
}

// ---------------------------------------------------------------- one head

function drawHead(el, payload, state) {
  const { layer: l, head: k } = state, key = `${l}.${k}`;
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const layer = payload.layers[l], record = payload.heads[key], about = `layer ${l}, head ${k} · ${payload.model.name}`, file = `layer-${l}-head-${k}`;
  const picker = (label, count, chosen, change) => h("label", {}, label, h("select", { change: (event) => change(+event.target.value) },
    Array.from({ length: count }, (_, i) => h("option", { value: i, selected: i === chosen }, String(i)))));
  const top = h("div", { class: "panel-head" },
    h("div", {}, h("h2", { id: "panel-h", tabindex: -1 }, `Layer ${l} · head ${k}`, record?.kind && h("span", { class: "chip" }, clean(record.kind))),
      h("p", {}, h("span", { class: "mono" }, bdi(layer.name)), ` · ${span(layer)}${layer.learned_sink ? " · learned sink logit" : ""}`)),
    h("div", { class: "pick" },
      picker("layer", payload.model.layers, l, (value) => want(el, { layer: value, pick: 0 })),
      picker("head", payload.model.heads, k, (value) => want(el, { head: value, pick: 1 })),
      h("button", { type: "button", class: "back", "data-go": "map" }, "Map")));
  const parts = [top];
  if (!record || layer.kind === "unmeasured") {
    parts.push(h("p", { class: "empty" }, layer.kind === "unmeasured" ? ["Not measured. ", layer.reason ? bdi(layer.reason) : "No reason was recorded."] : `Nothing was recorded for this head at detail “${clean(payload.settings.detail)}”.`));
    el.replaceChildren(...parts);
    return;
  }
  const curve = record.curve, plots = h("div", { class: "plots" });
  const axis = { xlabel: "query position t (log)", xname: "query position", xlog: true, xint: true };
  if (curve?.t?.length) {
    plots.append(
      lines("Weight on the first token", `${file}-mass`, about, { ...axis, x: curve.t, ylabel: "share of the query’s weight", ylo: 0, yhi: 1, series: [{ name: "measured", cls: "c-sink", y: curve.p ?? [] }, { name: "null: uniform", cls: "c-null", y: curve.null ?? [] }] }),
      lines("Margin of the first token’s score", `${file}-margin`, about, { ...axis, x: curve.t, ylabel: "zₛ − LSE(content), nats", series: [{ name: "measured", cls: "c-sink", y: curve.margin ?? [] }, { name: "law: ln(t − 1) + logit r", cls: "c-null", y: curve.law ?? [] }] }));
  }
  if (record.hist?.some((v) => v > 0)) plots.append(figure({ title: "Spread over queries", name: `${file}-hist`, about, draw: (width) => histogram(width, record.hist), data: () => [["from", "to", "queries"], ...record.hist.map((v, i) => [i / record.hist.length, (i + 1) / record.hist.length, v])] }));
  if (record.split) {
    const w = record.split;
    plots.append(figure({ title: "Split: weight and what it carries", name: `${file}-split`, about, draw: (width) => splitBars(width, w), data: () => [["quantity", "value"], ...Object.entries(w)],
      note: [`Sink write ratio, after the output map: ${fmt(w.sink_write_ratio)}${w.sink_write_ratio === null && layer.write_reason ? ` (${clean(layer.write_reason)})` : ""}. Predicted: deleting the sink multiplies the content by ${fmt(w.amplification)}.`] }));
  }
  parts.push(h("p", { class: "warn" }, WARNING));
  parts.push(plots.childElementCount ? plots : h("p", { class: "empty" }, `No curves at detail “${clean(payload.settings.detail)}”.`));
  parts.push(table({ caption: "Keys that receive most", name: `${file}-keys`, rows: record.keys ?? [], empty: `Not recorded at detail “${clean(payload.settings.detail)}”.`, columns: [
    { head: "position", get: (r) => r.position, num: true }, tokenColumn, { head: "kind", get: (r) => r.kind },
    { head: "mass", get: (r) => r.mass, num: true }, { head: "null", get: (r) => r.null, num: true },
    { head: "mass / null", get: (r) => (r.null ? r.mass / r.null : null), show: (r) => (r.null && number(r.mass) ? fmt(r.mass / r.null, "×") : DASH), num: true },
    { head: "write ratio", get: (r) => r.write, num: true }] }));
  parts.push(table({ caption: "Values of this head", name: `${file}-values`, rows: record.values ?? [], columns: [
    { head: "quantity", get: (r) => r[0], rowhead: true }, { head: "value", get: (r) => r[1], show: (r) => fmt(r[1], r[2] ?? ""), num: true },
    { head: "note", get: (r) => r[3] ?? "", wide: true }] }));
  el.replaceChildren(...parts);
}

// ---------------------------------------------------------------- the text

function drawStrip(el, payload) {
  const strip = payload.strip;
  if (!strip?.tokens?.length) { el.replaceChildren(h("p", { class: "empty" }, "The text was not recorded.")); return; }
  const ratio = strip.tokens.map((_, i) => (number(strip.mass[i]) && number(strip.null[i]) && strip.null[i] > 0 && strip.mass[i] > 0 ? strip.mass[i] / strip.null[i] : null));
  const sizes = ratio.map((r, i) => (r === null || i === strip.position0 ? null : Math.abs(Math.log2(r)))).filter(number).sort((a, b) => a - b);
  // The scale is set by the other tokens: the first one would flatten them all.
  const limit = Math.max(2, Math.ceil(sizes[Math.floor(0.985 * (sizes.length - 1))] ?? 1));
  const shade = (r) => (r === null ? null : [r >= 1 ? "hot" : "cold", Math.min(Math.abs(Math.log2(r)) / limit, 1).toFixed(2)]);
  const lines = (i) => [`Position ${i}`, h("span", {}, "token ", tokenNode(strip.tokens[i])), `mass ${fmt(strip.mass[i])}, null ${fmt(strip.null[i])}`, ratio[i] === null ? "not measurable: too few queries see it" : `${fmt(ratio[i], "×")} its null`];
  const said = (i) => `position ${i}, token ${tokenText(strip.tokens[i])}, mass ${fmt(strip.mass[i])}, ${ratio[i] === null ? "not measurable" : `${fmt(ratio[i])} times its null`}`;
  const list = h("ul", { class: "strip", role: "list", "aria-label": "Tokens of one sample" }, strip.tokens.map((raw, i) => {
    const look = shade(ratio[i]);
    const item = h("li", { role: "listitem", tabindex: i ? -1 : 0, "data-i": i, class: [look ? look[0] : "none", i === strip.position0 ? "first" : ""].join(" ").trim() }, tokenNode(raw));
    if (look) item.style.setProperty("--w", look[1]);
    return [item, /\n/.test(token(raw).text) ? h("br") : h("wbr")];
  }));
  const over = (event) => { const item = event.target.closest?.("li[data-i]"); if (item) tip(item.getBoundingClientRect(), lines(+item.dataset.i)); };
  list.addEventListener("pointerover", over);
  list.addEventListener("pointerleave", away);
  list.addEventListener("focusout", () => tip(null));
  list.addEventListener("focusin", (event) => { if (event.target.matches("li:focus-visible")) { over(event); say(said(+event.target.dataset.i)); } });
  list.addEventListener("keydown", (event) => {
    const items = list.querySelectorAll("li"), i = +event.target.dataset.i;
    const next = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + 10, ArrowUp: i - 10, Home: 0, End: items.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const to = items[Math.min(Math.max(next, 0), items.length - 1)];
    event.target.setAttribute("tabindex", -1);
    to.setAttribute("tabindex", 0);
    to.focus();
  });
  const marks = Array.from({ length: 2 * Math.min(limit, 4) + 1 }, (_, i, n = Math.min(limit, 4)) => 2 ** (((i - n) / n) * limit));
  const name = (v) => (v >= 1 ? fmt(v, "×") : `1/${fmt(1 / v)}`);
  const ramp = h("ul", { class: "ramp", role: "list", "aria-label": "Shading scale, mass over null" }, marks.map((v, i) => {
    const bar = h("i", { class: v >= 1 ? "hot" : "cold" });
    bar.style.setProperty("--w", Math.min(Math.abs(Math.log2(v)) / limit, 1).toFixed(2));
    return h("li", {}, bar, limit <= 4 || i % 4 === 0 ? name(v) : "\u00a0");
  }));
  const first = ratio[strip.position0];
  el.replaceChildren(
    h("p", { class: "note" }, "Mean over heads of the mass each token receives, over what uniform attention would give it (1×), on a log scale that the other tokens set. ",
      first !== null && first !== undefined ? `The outlined token, position ${strip.position0}, receives ${fmt(first, "×")}${Math.abs(Math.log2(first)) > limit ? " and lies off the scale" : ""}. ` : "", "Dotted: too few queries see the token to say."),
    ramp, h("p", { class: "warn" }, WARNING), list,
    h("div", { class: "tools", style: "margin-top:10px" }, h("button", { type: "button", "aria-label": "Save the tokens and their mass as CSV", click: () =>
      save("text.csv", "text/csv", csv([["position", "token", "mass", "null", "mass over null"], ...strip.tokens.map((raw, i) => [i, tokenText(raw, TITLE_LIMIT), strip.mass[i], strip.null[i], ratio[i]])])) }, "CSV")));
}

// ---------------------------------------------------------------- sinks, residual, layers, series

function drawSinks(el, payload) {
  const rates = payload.rates ?? [], plots = h("div", { class: "plots" }), left = h("div", {});
  left.append(table({ caption: "Sinks found", name: "sinks", rows: payload.sinks ?? [], empty: "No position passed the threshold.", columns: [
    { head: "position", get: (r) => r.position, num: true }, tokenColumn, { head: "kind", get: (r) => r.kind }, { head: "mass", get: (r) => r.mass, num: true },
    { head: "heads", get: (r) => r.heads, num: true }, { head: "samples", get: (r) => r.samples, num: true }, { head: "write ratio", get: (r) => r.write, num: true }] }));
  plots.append(left);
  if (rates.length) {
    const spec = { x: rates.map((r) => r.eps), xlabel: "threshold ε", ylabel: "share of heads", ylo: 0, yhi: 1, yfmt: percent, ytick: (v) => `${Math.round(100 * v)}%`,
      series: [{ name: "mean over samples, then ε", cls: "c-sink", y: rates.map((r) => r.mean) }, { name: "ε per sample, then mean", cls: "c-content", y: rates.map((r) => r.sample) }] };
    const all = table({ caption: "Sink rate", name: "sink-rate-table", rows: rates, columns: [{ head: "ε", get: (r) => r.eps, show: (r) => tick(r.eps), rowhead: true, num: true }, { head: "mean, then ε", get: (r) => r.mean, show: (r) => percent(r.mean), num: true }, { head: "ε, then mean", get: (r) => r.sample, show: (r) => percent(r.sample), num: true }] });
    left.append(rates.length > 8 ? h("details", { class: "more" }, h("summary", {}, `Sink rate at ${fmt(rates.length)} thresholds`), all) : all);
    plots.append(lines("Sink rate by threshold", "sink-rate", payload.model.name, spec, `The report’s own threshold is ${tick(payload.settings.threshold)}. Both readings of the published definition are shown.`));
  }
  el.replaceChildren(plots);
}

function drawResidual(el, payload) {
  const r = payload.residual, name = payload.model.name;
  if (!r?.layer?.length) { el.replaceChildren(h("p", { class: "empty" }, "The residual stream was not measured.")); return; }
  const axis = { x: r.layer, xlabel: "before layer (0: embedding)", xname: "before layer", xint: true, ylog: true };
  el.replaceChildren(
    h("div", { class: "plots three" },
      lines("Norm", "residual-norm", name, { ...axis, ylabel: "‖h‖ (log)", series: [{ name: "first token", cls: "c-sink", y: r.norm_first }, { name: "the rest", cls: "c-content", y: r.norm_rest }] }),
      lines("Largest and median magnitude", "residual-magnitude", name, { ...axis, ylabel: "|h| of one coordinate (log)", series: [{ name: "largest", cls: "c-sink", y: r.max }, { name: "median", cls: "c-null", y: r.median }] }),
      lines("Kurtosis of the coordinates", "residual-kurtosis", name, { ...axis, ylabel: "kurtosis (log)", series: [{ name: "kurtosis", cls: "c-other", y: r.kurtosis }] })),
    table({ caption: "Massive activations", name: "massive-activations", rows: r.massive ?? [], empty: "None stand far enough above their layer’s median.", columns: [
      { head: "layer", get: (x) => x.layer, num: true }, tokenColumn, { head: "position", get: (x) => x.position, num: true }, { head: "dimension", get: (x) => String(x.dimension), num: true }, { head: "value", get: (x) => x.value, num: true },
      { head: "over median", get: (x) => x.ratio, show: (x) => fmt(x.ratio, "×"), num: true }] }));
}

/** Neighbouring layers of which the same is true, as one row. */
function layerRuns(layers) {
  const same = (a, b) => ["kind", "window", "reason", "write_reason", "learned_sink"].every((key) => a[key] === b[key]);
  const runs = [];
  for (const layer of layers) {
    const last = runs.at(-1);
    if (last && same(last.layer, layer)) last.to = layer.index;
    else runs.push({ layer, from: layer.index, to: layer.index });
  }
  return runs;
}

function drawLayers(el, payload) {
  const lost = payload.layers.filter((layer) => layer.kind === "unmeasured").length;
  const mute = payload.layers.filter((layer) => layer.kind !== "unmeasured" && layer.write_reason).length;
  el.replaceChildren(
    h("p", { class: "note" }, `${lost ? `${plural(lost, "layer")} of ${payload.layers.length} could not be measured.` : `All ${payload.layers.length} layers were measured.`} ${mute ? `In ${plural(mute, "layer")} what the sink writes could not be.` : ""}`),
    table({ caption: "Layers", name: "layers", rows: layerRuns(payload.layers), columns: [
      { head: "layers", get: (r) => (r.from === r.to ? String(r.from) : `${r.from} to ${r.to}`), rowhead: true },
      { head: "first of them", get: (r) => r.layer.name, show: (r) => h("span", { class: "mono" }, bdi(r.layer.name)) },
      { head: "attention", get: (r) => span(r.layer) }, { head: "learned sink", get: (r) => r.layer.learned_sink },
      { head: "why not measured, or no write ratio", get: (r) => r.layer.reason ?? r.layer.write_reason ?? "", show: (r) => clean(r.layer.reason ?? r.layer.write_reason ?? DASH), wide: true }] }));
}

function drawSeries(el, payload) {
  const q = payload.series;
  if (!q?.names?.length) return;
  const names = q.names.map((name) => clean(name)), about = payload.model.name;
  const spec = { x: names.map((_, i) => i), xnames: names, xlabel: "", xname: "", ylabel: "share", ylo: 0, yhi: 1, height: 250,
    series: [{ name: "first-token mass", cls: "c-sink", y: q.first_token_mass, lo: q.lo, hi: q.hi }, { name: "null", cls: "c-null", y: q.null }, { name: "sink rate", cls: "c-content", y: q.sink_rate }] };
  el.replaceChildren(lines("First-token mass and sink rate", "series", about, spec, "The band is the interval of the first-token mass."),
    table({ caption: "The series", name: "series-table", rows: names.map((name, i) => i), columns: [
      { head: "name", get: (i) => names[i], show: (i) => bdi(names[i]), rowhead: true }, { head: "first-token mass", get: (i) => q.first_token_mass[i], num: true },
      { head: "low", get: (i) => q.lo[i], num: true }, { head: "high", get: (i) => q.hi[i], num: true }, { head: "null", get: (i) => q.null[i], num: true }, { head: "sink rate", get: (i) => q.sink_rate[i], show: (i) => percent(q.sink_rate[i]), num: true }] }));
}

// ---------------------------------------------------------------- state

const isDark = (state) => state.theme === "dark" || (state.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);

/** The state that the address asks for, with what it leaves out or gets wrong filled in. */
function readState(payload, hash) {
  const asked = new URLSearchParams(hash.replace(/^#/, "")), { layers, heads } = payload.model;
  const [, l, k] = ranked(payload, payload.metrics[0])[0] ?? [null, 0, 0];
  const whole = (text, below, other) => (/^\d{1,6}$/.test(text ?? "") && +text < below ? +text : other);
  const chosen = asked.has("layer") || asked.has("head");
  return {
    metric: payload.metrics.some((m) => m.id === asked.get("metric")) ? asked.get("metric") : payload.metrics[0].id,
    layer: whole(asked.get("layer"), layers, chosen ? 0 : l), head: whole(asked.get("head"), heads, chosen ? 0 : k),
    theme: ["light", "dark"].includes(asked.get("theme")) ? asked.get("theme") : "auto",
  };
}

function writeState(state) {
  const parts = { metric: state.metric, layer: state.layer, head: state.head };
  if (state.theme !== "auto") parts.theme = state.theme;
  // Some embeddings forbid touching the address; the page works without.
  try { history.replaceState(null, "", `#${new URLSearchParams(parts)}`); } catch { /* not shareable here */ }
}

function go(id) {
  const section = document.getElementById(id), title = section?.querySelector("h2");
  if (id === "reading") document.getElementById("glossary").open = true;
  section?.scrollIntoView({ block: "start" });
  title?.focus({ preventScroll: true });
}

function start(payload) {
  const at = (id) => document.getElementById(id);
  let state = readState(payload, location.hash);
  const draw = () => {
    if (state.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = state.theme;
    drawMetric(at("metric"), payload, state);
    drawMap(at("grid"), payload, state);
    drawHead(at("panel"), payload, state);
    at("map").querySelector(".map-col").classList.toggle("fits", at("map").querySelector(".map-col").offsetHeight < innerHeight - 24);
  };
  at("map").classList.toggle("side", payload.model.heads <= 16);
  drawHeader(at("head"), payload);
  drawTheme(at("theme"), state);
  drawStrip(at("strip"), payload);
  drawSinks(at("sinkbox"), payload);
  drawResidual(at("residual"), payload);
  drawLayers(at("layerbox"), payload);
  at("series").hidden = !payload.series?.names?.length;
  drawSeries(at("seriesbox"), payload);
  drawContents(at("contents"), [["map", "Map"], ["panel", "Head"], ["text", "Text"], ["sinks", "Sinks"], ["stream", "Residual stream"], ["series", "Series"], ["layers", "Layers"], ["reading", "How to read this"]].filter(([id]) => !at(id).hidden));
  at("colophon").textContent = `Written by sinkgate. This file is complete: it loads nothing and sends nothing.`;
  draw();
  document.addEventListener("want", (event) => {
    const { open, pick, ...change } = event.detail;
    state = { ...state, ...change };
    writeState(state);
    draw();
    if (pick !== undefined) at("panel").querySelectorAll("select")[pick].focus();
    const below = at("panel").getBoundingClientRect().top > innerHeight * 0.6;
    if (open === "focus" || (open === "look" && below)) {
      if (below || at("panel").getBoundingClientRect().top < 0) at("panel").scrollIntoView({ block: "start" });
      tip(null);
    }
    if (open === "focus") at("panel-h").focus({ preventScroll: true });
  });
  document.addEventListener("click", (event) => { const link = event.target.closest("[data-go]"); if (link) go(link.dataset.go); });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg, .strip")) tip(null); });
  addEventListener("hashchange", () => { state = readState(payload, location.hash); drawTheme(at("theme"), state); draw(); });
  addEventListener("scroll", () => {
    // The tooltip of a focused cell follows it; one that the pointer opened goes.
    const el = document.activeElement;
    if (el?.matches(".cell:focus-visible, .strip li:focus-visible")) el.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    else tip(null);
  }, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  watch(at("grid"), draw);
  document.documentElement.dataset.ready = "yes";
}

const data = document.getElementById("payload");
if (data) start(JSON.parse(data.textContent));
