// A model's cache under every scheme: the twin of sinkgate/cache/schemes.py, held to it by a test over random models.
//
// A row is { name, note, tokenBytes, cacheBytes, stateBytes, readBytes, totalBytes }: name and note are [sentence, values]
// for t(), tokenBytes is a number, the others are BigInt.

import { attends, NONE } from "sinkgate/kv/shape.js";
import { figures, kvBytes, latentBytes, quantisedBytes, quantisedPerToken, stateBytes, up } from "sinkgate/kv/sizes.js";

const B = BigInt;

/** { rows, leftOut } of a model and options: context, batch, bits, plain, sinks, recent, window, latent, rotary (0: the usual
    one), share, retrieval, top_k, group, residual, state_bits. */
export function schemes(groups, o) {
  const attention = groups.filter(({ layer }) => attends(layer)), rows = [row(["this model"], groups, o, ["as it is"])], leftOut = [];
  if (!attention.length) return { rows, leftOut: [[["the other schemes"], ["no layer of this model keeps tokens"]]] };
  const change = (how) => groups.map(({ n, layer }) => ({ n, layer: attends(layer) ? how(layer) : layer }));
  const add = (name, how, note) => rows.push(row(name, change(how), o, note));
  if (attention.some(({ layer }) => layer.window)) add(["no window"], (x) => ({ ...x, window: 0 }), ["every layer keeps every token"]);
  add(["MHA"], (x) => withHeads(x, x.heads), ["every head has its own key and value"]);
  const sizes = new Set(attention.map(({ layer }) => groupsOf(layer)));
  if (sizes.has(0)) leftOut.push([["GQA"], ["its heads fall into no groups of equal size"]]);
  else add(sizes.size === 1 ? ["GQA-{n}", { n: [...sizes][0] }] : ["GQA"], (x) => withHeads(x, groupsOf(x)), ["key-value heads that groups of heads share (arXiv 2305.13245)"]);
  add(["MQA"], (x) => withHeads(x, 1), ["one key-value head for all heads (arXiv 1911.02150)"]);
  const widths = [...new Set(attention.map(({ layer }) => withLatent(layer, o)).map((x) => `${x.latent} + ${x.rotary}`))].join(", ");
  add(["MLA"], (x) => withLatent(x, o), ["a latent and a rotated key for all heads: {widths} (arXiv 2405.04434)", { widths }]);
  const window = o.window || Math.max(0, ...attention.map(({ layer }) => layer.window)) || 4096;
  add(["window {n}", { n: window }], (x) => withWindow(x, window), ["every layer keeps the last tokens alone"]);
  const kept = o.sinks + o.recent, both = { sinks: o.sinks, recent: o.recent };
  add(["sinks+recent"], (x) => withWindow(x, kept), ["the first {sinks} and the last {recent} tokens (arXiv 2309.17453)", both]);
  if (attention.some(({ layer }) => layer.latent)) leftOut.push([["streaming heads"], ["a latent is one for all heads"]]);
  else if (attention.every(({ layer }) => layer.window || layer.shared)) leftOut.push([["streaming heads"], ["every layer has a window"]]);
  else rows.push(streamingHeads(groups, attention, o));
  add(["top-{n} reads", { n: o.top_k }], (x) => ({ ...x, top_k: Math.min(o.top_k, x.top_k || o.top_k) }),
    ["saves reads, not bytes: every token is kept; what choosing reads comes on top, but for an index key"]);
  rows.push(row(["{n} layers share", { n: o.share }], sharing(groups, o.share), o, ["saves bytes, not reads: each layer still reads it all (arXiv 2405.12981)"]));
  const state = groups.find(({ layer }) => layer.state_heads)?.layer ?? null;
  add(["linear"], (x) => asLinear(x, state), ["every layer has a state instead, whatever the length (arXiv 2006.16236)"]);
  for (const bits of new Set(o.bits)) if (bits !== o.plain) rows.push(fewerBits(groups, attention, o, bits));
  return { rows, leftOut };
}

// ---- what a row is made of

function row(name, groups, o, note, bits = o.plain) {
  const item = (bits < 16 ? o.plain : bits) / 8, batch = B(o.batch), context = B(o.context);
  let growth = 0, cache = 0n, state = 0n, read = 0n;
  for (const { n, layer } of groups) {
    const many = B(n);
    if (attends(layer)) {
      const tokens = layer.window && B(layer.window) < context ? B(layer.window) : context, index = B(layer.index * item);
      let one, held;
      if (bits < 16) [one, held] = quantised(layer, tokens, bits, item, o);
      else {
        const token = layer.latent ? latentBytes(layer.latent, layer.rotary, item) : kvBytes(layer.kv_heads, layer.head_dim, layer.v_dim, item);
        [one, held] = [Number(token), tokens * token];
      }
      const seen = layer.top_k && B(layer.top_k) < tokens ? up(held * B(layer.top_k), tokens) : held;
      read += many * (seen + tokens * index);
      if (!layer.shared) {
        cache += many * (held + tokens * index);
        growth += layer.window ? 0 : n * (one + Number(index));
      }
    }
    state += many * (stateBytes(layer.state_heads, layer.k_dim, layer.state_v_dim, o.state_bits / 8) + B(layer.conv) * B(o.plain / 8));
  }
  return finished({ name, note, tokenBytes: growth, cacheBytes: batch * cache, stateBytes: batch * state, readBytes: batch * (read + state) });
}

