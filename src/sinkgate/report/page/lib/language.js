// English and Chinese. The English sentence is the key; a page's Chinese lies beside it in zh.js.

const BOOKS = { zh: new Map() };
export const LANGUAGES = [["en", "English"], ["zh", "中文"]];
let spoken = "en";

/** Add translations: { "English with {n}": "…{n}…" }. */
export function learn(language, entries) {
  for (const [key, value] of Object.entries(entries)) BOOKS[language].set(key, value);
}

export function speak(language) {
  spoken = language;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
}

export const language = () => spoken;

/** The sentence in the chosen language, its {names} filled in. What has no translation stays English. */
export function t(text, values = {}) {
  const found = spoken === "en" ? text : BOOKS[spoken].get(text) ?? text;
  return found.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

/** As t(), where some values are nodes: a list of texts and nodes for h(). */
export function tn(text, values = {}) {
  const found = spoken === "en" ? text : BOOKS[spoken].get(text) ?? text;
  return found.split(/(\{\w+\})/).filter(Boolean).map((part) => (/^\{\w+\}$/.test(part) && part.slice(1, -1) in values ? values[part.slice(1, -1)] : part));
}
