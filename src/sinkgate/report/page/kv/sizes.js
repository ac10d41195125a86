// Bytes of a key-value cache: the twin of sinkgate/cache/sizes.py. Counts are BigInt, so that no byte is lost.

const B = BigInt;
export const BITS = [2, 3, 4, 8, 16, 32], SCALES = 4n, MOST = 2 ** 48;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** ⌈a / b⌉ for what is not negative. */
export const up = (a, b) => (a + b - 1n) / b;

/** Keys and values of one token of one layer. */
export const kvBytes = (kvHeads, headDim, vDim, item) => B(kvHeads) * (B(headDim) + B(vDim)) * B(item);

/** One latent and one rotated key for all heads. */
export const latentBytes = (latent, rotary, item) => (B(latent) + B(rotary)) * B(item);

/** The state of linear attention, whatever the length. */
export const stateBytes = (heads, kDim, vDim, item) => B(heads) * B(kDim) * B(vDim) * B(item);

/** One layer's keys and values, quantised as in KIVI; see quantised_bytes. `tokens` is a BigInt. */
export function quantisedBytes(tokens, kvHeads, headDim, vDim, bits, group, residual, item) {
  const [kv, d, v, g] = [B(kvHeads), B(headDim), B(vDim), B(group)], old = tokens > B(residual) ? tokens - B(residual) : 0n;
  const whole = (old / g) * g;
  const numbers = up(whole * kv * (d + v) * B(bits), 8n);
  const scales = kv * ((whole / g) * d + whole * up(v, g)) * SCALES;
  return numbers + scales + (tokens - whole) * kvBytes(kvHeads, headDim, vDim, item);
}

/** What one more token adds to quantisedBytes, averaged over a group. */
export function quantisedPerToken(kvHeads, headDim, vDim, bits, group) {
  const tokens = 8n * B(group);
  return Number(quantisedBytes(tokens, kvHeads, headDim, vDim, bits, group, 0, 2)) / Number(tokens);
}

/** Bytes in the unit that suits them, to four figures. */
export function human(size) {
  const value = Number(size), power = value >= 1 ? Math.min(Math.floor(Math.trunc(Math.log2(value)) / 10), 6) : 0;
  return `${figures(value / 2 ** (10 * power), 4)} ${UNITS[power]}`;
}

/** So many significant figures without trailing zeros, halves to the even one: Python's .4g, not toPrecision. */
export function figures(value, count) {
  if (value === 0) return "0";
  const [long, exponent] = value.toExponential(80).split("e"), all = long.replace(".", "");
  let head = B(all.slice(0, count)), power = +exponent;
  const rest = all.slice(count), half = `5${"0".repeat(rest.length - 1)}`;
  if (rest > half || (rest === half && head % 2n)) head += 1n;
  let digits = String(head);
  if (digits.length > count) { digits = digits.slice(0, count); power += 1; }
  const trim = (text) => (text.includes(".") ? text.replace(/\.?0*$/, "") : text);
  if (power < -4 || power >= count) return `${trim(`${digits[0]}.${digits.slice(1)}`)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  return trim(power < 0 ? `0.${"0".repeat(-power - 1)}${digits}` : `${digits.slice(0, power + 1)}.${digits.slice(power + 1)}`);
}

/** A number of tokens as people write it: 262144, 256k (1024 each), 1m, 2**20, 2^20; null if it is none of these. */
export function parseCount(text) {
  const said = text.trim().toLowerCase().replace("^", "**");
  if (said.length > 30) return null;
  const number = (digits) => (/^\d[\d_]*$/.test(digits) && !digits.endsWith("_") ? B(digits.replaceAll("_", "")) : null);
  let value;
  if (said.includes("**")) {
    const [base, power] = said.split("**", 2).map(number);
    if (base === null || power === null || said.split("**").length > 2) return null;
    value = base >= 2n ** 50n || power >= 2n ** 50n ? 0n : base ** (power > 64n ? 64n : power);
  } else {
    const unit = { k: 2n ** 10n, m: 2n ** 20n }[said.at(-1)] ?? 1n, digits = number(unit > 1n ? said.slice(0, -1) : said);
    if (digits === null) return null;
    value = digits * unit;
  }
  return value >= 1n && value <= B(MOST) ? Number(value) : null;
}

/** A whole number of bytes with its thousands apart. */
export const exact = (bytes) => B(bytes).toLocaleString("en-US");
