// What a record says, in the reader's language.

import { language, t } from "sinkgate/lib/language.js";
import { clean, fmt, tick } from "sinkgate/lib/text.js";

/** A sentence that Python wrote, made harmless; its Chinese came with the payload, or is one of a known few. */
export const said = (payload, text) => clean(language() === "en" ? text : payload.chinese?.[text] ?? t(String(text ?? "")));

export const labelOf = (metric) => clean(t(metric.label));

export const helpOf = (payload, metric) => clean(t(metric.help, { window: fmt(payload.settings.local_window), threshold: tick(payload.settings.threshold) }));

/** A kind of head or of token. */
export const kindName = (kind) => clean(t(String(kind)));

/** The name of a record in a list; a number parts those of one name. */
export function entryName(context, entry) {
  const same = context.of(entry.kind).filter((each) => each.name === entry.name);
  return clean(same.length > 1 ? `${entry.name} (${same.indexOf(entry) + 1})` : entry.name).slice(0, 120);
}

/** A name as an argument of a command. */
export const argument = (name) => (/^[\w./:-]+$/.test(name) ? name : `'${clean(name).replaceAll("'", "")}'`);