const finished = (found) => ({ ...found, totalBytes: found.cacheBytes + found.stateBytes });

/** Bytes that one more token adds, and bytes of all, of a quantised layer without its index keys. */
function quantised(layer, tokens, bits, item, o) {
  if (layer.latent) { // per token, as values are; the rotated key stays as it is
    const beside = B(layer.rotary) * B(item);
    return [quantisedPerToken(1, 0, layer.latent, bits, o.group) + Number(beside),
      quantisedBytes(tokens, 1, 0, layer.latent, bits, o.group, o.residual, item) + tokens * beside];
  }
  const sizes = [layer.kv_heads, layer.head_dim, layer.v_dim, bits, o.group];
  return [quantisedPerToken(...sizes), quantisedBytes(tokens, ...sizes, o.residual, item)];
}

function fewerBits(groups, attention, o, bits) {
  const name = ["{n} bits", { n: bits }];
  if (bits >= 16) return row(name, groups, o, ["a stored number"], bits);
  const what = attention.some(({ layer }) => layer.latent)
    ? "the latent per token ({group} channels a group); the rotated key as it is; scale and zero point of 16 bits a group; the last {residual} tokens in {plain} bits (arXiv 2402.02750)"
    : "keys per channel ({group} tokens a group), values per token ({group} channels a group); scale and zero point of 16 bits a group; the last {residual} tokens in {plain} bits (arXiv 2402.02750)";
  return row(name, groups, o, [what, { group: o.group, residual: o.residual, plain: o.plain }], bits);
}

// ---- what a row changes

const withHeads = (layer, kv_heads) => ({ ...layer, kv_heads, latent: 0, rotary: 0, index: 0, top_k: 0 });

/** The layer's own number of key-value heads if they are groups, else the most up to 8 that fit; 0: none do. */
function groupsOf(layer) {
  if (!layer.latent && layer.kv_heads > 1 && layer.kv_heads < layer.heads) return layer.kv_heads;
  for (let n = Math.min(8, layer.heads - 1); n > 1; n--) if (layer.heads % n === 0) return n;
  return 0;
}

const withLatent = (layer, o) => ({ ...layer, latent: o.latent || layer.latent || 512, rotary: o.rotary || layer.rotary || 64 });
const withWindow = (layer, window) => ({ ...layer, window: Math.min(layer.window || window, window) });

function asLinear(layer, like) {
  const { heads, state_heads, k_dim, state_v_dim, conv } = layer;
  if (state_heads) return { ...NONE, heads, state_heads, k_dim, state_v_dim, conv };
  if (like) return asLinear(like, null);
  return { ...NONE, heads, state_heads: heads, k_dim: layer.head_dim, state_v_dim: layer.v_dim };
}

/** Of each `share` equal layers that keep something, the first keeps it for all. */
const sharing = (groups, share) => groups.flatMap(({ n, layer }) => {
  if (!attends(layer) || layer.shared) return [{ n, layer }];
  const keep = Math.ceil(n / share);
  return [{ n: keep, layer }, ...(n > keep ? [{ n: n - keep, layer: { ...layer, shared: true } }] : [])];
});

/** To the nearest whole number, halves to the even one, as Python rounds. */
const rounded = (value) => { const low = Math.floor(value), rest = value - low; return rest === 0.5 ? low + (low % 2) : Math.round(value); };

/** Some heads keep everything, the others sinks and recent tokens, in the layers without a window of their own. */
function streamingHeads(groups, attention, o) {
  const whole = attention.reduce((sum, { n, layer }) => sum + (layer.window || layer.shared ? 0 : n * layer.kv_heads), 0), keep = rounded(o.retrieval * whole);
  const streaming = groups.map(({ n, layer }) => ({ n, layer: attends(layer) && !layer.window ? withWindow(layer, o.sinks + o.recent) : layer }));
  const every = row([""], groups, o, [""]), some = row([""], streaming, o, [""]);
  const mixed = (name) => up(B(keep) * every[name] + B(whole - keep) * some[name], B(whole));
  const note = ["{keep} of {whole} key-value heads without a window keep everything, the others the first {sinks} and the last {recent} tokens (DuoAttention, arXiv 2410.10819)",
    { keep, whole, sinks: o.sinks, recent: o.recent }];
  return finished({ name: ["streaming heads"], note, tokenBytes: (every.tokenBytes * keep) / whole, cacheBytes: mixed("cacheBytes"), stateBytes: every.stateBytes, readBytes: mixed("readBytes") });
}

/** "0.25×" of the first row, as `sinkgate kv` prints it; empty where there is nothing to compare with. */
export const ofModel = (found, first) => (first.totalBytes ? `${figures(Number(found.totalBytes) / Number(first.totalBytes), 3)}×` : "");
