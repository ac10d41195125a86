// The address holds the state, so that a view can be shared. What it asks for is checked, never trusted.

/** A number within bounds, or the other. */
export function within(text, lo, hi, other) {
  if (text === null || text === undefined || !/^-?\d{1,9}(\.\d{1,9})?$/.test(text)) return other;
  return Math.min(hi, Math.max(lo, +text));
}

/** A whole number from 0 to below a count, or the other. */
export const index = (text, below, other) => (/^\d{1,9}$/.test(text ?? "") && +text < below ? +text : other);

/** One of the choices, or the other. */
export const among = (text, choices, other) => (choices.includes(text) ? text : other);

/** Several numbers, separated by commas, or the other. */
export function numbers(text, lo, hi, most, other) {
  const parts = (text ?? "").split(",").slice(0, most).map((part) => within(part, lo, hi, null));
  return text && parts.length && parts.every((part) => part !== null) ? parts : other;
}

export const isDark = (state) => state.theme === "dark" || (state.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
