// The numbers that a reader can choose: what each is called, its bounds, and how all of them stand in the address.

import { t } from "sinkgate/lib/language.js";
import { uniform } from "sinkgate/kv/shape.js";
import { BITS, MOST } from "sinkgate/kv/sizes.js";

/** id, lowest, highest, usual value, highest of the slider; "log": the slider moves by powers of two. */
const FIELDS = [
  ["layers", 1, 10000, 30, 128], ["heads", 1, 4096, 9, 128], ["kv_heads", 1, 4096, 3, 128], ["head_dim", 1, 4096, 64, 512], ["v_dim", 0, 4096, 0, 512],
  ["mla", 0, 1, 0], ["latent", 0, 16384, 0, 2048], ["rotary", 0, 4096, 0, 256], ["sliding_layers", 0, 10000, 0, 128], ["window", 0, MOST, 0, 2 ** 17, "log"],
  ["linear_layers", 0, 10000, 0, 128], ["linear_heads", 0, 4096, 0, 128], ["linear_k_dim", 0, 4096, 0, 512], ["linear_v_dim", 0, 4096, 0, 512],
  ["context", 1, MOST, 8192, 2 ** 24, "log"], ["batch", 1, 1e6, 1, 256],
  ["plain", 16, 32, 16], ["sinks", 0, 1e6, 4, 64], ["recent", 1, MOST, 128, 2 ** 14, "log"], ["share", 1, 128, 2, 8], ["retrieval", 0, 100, 50, 100],
  ["top_k", 1, MOST, 2048, 2 ** 15, "log"], ["group", 1, 4096, 32, 256], ["residual", 0, 1e6, 128, 1024], ["state_bits", 16, 32, 32],
];
export const SPECS = Object.fromEntries(FIELDS.map(([id, lo, hi, usual, slide, scale]) => [id, { id, lo, hi, usual, slide, log: scale === "log" }]));
const FEWER = [2, 3, 4, 8, 16, 32], USUAL = [8, 4, 2];

export const labelOf = (id) => ({
  layers: t("Attention layers"), heads: t("Query heads"), kv_heads: t("Key-value heads"), head_dim: t("Size of a key of one head"),
  v_dim: t("Size of a value (0: as a key)"), latent: t("Width of the latent (0: 512)"), rotary: t("Width of the rotated key beside it (0: 64)"),
  sliding_layers: t("Of the layers, so many have a window"), window: t("Window, tokens (0: 4096)"), linear_layers: t("Linear layers beside them"),
  linear_heads: t("Heads of a linear layer (0: as the others)"), linear_k_dim: t("Rows of its state (0: size of a key)"), linear_v_dim: t("Columns of its state (0: as rows)"),
  context: t("Context, tokens of one sequence"), batch: t("Sequences at once"), sinks: t("First tokens kept (sinks)"), recent: t("Last tokens kept"),
  share: t("Layers that keep one cache together"), retrieval: t("Key-value heads that keep everything, %"), top_k: t("Tokens that a query reads"),
  group: t("Numbers that share a scale"), residual: t("Last tokens left as they are"), plain: t("Bits of a stored number"), state_bits: t("Bits of a number of a state"),
  mla: t("What a layer keeps"),
}[id]);

export const usual = () => ({ ...Object.fromEntries(FIELDS.map(([id, , , value]) => [id, value])), bits: USUAL });

/** "layers-16.heads-24.bits-8-4": what differs from the usual model. */
export function written(choice) {
  const parts = FIELDS.filter(([id, , , value]) => choice[id] !== value).map(([id]) => `${id}-${choice[id]}`);
  if (String(choice.bits) !== String(USUAL)) parts.push(["bits", ...choice.bits].join("-"));
  return parts.join(".");
}

/** The inverse; what is not known or out of bounds is left out. */
export function readChoice(text) {
  const choice = usual();
  for (const part of (text ?? "").slice(0, 600).split(".")) {
    const [id, ...values] = part.split("-"), spec = SPECS[id];
    if (!values.every((v) => /^\d{1,15}$/.test(v))) continue;
    const numbers = values.map(Number);
    if (id === "bits") choice.bits = FEWER.filter((b) => numbers.includes(b)).reverse();
    else if (spec && numbers.length === 1 && allowed(spec, numbers[0])) choice[id] = numbers[0];
  }
  return choice;
}

export const allowed = (spec, value) => Number.isInteger(value) && value >= spec.lo && value <= spec.hi && (!["plain", "state_bits"].includes(spec.id) || value === 16 || value === 32);

/** What is wrong with a choice: one sentence, or null. */
export function wrong(choice) {
  if (!choice.mla && choice.heads % choice.kv_heads) return t("{heads} heads cannot share {kv} key-value heads: no multiple", { heads: choice.heads, kv: choice.kv_heads });
  if (choice.sliding_layers > choice.layers) return t("sliding_layers is {sliding}, of {layers} layers", { sliding: choice.sliding_layers, layers: choice.layers });
  return null;
}

/** The model of a choice, in groups of equal layers. */
export const shapeOf = (choice) => uniform({ ...choice, kv_heads: choice.mla ? choice.heads : choice.kv_heads, window: choice.window || 4096,
  latent: choice.mla ? choice.latent || 512 : 0, rotary: choice.rotary || 64 });

/** What is asked of schemes(). */
export const optionsOf = (choice) => ({ ...choice, retrieval: choice.retrieval / 100, bits: [choice.plain, ...choice.bits.filter((b) => b !== choice.plain)] });

/** The command that prints the same table. */
export function commandOf(choice) {
  const words = ["sinkgate kv"], say = (id, value = choice[id]) => words.push(`--${id.replaceAll("_", "-")} ${value}`);
  for (const id of ["layers", "heads", "head_dim"]) say(id);
  if (choice.mla) { say("latent", choice.latent || 512); say("rotary", choice.rotary || 64); }
  else say("kv_heads");
  for (const id of ["v_dim", "sliding_layers", "window", "linear_layers", "linear_heads", "linear_k_dim", "linear_v_dim", ...(choice.mla ? [] : ["latent", "rotary"])]) if (choice[id]) say(id);
  say("context");
  for (const id of ["batch", "sinks", "recent", "share", "top_k", "group", "residual", "state_bits"]) if (choice[id] !== SPECS[id].usual) say(id);
  if (choice.retrieval !== SPECS.retrieval.usual) say("retrieval", choice.retrieval / 100);
  const bits = optionsOf(choice).bits;
  if (String(bits) !== "16,8,4,2") say("bits", bits.join(" "));
  return words.join(" ");
}

export { BITS };
