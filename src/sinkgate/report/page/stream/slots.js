// The arithmetic of a cache of Recent(n) + Sinks(k), the twin of sinkgate.cache.track: which tokens are held when token t
// has come, in which slot each lies, and at which position it counts. Tested against the Python cache, token by token.

/** The cache when token `t` (from 0) has come, with `recent` ≥ 1 last tokens and `sinks` ≥ 0 first ones kept. */
export function cacheAt(t, recent, sinks) {
  const first = Math.max(sinks, t - recent + 1), held = [];
  for (let i = 0; i < Math.min(sinks, t + 1); i++) held.push(i);
  for (let i = first; i <= t; i++) held.push(i);
  // Sinks lie in front; the others take turns in a ring of `recent` slots behind them.
  const slots = new Array(sinks + recent).fill(null), slotOf = (token) => (token < sinks ? token : sinks + ((token - sinks) % recent));
  for (const token of held) slots[slotOf(token)] = token;
  const left = t - recent;
  return {
    held, slots, newest: slotOf(t), evicted: left >= sinks ? left : null,
    /** Where a held token counts: inside the cache (its place among those held), or where it stands in the text. */
    position: (token, scheme) => (scheme === "slots" ? held.indexOf(token) : token),
    query: (scheme) => (scheme === "slots" ? held.length - 1 : t),
  };
}

/** How far the query of token `t` stands from a held token. */
export function distance(cache, token, scheme) {
  return cache.query(scheme) - cache.position(token, scheme);
}

/** "recent(252) + sinks(4)" as {recent, sinks}; null for any other policy. */
export function sizesOf(policy) {
  const found = /^recent\((\d{1,9})\)(?: \+ sinks\((\d{1,9})\))?$/.exec(policy);
  return found ? { recent: +found[1], sinks: +(found[2] ?? 0) } : null;
}
