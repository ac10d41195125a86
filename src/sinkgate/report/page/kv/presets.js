// Shapes of models by name, as CacheShape.from_config reads their configs (a test holds each to that).

import { t } from "sinkgate/lib/language.js";

const SHAPES = {
  "smollm2-135m": { layers: 30, heads: 9, kv_heads: 3, head_dim: 64, context: 8192 },
  "gemma3-270m": { layers: 18, heads: 4, kv_heads: 1, head_dim: 256, sliding_layers: 15, window: 512, context: 32768 },
  "gpt2": { layers: 12, heads: 12, kv_heads: 12, head_dim: 64, context: 1024 },
  "llama-7b": { layers: 32, heads: 32, kv_heads: 32, head_dim: 128, context: 2048 },
  "mistral-7b": { layers: 32, heads: 32, kv_heads: 8, head_dim: 128, sliding_layers: 32, window: 4096, context: 131072 },
  "gpt-oss-120b": { layers: 36, heads: 64, kv_heads: 8, head_dim: 64, sliding_layers: 18, window: 128, context: 131072 },
  "deepseek-67b": { layers: 95, heads: 64, kv_heads: 8, head_dim: 128, context: 1048576 },
  "deepseek-v3": { layers: 61, heads: 128, head_dim: 192, v_dim: 128, mla: 1, latent: 512, rotary: 64, context: 1048576 },
  "qwen3-next": { layers: 12, heads: 16, kv_heads: 2, head_dim: 256, linear_layers: 36, linear_heads: 32, linear_k_dim: 128, context: 32768 },
  "hybrid-64": { layers: 16, heads: 24, kv_heads: 4, head_dim: 256, linear_layers: 48, linear_heads: 48, linear_k_dim: 128, context: 262144 },
};

/** [id, label, shape] of each; context is the longest text its config speaks of, or the one its worked number is for. */
export const presets = () => [
  ["smollm2-135m", "SmolLM2-135M"], ["gemma3-270m", "Gemma 3 270M"], ["gpt2", "GPT-2"], ["llama-7b", "Llama 7B"], ["mistral-7b", "Mistral 7B"],
  ["gpt-oss-120b", "gpt-oss-120b"], ["deepseek-67b", "DeepSeek 67B"], ["deepseek-v3", "DeepSeek-V3 (MLA)"],
  ["qwen3-next", t("Qwen3-Next, without its convolutions' states")], ["hybrid-64", t("A hybrid: 16 of 64 layers attend")],
].map(([id, label]) => [id, label, SHAPES[id]]);

/** The shape of a diagnosed model; null where its record does not say enough. */
export function fromRecord(payload) {
  const { layers, heads, kv_heads, head_dim } = payload.model, windows = payload.layers.map((layer) => layer.window).filter(Boolean);
  if (![layers, heads, kv_heads, head_dim].every((n) => Number.isInteger(n) && n > 0) || heads % kv_heads || new Set(windows).size > 1) return null;

  return { layers, heads, kv_heads, head_dim, sliding_layers: windows.length, window: windows[0] ?? 0, plain: payload.model.dtype === "float32" ? 32 : 16 };
}
