// The frame around the pages: it owns the state, the address, the theme and the language.
//
// A page is { id, title(), keys, read(asked, context), build(el, context), draw(el, context, state, change), leave?(el),
// prepare?(context, state, asked) → Promise, reopens?: keys whose change builds it anew, refused?(el, context, state) }:
// read() makes its part of the state from the address, build() makes its elements once, draw() shows the state.
// A control says what it wants with a "want" event, which bubbles to here. Text from a model or a corpus is only
// ever written as text nodes, after clean() or token().

import { bdi, h, segments, tip, want } from "sinkgate/lib/dom.js";
import { LANGUAGES, speak, t } from "sinkgate/lib/language.js";
import { connect } from "sinkgate/lib/server.js";
import { among } from "sinkgate/lib/state.js";
import { clean } from "sinkgate/lib/text.js";
import { PAGES } from "sinkgate/pages.js";

const at = (id) => document.getElementById(id);

/** What every page may use. */
function contextOf(payload) {
  const asked = new URLSearchParams(location.search);
  const server = payload.live ? connect(asked.get("token")) : null, loaded = new Map();
  const context = {
    records: payload.records, live: payload.live, weightings: payload.weightings ?? [], server, created: payload.created,
    of: (kind) => payload.records.filter((entry) => entry.kind === kind),
    /** The payload of a record: in the file, or asked of the server once. */
    load(entry) {
      if (entry.payload) return Promise.resolve(entry.payload);
      if (!loaded.has(entry.id)) {
        const asking = server.get(`api/records/${entry.id}`);
        asking.catch(() => loaded.delete(entry.id));
        loaded.set(entry.id, asking);
      }
      return loaded.get(entry.id);
    },
  };
  return context;
}

function frame(context, state, pages) {
  const nav = h("nav", { class: "pages", "aria-label": t("Pages") }, pages.map((page) =>
    h("button", { type: "button", "data-page": page.id, "aria-current": page.id === state.page ? "page" : null, click: (event) => want(event.target, { page: page.id }) }, page.title())));
  const themes = h("fieldset", { class: "seg", id: "theme" }, h("legend", { class: "sr" }, t("Theme")));
  const languages = h("fieldset", { class: "seg", id: "language" }, h("legend", { class: "sr" }, t("Language")));
  segments(themes, "theme", [["auto", t("Auto")], ["light", t("Light")], ["dark", t("Dark")]], state.theme, (theme) => want(themes, { theme }));
  segments(languages, "language", LANGUAGES, state.lang, (lang) => want(languages, { lang }));
  at("app").replaceChildren(
    h("button", { type: "button", class: "skip", click: () => at("page").focus() }, t("Skip to the page")),
    h("header", { class: "page" },
      h("div", { class: "bar" }, h("p", { class: "mark" }, h("b", {}, "sinkgate"), h("span", {}, context.live ? t("studio") : t("report"))), h("div", { class: "choices" }, languages, themes)), nav),
    h("main", { id: "page", tabindex: -1 }),
    h("footer", { class: "page" }, h("p", { id: "colophon" }, context.live ? t("Served by sinkgate studio from this machine; nothing else is asked.") : t("Written by sinkgate. This file is complete: it loads nothing and sends nothing."))));
}

function addressOf(state, page) {
  const parts = { page: state.page };
  for (const key of ["record", ...page.keys]) if (state[key] !== undefined && state[key] !== null && state[key] !== "") parts[key] = state[key];
  if (state.lang !== "en") parts.lang = state.lang;
  if (state.theme !== "auto") parts.theme = state.theme;
  return `#${new URLSearchParams(parts)}`;
}

