// A model given by its numbers: the twin of CacheShape.uniform in sinkgate/cache/shape.py. Equal layers are kept
// together as { n, layer }.

export const NONE = { heads: 0, kv_heads: 0, head_dim: 0, v_dim: 0, window: 0, latent: 0, rotary: 0, index: 0, top_k: 0, shared: false,
  state_heads: 0, k_dim: 0, state_v_dim: 0, conv: 0 };

export const attends = (layer) => Boolean(layer.kv_heads || layer.latent);

/** The groups of a model: those with a state, those with a window, those that keep every token. */
export function uniform(m) {
  const full = { ...NONE, heads: m.heads, kv_heads: m.kv_heads, head_dim: m.head_dim, v_dim: m.v_dim || m.head_dim,
    latent: m.latent, rotary: m.latent ? m.rotary : 0 };
  const k = m.linear_k_dim || m.head_dim;
  const linear = { ...NONE, heads: m.heads, state_heads: m.linear_heads || m.heads, k_dim: k, state_v_dim: m.linear_v_dim || k };
  return [[m.linear_layers, linear], [m.sliding_layers, { ...full, window: m.window }], [m.layers - m.sliding_layers, full]]
    .filter(([n]) => n > 0).map(([n, layer]) => ({ n, layer }));
}
