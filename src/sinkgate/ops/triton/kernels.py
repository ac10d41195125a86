# mypy: ignore-errors
"""The Triton kernels: one forward pass, two backward passes, the weighting a constant they are compiled for.

Tiles of scores live in registers; nothing of the size queries × keys is ever written. Powers are taken of a score's
distance to its row's maximum, so that scores of ±1e4 lose nothing. What a row sees comes as two runs of keys
(:class:`sinkgate.ops.bands.Bands`); tiles that no row of a block sees are not visited, and only tiles that not every
row sees whole are masked.

What is not finite. A key or value that is NaN or infinite has to make NaN of the rows that see it and of no others, and
``0·NaN`` would carry it further. Where every row sees the tile there is nothing to contain. Where not, whatever is
multiplied by weights that may be 0 (values; in the backward passes keys, queries and ``do``) has its numbers that are
not finite replaced by 0. Whether a row saw one is kept beside its sums in ``wrong``, which is 0 or NaN: sums of ``x·0``
over what the row sees. It is added to everything the row writes, and through the saved row numbers NaN reaches all
gradients of that row. Formulas and their sources: :mod:`sinkgate.weighting`.

``FAMILY`` is ``"softmax"`` (with a sink logit where ``HEAD``), ``"sigmoid"``, ``"relu"`` or ``"softpick"``. Row numbers
kept for the backward pass, ``stat`` and ``stat2``: softmax its maximum m, the sink included, and ``log2 Σ e^{s−m}``
(empty rows −inf and 0); softpick its maximum and one over its denominator; sigmoid its bias; relu ``1/n``. ``stat`` of
a closed row is +inf.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-9999.0)  # as in masks.py
BIG = tl.constexpr(1 << 30)


# ---- numbers -----------------------------------------------------------------------------------------------------


@triton.jit
def expm1_series(x):
    """``e^x − 1`` for |x| < 0.7 by its series (error under 1e-8): the difference has no digits near 0."""
    y = x * 2.7557319e-6 + 2.4801587e-5
    y = y * x + 1.9841270e-4
    y = y * x + 1.3888889e-3
    y = y * x + 8.3333333e-3
    y = y * x + 4.1666667e-2
    y = y * x + 0.16666667
    y = y * x + 0.5
    return (y * x + 1.0) * x


@triton.jit
def capped(x, cap):
    """``cap·tanh(x / cap)`` by ``tanh(y) = (e^{2y} − 1) / (e^{2y} + 1)``."""
    y = tl.minimum(tl.maximum(x * (2.0 / cap), -40.0), 40.0)
    e = tl.where(tl.abs(y) < 0.7, expm1_series(y), tl.exp2(y * LOG2E) - 1.0)
    return cap * (e / (e + 2.0))


@triton.jit
def finite(x):
    """0 in place of what is not finite."""
    return tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, tl.zeros_like(x))


# ---- reading -----------------------------------------------------------------------------------------------------


@triton.jit
def load_tile(
    base, first, rows, stride, cols, there, width, CHECK: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr
):
    """Rows ``first + rows`` of a matrix with ``width`` columns; zeros beyond them and, with ``CHECK``, where not ``there``.

    As float32 where ``WIDE``.
    """
    at = base + first.to(tl.int64) * stride + (rows[:, None] * stride + cols[None, :])
    if CHECK:
        if EVEN:
            x = tl.load(at, mask=there[:, None], other=0.0)
        else:
            x = tl.load(at, mask=there[:, None] & (cols < width)[None, :], other=0.0)
    else:
        if EVEN:
            x = tl.load(at)
        else:
            x = tl.load(at, mask=(cols < width)[None, :], other=0.0)
    if WIDE:
        x = x.to(tl.float32)
    return x


@triton.jit
def load_bands(lo, hi, first_lo, first_hi, at, live, s, FIRST: tl.constexpr):
    """The runs of keys that each row sees; rows that are not live see none."""
    a = tl.maximum(tl.load(lo + at, mask=live, other=0), 0)
    z = tl.minimum(tl.load(hi + at, mask=live, other=0), s)
    fa = tl.zeros_like(a)
    fz = tl.zeros_like(z)
    if FIRST:
        fa = tl.maximum(tl.load(first_lo + at, mask=live, other=0), 0)
        fz = tl.minimum(tl.load(first_hi + at, mask=live, other=0), s)
    return a, z, fa, fz


@triton.jit
def seen_by(key, lo, hi, first_lo, first_hi, FIRST: tl.constexpr):
    """Whether the bands let a row see a key; any shapes that broadcast."""
    seen = (key >= lo) & (key < hi)
    if FIRST:
        seen = seen | ((key >= first_lo) & (key < first_hi))
    return seen


@triton.jit
def masked(at, seen, MASK: tl.constexpr):
    """What the mask tensor leaves of ``seen``, and what it adds to the scores (``MASK``: "bool" or "float")."""
    found = tl.load(at, mask=seen, other=0).to(tl.float32)
    if MASK == "float":
        seen = seen & ((found > HIDDEN) | (found != found))  # a NaN is not hidden: it shows
        found = tl.where(seen, found, 0.0)
    else:
        seen = seen & (found != 0.0)
        found = tl.zeros_like(found)
    return seen, found


# ---- which tiles ---------------------------------------------------------------------------------------------------


@triton.jit
def tiles_of(lo, hi, first_lo, first_hi, inside, SIZE: tl.constexpr, FIRST: tl.constexpr, WHOLE: tl.constexpr):
    """The tiles of ``SIZE`` keys that a block of rows needs.

    Returns ``(f0, nf, k0, w0, w1, k1, r0, n)``: tiles ``w0:w1`` are seen whole by every row; the ``n`` others are
    ``nf`` tiles from ``f0`` on, ``k0:w0``, ``w1:k1``, and the rest from ``r0`` on.
    """
    some = lo < hi
    k0 = tl.min(tl.where(some, lo, BIG), 0) // SIZE
    k1 = (tl.max(tl.where(some, hi, 0), 0) + SIZE - 1) // SIZE
    k0 = tl.minimum(k0, k1)
    w0 = k1
    w1 = k1
    if WHOLE:
        w0 = (tl.max(tl.where(inside, lo, 0), 0) + SIZE - 1) // SIZE
        w1 = tl.min(tl.where(inside, hi, BIG), 0) // SIZE
        w0 = tl.minimum(tl.maximum(w0, k0), k1)
        w1 = tl.minimum(tl.maximum(w1, w0), k1)
    f0 = k0
    nf = k0 - k0
    r0 = k1
    n = (w0 - k0) + (k1 - w1)
    if FIRST:
        some = first_lo < first_hi
        f0 = tl.min(tl.where(some, first_lo, BIG), 0) // SIZE
        f1 = (tl.max(tl.where(some, first_hi, 0), 0) + SIZE - 1) // SIZE
        f0 = tl.minimum(f0, f1)
        nf = tl.maximum(tl.minimum(f1, k0) - f0, 0)
        r0 = tl.maximum(f0, k1)
        n += nf + tl.maximum(f1 - r0, 0)
    return f0, nf, k0, w0, w1, k1, r0, n


@triton.jit
def nth_tile(i, f0, nf, k0, w0, w1, k1, r0, FIRST: tl.constexpr):
    """The i-th of the tiles that have to be masked."""
    j = i - nf
    left = w0 - k0
    right = k1 - w1
    tile = tl.where(j < left, k0 + j, w1 + j - left)
    if FIRST:
        tile = tl.where(j < 0, f0 + i, tl.where(j < left + right, tile, r0 + j - left - right))
    return tile


# ---- forward -------------------------------------------------------------------------------------------------------


@triton.jit
def forward_tile(
    acc, total, above, top, wrong, q, k_base, v_base, mask_at, level, first, keys, cols, vcols, lo, hi, first_lo,
    first_hi, k_s, v_s, m_s, s, d, dv, scale, cap,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    MASS: tl.constexpr, WIDE: tl.constexpr, EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of keys added to a block of rows.

    ``acc`` holds Σ weight·value, ``total`` Σ weight (softpick: of its denominator), ``above`` softpick's Σ of the
    numerator, each relative to ``e^top`` for softmax and softpick. ``level`` is sigmoid's
    bias in base 2.
    """
    k = load_tile(k_base, first, keys, k_s, cols, first + keys < s, d, MASKED, EVEN_D, WIDE)
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    v = load_tile(v_base, first, keys, v_s, vcols, first + keys < s, dv, MASKED, EVEN_DV, WIDE)
    seen = x == x
    bias = tl.zeros_like(x)
    if MASKED:
        key = (first + keys)[None, :]
        seen = seen_by(key, lo[:, None], hi[:, None], first_lo[:, None], first_hi[:, None], FIRST)
        if MASK != "":
            seen, bias = masked(mask_at[:, None] + key.to(tl.int64) * m_s, seen, MASK)
        lost = tl.sum(v.to(tl.float32) * 0.0, 1)  # NaN for a value that is not finite
        v = finite(v)
        wrong += tl.sum(tl.where(seen, (x + bias) * 0.0 + lost[None, :], 0.0), 1)
    else:
        wrong += tl.sum(x * 0.0, 1)
    if CAP:
        x = capped(x, cap)
    if MASK == "float":
        x += bias

    if FAMILY == "softmax":
        if MASKED:
            x = tl.where(seen, x, float("-inf"))
        new = tl.maximum(top, tl.max(x, 1))
        base = new
        if MASKED:
            base = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp2((x - base[:, None]) * LOG2E)
        shrink = tl.exp2((top - base) * LOG2E)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        top = new
    elif FAMILY == "softpick":
        if MASKED:
            x = tl.where(seen, x, 0.0)  # e^0 − 1 = 0: on neither side of the line
        new = tl.maximum(top, tl.max(x, 1))
        one = tl.exp2(-new * LOG2E)[:, None]
        y = tl.where(tl.abs(x) < 0.7, expm1_series(x) * one, tl.exp2((x - new[:, None]) * LOG2E) - one)
        p = tl.where(y < 0.0, 0.0, y)
        shrink = tl.exp2((top - new) * LOG2E)
        total = total * shrink + tl.sum(tl.abs(y), 1)
        if MASS:
            above = above * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        top = new
    elif FAMILY == "sigmoid":
        p = 1.0 / (1.0 + tl.exp2(-(x * LOG2E + level[:, None])))
        if MASKED:
            p = tl.where(seen, p, 0.0)
        if MASS:
            total += tl.sum(p, 1)
    else:
        p = tl.where(x < 0.0, 0.0, x)
        if SQUARED:
            p = p * p
        if MASKED:
            p = tl.where(seen, p, 0.0)
        if MASS:
            total += tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, above, top, wrong