function start(payload) {
  const context = contextOf(payload), pages = PAGES.filter((page) => !page.kind || context.of(page.kind).length);
  let state = {}, page = null, building = 0;
  context.state = () => state;

  function readFrame(asked) {
    return {
      page: among(asked.get("page"), pages.map((each) => each.id), pages[0].id),
      record: among(asked.get("record"), context.records.map((entry) => entry.id), context.records[0]?.id ?? ""),
      theme: among(asked.get("theme"), ["light", "dark"], "auto"),
      lang: among(asked.get("lang"), LANGUAGES.map(([code]) => code), "en"),
    };
  }

  // Writing the address costs more than drawing, and a browser allows it 200 times in 10 seconds: a drag writes it when it rests.
  let written = [], later = 0;
  function write() {
    const now = performance.now();
    clearTimeout(later);
    written = written.filter((when) => now - when < 10_000);
    if (written.length >= 120 || written.filter((when) => now - when < 250).length >= 4) {
      document.documentElement.dataset.address = "behind";
      later = setTimeout(write, 150);
      return;
    }
    delete document.documentElement.dataset.address;
    written.push(now);
    // Some embeddings forbid touching the address; the page works without.
    try { history.replaceState(null, "", location.search + addressOf(state, page)); } catch { /* not shareable here */ }
  }

  function look() {
    if (state.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = state.theme;
  }

  /** Build the page the state asks for; what the address says of it is read when the record is here. */
  async function open(asked) {
    const turn = ++building;
    delete document.documentElement.dataset.ready;
    page?.leave?.(at("page"));
    page = pages.find((each) => each.id === state.page);
    speak(state.lang);
    look();
    frame(context, state, pages);
    const el = at("page");
    document.title = clean(`${page.title()} · sinkgate`);
    try {
      await prepare(el, asked);
      if (turn !== building) return;
      state = { ...state, ...page.read(asked, context) };
      page.build(el, context);
      page.draw(el, context, state);
      write();
    } catch (error) {
      if (turn !== building) return;
      el.replaceChildren(h("p", { class: "refused", role: "alert" }, bdi(error.message)));
      page.refused?.(el, context, state);
      if (!(error.constructor.name === "Refused")) throw error;
    }
    document.documentElement.dataset.ready = "yes";
  }

  async function prepare(el, asked) {
    if (!page.kind) return;
    const entries = context.of(page.kind), entry = entries.find((each) => each.id === state.record) ?? entries[0];
    if (!entry) { context.entry = context.payload = null; return; }
    state.record = entry.id;
    if (!entry.payload) el.replaceChildren(h("p", { class: "note", role: "status" }, t("Reading the record…")));
    context.entry = entry;
    context.payload = await context.load(entry);
    await page.prepare?.(context, state, asked);
  }

  document.addEventListener("want", (event) => {
    const before = state, change = event.detail;
    state = { ...state, ...change };
    if (state.page !== before.page || state.lang !== before.lang || state.record !== before.record || page.reopens?.some((key) => state[key] !== before[key])) {
      const asked = new URLSearchParams(state.page === before.page ? addressOf(state, page).slice(1) : "");
      if (state.page !== before.page) for (const key of pages.find((each) => each.id === state.page).keys) if (state[key] !== undefined) asked.set(key, state[key]);
      open(asked).then(() => {
        const focus = change.page ? `[data-page="${change.page}"]` : change.lang ? `#language input[value="${change.lang}"]` : change.focus ?? null;
        if (focus) document.querySelector(focus)?.focus();
      });
      return;
    }
    look();
    write();
    page.draw(at("page"), context, state, change);
  });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("svg, .strip")) tip(null); });
  addEventListener("hashchange", () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    state = { ...state, ...readFrame(asked) };
    open(asked);
  });
  addEventListener("scroll", () => {
    // The tooltip of a focused cell follows it; one that the pointer opened goes.
    const el = document.activeElement;
    if (el?.matches(".cell:focus-visible, .strip li:focus-visible")) el.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    else tip(null);
  }, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.draw(at("page"), context, state));

  const asked = new URLSearchParams(location.hash.slice(1));
  state = readFrame(asked);
  open(asked);
}

const data = at("payload");
if (data) start(JSON.parse(data.textContent));
