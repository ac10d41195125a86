// Student's t: the interval of a difference of two means, in pairs where both hold the same samples (Student), else
// not (Welch, 1947, doi 10.2307/2332510).

/** ln Γ(x) for x > 0, by Stirling's series after moving x beyond 8. */
export function logGamma(x) {
  let shift = 0;
  while (x < 8) { shift -= Math.log(x); x += 1; }
  const y = 1 / (x * x);
  return shift + (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI)
    + (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y * (1 / 1188 - y * (691 / 360360)))))) / x;
}

/** The regularised incomplete beta function, by its continued fraction (Lentz). */
export function incompleteBeta(x, a, b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x)) / a, tiny = 1e-300;
  let c = 1, d = 1 / (1 - ((a + b) * x) / (a + 1) || tiny), f = d;
  for (let m = 1; m < 400; m++) {
    for (const part of [(m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m)), (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1))]) {
      d = 1 / (1 + part * d || tiny);
      c = 1 + part / c || tiny;
      f *= c * d;
    }
    if (Math.abs(c * d - 1) < 1e-15) break;
  }
  return front * f;
}

/** The t beyond which Student's distribution has half of 1 − level on either side. */
export function studentQuantile(df, level = 0.95) {
  const outside = (v) => incompleteBeta(df / (df + v * v), df / 2, 0.5);
  let lo = 0, hi = 2;
  while (outside(hi) > 1 - level) hi *= 2;
  for (let i = 0; i < 200 && hi - lo > 1e-13 * hi; i++) { const mid = (lo + hi) / 2; if (outside(mid) > 1 - level) lo = mid; else hi = mid; }
  return (lo + hi) / 2;
}

const mean = (x) => x.reduce((sum, v) => sum + v, 0) / x.length;
const variance = (x) => { const m = mean(x); return x.reduce((sum, v) => sum + (v - m) ** 2, 0) / (x.length - 1); };

/** {mean, low, high} of b − a, of two lists; in pairs, or not. Bounds are null where there are too few numbers. */
export function difference(a, b, paired) {
  const found = { mean: mean(b) - mean(a), low: null, high: null };
  if (paired ? a.length < 2 : a.length < 2 || b.length < 2) return found;
  let error, df;
  if (paired) {
    error = Math.sqrt(variance(a.map((v, i) => b[i] - v)) / a.length);
    df = a.length - 1;
  } else {
    const [x, y] = [variance(a) / a.length, variance(b) / b.length];
    error = Math.sqrt(x + y);
    df = (x + y) ** 2 / (x ** 2 / (a.length - 1) + y ** 2 / (b.length - 1)) || 1;
  }
  // Equal numbers differ by rounding alone.
  const half = error > 1e-12 * (Math.abs(mean(a)) + Math.abs(mean(b))) ? studentQuantile(df) * error : 0;
  return { ...found, low: found.mean - half, high: found.mean + half };
}