@triton.jit
def forward_kernel(
    q, k, v, out, stat, stat2, mass, lo, hi, first_lo, first_hi, mask, head, row, open_rows,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, m_b, m_h, m_t, m_s, row_b, row_h, band_b,
    heads, group, t, s, d, dv, blocks, scale, cap, eps,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    HEAD: tl.constexpr, ROW: tl.constexpr, OPEN: tl.constexpr, MASS: tl.constexpr, WIDE: tl.constexpr,
    EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """A program per block of queries of one head: output, row numbers, mass."""
    pid = tl.program_id(0)
    block = blocks - 1 - pid % blocks  # under a causal mask the long rows first
    which = pid // blocks
    b = (which // heads).to(tl.int64)
    h = which % heads
    start = block * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    vcols = tl.arange(0, BLOCK_DV)
    inside = start + rows < t
    flat = which.to(tl.int64) * t + start + rows
    live = inside
    if OPEN:
        live = tl.load(open_rows + flat, mask=inside, other=0) != 0
    row_lo, row_hi, row_flo, row_fhi = load_bands(lo, hi, first_lo, first_hi, b * band_b + start + rows, live, s, FIRST)

    level = tl.zeros([BLOCK_M], tl.float32)  # z, bias or n
    if HEAD:
        level += tl.load(head + h)
    if ROW:
        level = tl.load(row + b * row_b + h * row_h + start + rows, mask=inside, other=1.0)
    top = level
    if FAMILY == "softmax" and not HEAD:
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sink = top
    level2 = level * LOG2E
    total = tl.zeros([BLOCK_M], tl.float32)
    above = tl.zeros([BLOCK_M], tl.float32)
    wrong = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)

    queries = load_tile(q + b * q_b + h.to(tl.int64) * q_h, start, rows, q_t, cols, inside, d, True, EVEN_D, WIDE)
    hk = (h // group).to(tl.int64)
    k_base = k + b * k_b + hk * k_h
    v_base = v + b * v_b + hk * v_h
    mask_at = rows  # never read without a mask
    if MASK != "":
        mask_at = mask + b * m_b + h.to(tl.int64) * m_h + (start + rows).to(tl.int64) * m_t

    f0, nf, k0, w0, w1, k1, r0, n = tiles_of(row_lo, row_hi, row_flo, row_fhi, inside, BLOCK_N, FIRST, MASK == "")
    for i in range(0, n):
        first = nth_tile(i, f0, nf, k0, w0, w1, k1, r0, FIRST) * BLOCK_N
        if FIRST:  # between the first keys of two documents there may be tiles that nobody sees
            some = (row_lo < first + BLOCK_N) & (row_hi > first) & (row_lo < row_hi)
            some = some | ((row_flo < first + BLOCK_N) & (row_fhi > first) & (row_flo < row_fhi))
            if tl.max(some.to(tl.int32), 0) > 0:
                acc, total, above, top, wrong = forward_tile(
                    acc, total, above, top, wrong, queries, k_base, v_base, mask_at, level2, first, keys, cols, vcols,
                    row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                    FAMILY, SQUARED, CAP, FIRST, MASK, MASS, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
                )  # fmt: skip
        else:
            acc, total, above, top, wrong = forward_tile(
                acc, total, above, top, wrong, queries, k_base, v_base, mask_at, level2, first, keys, cols, vcols,
                row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                FAMILY, SQUARED, CAP, FIRST, MASK, MASS, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
            )  # fmt: skip
    if MASK == "":
        for i in range(w0, w1):
            first = i * BLOCK_N
            acc, total, above, top, wrong = forward_tile(
                acc, total, above, top, wrong, queries, k_base, v_base, mask_at, level2, first, keys, cols, vcols,
                row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                FAMILY, SQUARED, CAP, FIRST, MASK, MASS, WIDE, EVEN_D, EVEN_DV, PRECISION, False,
            )  # fmt: skip

    over = tl.full([BLOCK_M], 1.0, tl.float32)
    kept = level  # sigmoid
    kept2 = wrong
    summed = total
    if FAMILY == "softmax":
        base = tl.where(top == float("-inf"), 0.0, top)
        whole = total + tl.exp2((sink - base) * LOG2E)
        over = 1.0 / tl.where(whole == 0.0, 1.0, whole)
        summed = total * over
        kept = tl.where(whole == 0.0, float("-inf"), base)
        kept2 = tl.log2(tl.where(whole == 0.0, 1.0, whole))
    elif FAMILY == "softpick":
        whole = total + eps * tl.exp2(-top * LOG2E)
        over = 1.0 / tl.where(whole == 0.0, 1.0, whole)
        summed = above * over
        kept = top
        kept2 = over
    elif FAMILY == "relu":
        if ROW:
            over = 1.0 / level
        summed = total * over
        kept = over
    wrong += tl.sum(acc * 0.0, 1)
    result = acc * over[:, None] + wrong[:, None]
    if OPEN:
        kept = tl.where(live, kept, float("inf"))
    tl.store(
        out + flat[:, None] * dv + vcols[None, :], result.to(out.dtype.element_ty),
        mask=inside[:, None] & (vcols < dv)[None, :],
    )  # fmt: skip
    tl.store(stat + flat, kept + wrong, mask=inside)
    if FAMILY == "softmax" or FAMILY == "softpick":
        tl.store(stat2 + flat, kept2 + wrong, mask=inside)
    if MASS:
        tl.store(mass + flat, summed + wrong, mask=inside)


# ---- backward ------------------------------------------------------------------------------------------------------


@triton.jit
def prepare_kernel(
    q, out, dout, stat, level, delta, q_b, q_h, q_t, g_b, g_h, g_t, heads, t, d, dv, blocks, DELTA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Per row ``delta = do·o`` and ``level``: ``stat``, 0 for an empty row, NaN where q or do is not finite."""
    pid = tl.program_id(0)
    start = (pid % blocks) * BLOCK_M
    which = pid // blocks
    b = (which // heads).to(tl.int64)
    h = (which % heads).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    vcols = tl.arange(0, BLOCK_DV)
    inside = start + rows < t
    flat = which.to(tl.int64) * t + start + rows
    at = q + b * q_b + h * q_h + (start + rows).to(tl.int64)[:, None] * q_t + cols[None, :]
    query = tl.load(at, mask=inside[:, None] & (cols < d)[None, :], other=0.0).to(tl.float32)
    lost = tl.sum(query * 0.0, 1)
    there = inside[:, None] & (vcols < dv)[None, :]
    at = dout + b * g_b + h * g_h + (start + rows).to(tl.int64)[:, None] * g_t + vcols[None, :]
    g = tl.load(at, mask=there, other=0.0).to(tl.float32)
    kept = tl.load(stat + flat, mask=inside, other=0.0)
    lost += tl.sum(g * 0.0, 1)
    tl.store(level + flat, tl.where(kept == float("-inf"), 0.0, kept) + lost, mask=inside)
    if DELTA:
        o = tl.load(out + flat[:, None] * dv + vcols[None, :], mask=there, other=0.0).to(tl.float32)
        found = tl.where(kept == float("inf"), 0.0, tl.sum(g * o, 1))  # +inf: a closed row
        tl.store(delta + flat, found, mask=inside)


@triton.jit
def gradient(x, dp, level, stat2, delta, FAMILY: tl.constexpr, SQUARED: tl.constexpr):
    """Weights and gradients of the scores ``x``, from ``dp = do·v`` and the numbers of each row."""
    if FAMILY == "softmax":
        p = tl.exp2((x - level) * LOG2E - stat2)
        ds = p * (dp - delta)
    elif FAMILY == "softpick":
        e = tl.exp2((x - level) * LOG2E)
        one = tl.exp2(-level * LOG2E)
        y = tl.where(tl.abs(x) < 0.7, expm1_series(x) * one, e - one)
        p = tl.where(y < 0.0, 0.0, y) * stat2
        ds = e * stat2 * tl.where(x > 0.0, dp - delta, tl.where(x < 0.0, delta, 0.0))
    elif FAMILY == "sigmoid":
        p = 1.0 / (1.0 + tl.exp2(-(x + level) * LOG2E))
        ds = p * (1.0 - p) * dp
    else:
        y = tl.where(x < 0.0, 0.0, x)
        if SQUARED:
            p = y * y * level
            ds = 2.0 * y * dp * level
        else:
            p = y * level
            ds = tl.where(x > 0.0, dp, 0.0) * level
    return p, ds


@triton.jit
def dq_tile(
    dq, dbias, q, g, k_base, v_base, mask_at, level, stat2, delta, first, keys, cols, vcols, lo, hi, first_lo, first_hi,
    k_s, v_s, m_s, s, d, dv, scale, cap,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    BIAS: tl.constexpr, WIDE: tl.constexpr, EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of keys added to the gradient of a block of queries, and to the rows' Σ dS."""
    k = load_tile(k_base, first, keys, k_s, cols, first + keys < s, d, MASKED, EVEN_D, WIDE)
    v = load_tile(v_base, first, keys, v_s, vcols, first + keys < s, dv, MASKED, EVEN_DV, WIDE)
    x = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
    seen = x == x
    bias = tl.zeros_like(x)
    if MASKED:
        key = (first + keys)[None, :]
        seen = seen_by(key, lo[:, None], hi[:, None], first_lo[:, None], first_hi[:, None], FIRST)
        if MASK != "":
            seen, bias = masked(mask_at[:, None] + key.to(tl.int64) * m_s, seen, MASK)
        k = finite(k)
    slope = x
    if CAP:
        x = capped(x, cap)
        slope = 1.0 - (x / cap) * (x / cap)
    if MASK == "float":
        x += bias
    _, ds = gradient(x, dp, level[:, None], stat2[:, None], delta[:, None], FAMILY, SQUARED)
    if BIAS:
        dbias += tl.sum(tl.where(seen, ds, 0.0), 1) if MASKED else tl.sum(ds, 1)
    if CAP:
        ds = ds * slope
    if MASKED:
        ds = tl.where(seen, ds, 0.0)
    dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq, dbias


@triton.jit
def dq_kernel(
    q, k, v, dout, dq, dbias, level, stat2, delta, lo, hi, first_lo, first_hi, mask, open_rows,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, g_b, g_h, g_t, m_b, m_h, m_t, m_s, band_b,
    heads, group, t, s, d, dv, blocks, scale, cap,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    OPEN: tl.constexpr, BIAS: tl.constexpr, WIDE: tl.constexpr, EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """A program per block of queries of one head: their gradient, summed over the keys they see."""
    pid = tl.program_id(0)
    block = blocks - 1 - pid % blocks
    which = pid // blocks
    b = (which // heads).to(tl.int64)
    h = which % heads
    start = block * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    vcols = tl.arange(0, BLOCK_DV)
    inside = start + rows < t
    flat = which.to(tl.int64) * t + start + rows
    live = inside
    if OPEN:
        live = tl.load(open_rows + flat, mask=inside, other=0) != 0
    row_lo, row_hi, row_flo, row_fhi = load_bands(lo, hi, first_lo, first_hi, b * band_b + start + rows, live, s, FIRST)
    row_level = tl.load(level + flat, mask=inside, other=0.0)
    row_stat2 = tl.zeros([BLOCK_M], tl.float32)
    row_delta = tl.zeros([BLOCK_M], tl.float32)
    if FAMILY == "softmax" or FAMILY == "softpick":
        row_stat2 = tl.load(stat2 + flat, mask=inside, other=0.0)
        row_delta = tl.load(delta + flat, mask=inside, other=0.0)
    queries = load_tile(q + b * q_b + h.to(tl.int64) * q_h, start, rows, q_t, cols, inside, d, True, EVEN_D, WIDE)
    g = load_tile(dout + b * g_b + h.to(tl.int64) * g_h, start, rows, g_t, vcols, inside, dv, True, EVEN_DV, WIDE)
    hk = (h // group).to(tl.int64)
    k_base = k + b * k_b + hk * k_h
    v_base = v + b * v_b + hk * v_h
    mask_at = rows
    if MASK != "":
        mask_at = mask + b * m_b + h.to(tl.int64) * m_h + (start + rows).to(tl.int64) * m_t
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    sums = tl.zeros([BLOCK_M], tl.float32)

    f0, nf, k0, w0, w1, k1, r0, n = tiles_of(row_lo, row_hi, row_flo, row_fhi, inside, BLOCK_N, FIRST, MASK == "")
    for i in range(0, n):
        first = nth_tile(i, f0, nf, k0, w0, w1, k1, r0, FIRST) * BLOCK_N
        if FIRST:
            some = (row_lo < first + BLOCK_N) & (row_hi > first) & (row_lo < row_hi)
            some = some | ((row_flo < first + BLOCK_N) & (row_fhi > first) & (row_flo < row_fhi))
            if tl.max(some.to(tl.int32), 0) > 0:
                acc, sums = dq_tile(
                    acc, sums, queries, g, k_base, v_base, mask_at, row_level, row_stat2, row_delta, first, keys, cols,
                    vcols, row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                    FAMILY, SQUARED, CAP, FIRST, MASK, BIAS, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
                )  # fmt: skip
        else:
            acc, sums = dq_tile(
                acc, sums, queries, g, k_base, v_base, mask_at, row_level, row_stat2, row_delta, first, keys, cols,
                vcols, row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                FAMILY, SQUARED, CAP, FIRST, MASK, BIAS, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
            )  # fmt: skip
    if MASK == "":
        for i in range(w0, w1):
            first = i * BLOCK_N
            acc, sums = dq_tile(
                acc, sums, queries, g, k_base, v_base, mask_at, row_level, row_stat2, row_delta, first, keys, cols,
                vcols, row_lo, row_hi, row_flo, row_fhi, k_s, v_s, m_s, s, d, dv, scale, cap,
                FAMILY, SQUARED, CAP, FIRST, MASK, BIAS, WIDE, EVEN_D, EVEN_DV, PRECISION, False,
            )  # fmt: skip
    tl.store(
        dq + flat[:, None] * d + cols[None, :], (acc * scale).to(dq.dtype.element_ty),
        mask=inside[:, None] & (cols < d)[None, :],
    )  # fmt: skip
    if BIAS:
        tl.store(dbias + flat, sums, mask=inside)


@triton.jit
def spans_kernel(lo, hi, first_lo, first_hi, spans, t, s, blocks, FIRST: tl.constexpr, BLOCK_M: tl.constexpr):
    """Which keys each block of queries sees, ``[batch, 6, blocks]`` int32: the two runs, and what all of it sees."""
    pid = tl.program_id(0)
    b = pid // blocks
    block = pid % blocks
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = rows < t
    a, z, fa, fz = load_bands(lo, hi, first_lo, first_hi, b.to(tl.int64) * t + rows, inside, s, FIRST)
    at = spans + b.to(tl.int64) * 6 * blocks + block
    tl.store(at, tl.min(tl.where(a < z, a, BIG), 0))
    tl.store(at + blocks, tl.max(tl.where(a < z, z, 0), 0))
    tl.store(at + 2 * blocks, tl.min(tl.where(fa < fz, fa, BIG), 0))
    tl.store(at + 3 * blocks, tl.max(tl.where(fa < fz, fz, 0), 0))
    tl.store(at + 4 * blocks, tl.max(tl.where(inside, a, 0), 0))
    tl.store(at + 5 * blocks, tl.min(tl.where(inside, z, BIG), 0))


@triton.jit
def blocks_of(spans, blocks, first, SIZE: tl.constexpr, FIRST: tl.constexpr, WHOLE: tl.constexpr):
    """The blocks of queries that see keys ``first:first + SIZE``: ``(b0, w0, w1, b1)``, all of it in ``w0:w1``."""
    last = first + SIZE
    b0 = first * 0 + BIG
    b1 = first * 0
    w0 = first * 0 + BIG
    w1 = first * 0
    count = first * 0
    for i in range(0, blocks, 64):
        index = i + tl.arange(0, 64)
        there = index < blocks
        at = spans + index
        some = tl.load(at, mask=there, other=BIG) < last
        some = some & (tl.load(at + blocks, mask=there, other=0) > first)
        if FIRST:
            also = tl.load(at + 2 * blocks, mask=there, other=BIG) < last
            some = some | (also & (tl.load(at + 3 * blocks, mask=there, other=0) > first))
        b0 = tl.minimum(b0, tl.min(tl.where(some, index, BIG), 0))
        b1 = tl.maximum(b1, tl.max(tl.where(some, index + 1, 0), 0))
        if WHOLE:
            whole = there & (tl.load(at + 4 * blocks, mask=there, other=BIG) <= first)
            whole = whole & (tl.load(at + 5 * blocks, mask=there, other=0) >= last)
            w0 = tl.minimum(w0, tl.min(tl.where(whole, index, BIG), 0))
            w1 = tl.maximum(w1, tl.max(tl.where(whole, index + 1, 0), 0))
            count += tl.sum(whole.to(tl.int32), 0)
    b0 = tl.minimum(b0, b1)
    one_run = (count > 0) & (count == w1 - w0)
    w0 = tl.where(one_run, w0, b1)
    w1 = tl.where(one_run, w1, b1)
    return b0, w0, w1, b1


@triton.jit
def dkv_tile(
    dk, dv_acc, k, v, q_base, g_base, mask_at, level, stat2, delta, lo, hi, first_lo, first_hi, open_rows, start, rows,
    key, cols, vcols, q_t, g_t, m_t, t, s, d, dv, scale, cap,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    OPEN: tl.constexpr, WIDE: tl.constexpr, EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr, PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One block of queries added to the gradients of a tile of keys and values; scores lie keys × queries.

    ``level``, ``stat2``, ``delta`` and ``open_rows`` point at the head's first query, the bands at the batch row's.
    """
    at = start + rows
    inside = at < t
    row_level = tl.load(level + at, mask=inside, other=0.0)
    readable = inside
    if MASKED:  # a row that is not finite is 0 here; its weights and gradients of scores are NaN where it sees
        readable = inside & (row_level == row_level)
    q = load_tile(q_base, start, rows, q_t, cols, readable, d, True, EVEN_D, WIDE)
    g = load_tile(g_base, start, rows, g_t, vcols, readable, dv, True, EVEN_DV, WIDE)
    x = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
    dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
    row_stat2 = tl.zeros_like(row_level)
    row_delta = tl.zeros_like(row_level)
    if FAMILY == "softmax" or FAMILY == "softpick":
        row_stat2 = tl.load(stat2 + at, mask=inside, other=0.0)
        row_delta = tl.load(delta + at, mask=inside, other=0.0)
    seen = x == x
    bias = tl.zeros_like(x)
    if MASKED:
        live = inside
        if OPEN:
            live = tl.load(open_rows + at, mask=inside, other=0) != 0
        a, z, fa, fz = load_bands(lo, hi, first_lo, first_hi, at, live, s, FIRST)
        seen = seen_by(key[:, None], a[None, :], z[None, :], fa[None, :], fz[None, :], FIRST)
        if MASK != "":
            seen, bias = masked(mask_at[:, None] + at.to(tl.int64)[None, :] * m_t, seen, MASK)
    slope = x
    if CAP:
        x = capped(x, cap)
        slope = 1.0 - (x / cap) * (x / cap)
    if MASK == "float":
        x += bias
    p, ds = gradient(x, dp, row_level[None, :], row_stat2[None, :], row_delta[None, :], FAMILY, SQUARED)
    if CAP:
        ds = ds * slope
    if MASKED:
        p = tl.where(seen, p, 0.0)
        ds = tl.where(seen, ds, 0.0)
    dv_acc = tl.dot(p.to(g.dtype), g, dv_acc, input_precision=PRECISION)
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv_acc


@triton.jit
def dkv_kernel(
    q, k, v, dout, dk, dvalue, level, stat2, delta, lo, hi, first_lo, first_hi, spans, mask, open_rows,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, g_b, g_h, g_t, m_b, m_h, m_t, m_s, band_b, span_b,
    heads, group, t, s, d, dv, tiles, blocks, scale, cap,
    FAMILY: tl.constexpr, SQUARED: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, MASK: tl.constexpr,
    OPEN: tl.constexpr, WIDE: tl.constexpr, EVEN_D: tl.constexpr, EVEN_DV: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """A program per tile of keys of one key head: gradients of keys and values, over the queries of its group."""
    pid = tl.program_id(0)
    tile = pid % tiles  # under a causal mask the keys that most queries see first
    which = pid // tiles
    kv_heads = heads // group
    b = (which // kv_heads).to(tl.int64)
    hk = which % kv_heads
    first = tile * BLOCK_N
    rows = tl.arange(0, BLOCK_M)
    keys = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    vcols = tl.arange(0, BLOCK_DV)
    key = first + keys
    kt = load_tile(k + b * k_b + hk.to(tl.int64) * k_h, first, keys, k_s, cols, first + keys < s, d, True, EVEN_D, WIDE)
    vt = load_tile(
        v + b * v_b + hk.to(tl.int64) * v_h, first, keys, v_s, vcols, first + keys < s, dv, True, EVEN_DV, WIDE
    )
    lo += b * band_b
    hi += b * band_b
    if FIRST:
        first_lo += b * band_b
        first_hi += b * band_b
    b0, w0, w1, b1 = blocks_of(spans + b * span_b, blocks, first, BLOCK_N, FIRST, MASK == "" and not OPEN)
    left = w0 - b0
    n = left + (b1 - w1)
    dk_acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_acc = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    for i in range(0, group):
        h = hk * group + i
        flat = (b * heads + h) * t
        q_base = q + b * q_b + h.to(tl.int64) * q_h
        g_base = dout + b * g_b + h.to(tl.int64) * g_h
        mask_at = key
        if MASK != "":
            mask_at = mask + b * m_b + h.to(tl.int64) * m_h + key.to(tl.int64) * m_s
        for j in range(0, n):
            start = tl.where(j < left, b0 + j, w1 + j - left) * BLOCK_M
            if FIRST or OPEN:  # a block may lie between those that see the tile, or have no open row
                at = start + rows
                live = at < t
                if OPEN:
                    live = tl.load(open_rows + flat + at, mask=live, other=0) != 0
                a, z, fa, fz = load_bands(lo, hi, first_lo, first_hi, at, live, s, FIRST)
                some = (a < first + BLOCK_N) & (z > first) & (a < z)
                some = some | ((fa < first + BLOCK_N) & (fz > first) & (fa < fz))
                if tl.max(some.to(tl.int32), 0) > 0:
                    dk_acc, dv_acc = dkv_tile(
                        dk_acc, dv_acc, kt, vt, q_base, g_base, mask_at, level + flat, stat2 + flat, delta + flat,
                        lo, hi, first_lo, first_hi, open_rows + flat, start, rows, key, cols, vcols, q_t, g_t, m_t,
                        t, s, d, dv, scale, cap,
                        FAMILY, SQUARED, CAP, FIRST, MASK, OPEN, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
                    )  # fmt: skip
            else:
                dk_acc, dv_acc = dkv_tile(
                    dk_acc, dv_acc, kt, vt, q_base, g_base, mask_at, level + flat, stat2 + flat, delta + flat,
                    lo, hi, first_lo, first_hi, open_rows + flat, start, rows, key, cols, vcols, q_t, g_t, m_t,
                    t, s, d, dv, scale, cap,
                    FAMILY, SQUARED, CAP, FIRST, MASK, OPEN, WIDE, EVEN_D, EVEN_DV, PRECISION, True,
                )  # fmt: skip
        if MASK == "" and not OPEN:
            for j in range(w0, w1):
                start = j * BLOCK_M
                dk_acc, dv_acc = dkv_tile(
                    dk_acc, dv_acc, kt, vt, q_base, g_base, mask_at, level + flat, stat2 + flat, delta + flat,
                    lo, hi, first_lo, first_hi, open_rows + flat, start, rows, key, cols, vcols, q_t, g_t, m_t,
                    t, s, d, dv, scale, cap,
                    FAMILY, SQUARED, CAP, FIRST, MASK, OPEN, WIDE, EVEN_D, EVEN_DV, PRECISION, False,
                )  # fmt: skip
    at = which.to(tl.int64) * s + key
    there = (key < s)[:, None]
    tl.store(
        dk + at[:, None] * d + cols[None, :], (dk_acc * scale).to(dk.dtype.element_ty),
        mask=there & (cols < d)[None, :],
    )  # fmt: skip
    tl.store(
        dvalue + at[:, None] * dv + vcols[None, :], dv_acc.to(dvalue.dtype.element_ty),
        mask=there & (vcols < dv)[None, :],
    )  # fmt: skip


INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)  # under TRITON_INTERPRET=1: runs on CPU tensors
