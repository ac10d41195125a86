// Weights of what the page has no twin of: asked of the server, one request at a time, the latest first.

const MOST = 400;

/** `back()` is called when an answer has come. Without a server, weights() never has one. */
export function server(asking, back) {
  const known = new Map();
  let wanted = new Map(), busy = false, line = null, over = false;

  async function fetchNext() {
    if (busy || over || !wanted.size) return;
    busy = true;
    const batch = wanted;
    wanted = new Map();
    for (const [key, body] of batch) {
      if (wanted.size) break; // the row has changed since
      try {
        known.set(key, (await asking.post("api/weigh", body)).weights);
        line = null;
      } catch (error) { known.set(key, null); line = error.message; }
      if (known.size > MOST) known.delete(known.keys().next().value);
    }
    busy = false;
    if (!over) back();
    fetchNext();
  }

  return {
    weights(name, given, scores, seen) {
      if (!asking) return null;
      const body = { weighting: { name, ...given }, scores: scores.map((s, j) => (seen[j] ? s : null)) }, key = JSON.stringify(body);
      if (known.has(key)) return known.get(key);
      if (!busy) { wanted.set(key, body); queueMicrotask(fetchNext); }
      else { wanted.clear(); wanted.set(key, body); }
      return null;
    },
    said: () => line,
    stop() { over = true; },
  };
}
