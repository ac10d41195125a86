"""Visibility against a mask written out cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinkgate.errors import ArgumentError
from sinkgate.masks import Visibility

fixed = settings(derandomize=True, deadline=None, max_examples=60, database=None)

HIDING = {
    "min": lambda dtype: torch.finfo(dtype).min,
    "-1e4": lambda dtype: -1e4,
    "-inf": lambda dtype: -float("inf"),
}


def brute(case: dict[str, Any]) -> np.ndarray:
    """``[b, h, t, s]``: what each query sees, one cell at a time; padding hides keys, not queries."""
    b, h, t, s = case["b"], case["h"], case["t"], case["s"]
    seen = np.zeros((b, h, t, s), bool)
    for i in range(t):
        position = i + s - t
        for j in range(s):
            near = case["window"] is None or position - j < case["window"]
            seen[:, :, i, j] = not case["causal"] or (j <= position and near)
    if case["allowed"] is not None:
        seen &= case["allowed"].numpy()
    if case["real"] is not None:
        seen &= case["real"].numpy()[:, None, None, :]
    return seen


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    """Shapes, structure, mask and padding of one visibility, and the visibility itself."""
    b, h = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    t = draw(st.integers(1, 9))
    s = t + draw(st.sampled_from([0, 0, 0, 1, 4]))
    causal = draw(st.booleans())
    window = draw(st.sampled_from([None, None, 1, 2, 3, 6])) if causal else None
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["none", "none", "bool", "min", "-1e4", "-inf"]))
    allowed, mask, finite = None, None, False
    if kind != "none":
        shape = (draw(st.sampled_from([1, b])), draw(st.sampled_from([1, h])), t, s)
        allowed = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.7, 0.95, 1.0]))
        mask = allowed
        if kind != "bool":
            dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.float16]))
            finite = draw(st.booleans())
            bias = torch.randn(shape, generator=generator) if finite else torch.zeros(shape)
            mask = bias.to(dtype).masked_fill(~allowed, HIDING[kind](dtype))
    real = None
    padding = draw(st.sampled_from(["none", "none", "left", "right", "all"]))
    if padding != "none":
        real = torch.ones(b, s, dtype=torch.bool)
        for row in range(b):
            missing = s if padding == "all" and row == 0 else draw(st.integers(0, s - 1))
            real[row, slice(None, missing) if padding == "left" else slice(s - missing, None)] = False
    return {
        "b": b, "h": h, "t": t, "s": s, "causal": causal, "window": window, "allowed": allowed, "mask": mask, "real": real,
        "visibility": Visibility(t, s, causal, window, mask, real),
    }  # fmt: skip


def whole(x: Tensor, case: dict[str, Any]) -> np.ndarray:
    """A result whose leading axes may be shared, at full size."""
    return x.expand(case["b"], case["h"], *x.shape[2:]).numpy()


def counted(case: dict[str, Any]) -> np.ndarray:
    """What each query that counts sees: none of it for a padding query."""
    seen = brute(case)
    if case["real"] is not None:
        seen &= case["real"].numpy()[:, None, case["s"] - case["t"] :, None]
    return seen


@fixed
@given(cases(), st.integers(1, 12))
def test_spans_cover_exactly_the_visible_cells(case: dict[str, Any], rows: int) -> None:
    covered = np.zeros((case["b"], case["h"], case["t"], case["s"]), bool)
    before = 0
    for span in case["visibility"].spans(rows):
        assert before <= span.i0 < span.i1 <= min(case["t"], span.i0 + rows)
        assert 0 <= span.k0 < span.k1 <= case["s"]
        before = span.i1
        covered[:, :, span.i0 : span.i1, span.k0 : span.k1] = True
        edge = span.k0
        for c0, c1, seen in span.parts:
            assert edge <= c0 < c1 <= span.k1
            edge = c1
            covered[:, :, span.i0 : span.i1, c0:c1] = whole(seen, case)
    np.testing.assert_array_equal(covered, brute(case))


@fixed
@given(cases(), st.data())
def test_visible_is_any_rectangle_of_the_mask(case: dict[str, Any], data: Any) -> None:
    i0, k0 = data.draw(st.integers(0, case["t"] - 1)), data.draw(st.integers(0, case["s"] - 1))
    i1, k1 = data.draw(st.integers(i0 + 1, case["t"])), data.draw(st.integers(k0 + 1, case["s"]))
    seen = case["visibility"].visible(i0, i1, k0, k1)
    assert seen.dtype == torch.bool
    np.testing.assert_array_equal(whole(seen, case), brute(case)[:, :, i0:i1, k0:k1])


@fixed
@given(cases())
def test_counts_and_the_uniform_weight(case: dict[str, Any]) -> None:
    counts = counted(case).sum(-1)
    np.testing.assert_array_equal(whole(case["visibility"].counts, case), counts)
    expected = np.where(counts > 0, 1 / np.maximum(counts, 1), 0.0)
    assert case["visibility"].uniform.dtype == torch.float64
    np.testing.assert_allclose(whole(case["visibility"].uniform, case), expected, rtol=1e-15)


@fixed
@given(cases())
def test_columns_count_queries_and_sum_their_uniform_weights(case: dict[str, Any]) -> None:
    seen = counted(case)
    weight = seen / np.maximum(seen.sum(-1, keepdims=True), 1)
    n, null = case["visibility"].columns
    np.testing.assert_array_equal(whole(n, case), seen.sum(-2))
    np.testing.assert_allclose(whole(null, case), weight.sum(-2), rtol=1e-13, atol=1e-15)


@fixed
@given(cases(), st.data())
def test_sees_is_one_column_per_batch_row(case: dict[str, Any], data: Any) -> None:
    keys = [data.draw(st.integers(0, case["s"] - 1)) for _ in range(case["b"])]
    seen = counted(case)
    expected = np.stack([seen[row, :, :, k] for row, k in enumerate(keys)])
    np.testing.assert_array_equal(whole(case["visibility"].sees(torch.tensor(keys)), case), expected)


@fixed
@given(cases())
def test_first_key_and_real_queries(case: dict[str, Any]) -> None:
    first, queries = case["visibility"].first, case["visibility"].real_queries
    if case["real"] is None:
        assert first.tolist() == [0]
        assert queries is None
        return
    for row, real in enumerate(case["real"].tolist()):
        assert int(first[row]) == (real.index(True) if any(real) else 0)
    assert queries is not None
    np.testing.assert_array_equal(queries.numpy(), case["real"].numpy()[:, case["s"] - case["t"] :])


@fixed
@given(cases(), st.integers(1, 12))
def test_bias_is_the_finite_part_of_an_additive_mask(case: dict[str, Any], rows: int) -> None:
    visibility, mask = case["visibility"], case["mask"]
    biased = mask is not None and mask.dtype != torch.bool and bool(((mask != 0) & case["allowed"]).any())
    assert visibility.has_bias == biased
    for span in visibility.spans(rows):
        bias = visibility.bias(span)
        if not biased:
            assert bias is None
        else:
            assert bias is not None
            assert torch.equal(bias, mask[:, :, span.i0 : span.i1, span.k0 : span.k1])


@pytest.mark.parametrize("offset", [0, 3])
def test_spans_of_every_window_and_block_size(offset: int) -> None:
    """The window's far edge and the diagonal, apart and overlapping; once as structure, once as a biased mask."""
    t = 10
    s = t + offset
    distance = torch.arange(offset, s)[:, None] - torch.arange(s)
    bias = torch.arange(1.0, t * s + 1).view(t, s)
    for window in range(1, s + 1):
        expected = (distance >= 0) & (distance < window)
        mask = bias.masked_fill(~expected, -float("inf"))[None, None]
        for rows in range(1, t + 1):
            for visibility in (Visibility(t, s, window=window), Visibility(t, s, causal=False, mask=mask)):
                covered = torch.zeros(t, s, dtype=torch.bool)
                for span in visibility.spans(rows):
                    covered[span.i0 : span.i1, span.k0 : span.k1] = True
                    for c0, c1, seen in span.parts:
                        covered[span.i0 : span.i1, c0:c1] = seen[0, 0]
                    if visibility.mask is not None:
                        handed = visibility.bias(span)
                        assert handed is not None
                        assert torch.equal(handed[0, 0], mask[0, 0, span.i0 : span.i1, span.k0 : span.k1])
                assert torch.equal(covered, expected), (window, rows)


@pytest.mark.parametrize("window", [None, 300])
def test_a_long_mask_is_the_structure_it_spells_out(window: int | None) -> None:
    """Longer than the blocks in which a mask is read."""
    t = 1100
    structure = Visibility(t, t, window=window)
    mask = torch.zeros(t, t).masked_fill(~structure.visible(0, t, 0, t)[0, 0], -1e4)[None, None]
    spelled = Visibility(t, t, causal=False, mask=mask)
    assert torch.equal(structure.counts, spelled.counts)
    assert torch.equal(structure.uniform, spelled.uniform)
    assert torch.equal(structure.columns[0], spelled.columns[0])
    torch.testing.assert_close(structure.columns[1], spelled.columns[1], rtol=1e-12, atol=1e-15)
    assert not spelled.has_bias
    mask[..., -1, -1] = 0.5
    assert Visibility(t, t, causal=False, mask=mask).has_bias


@pytest.mark.parametrize("slope", [0.5, 2.0**-8])
def test_a_distance_bias_hides_nothing(slope: float) -> None:
    """ALiBi over a causal mask: every past key counts, and the bias is handed out."""
    distance = torch.arange(40)[:, None] - torch.arange(40)
    mask = (-slope * distance.float()).masked_fill(distance < 0, torch.finfo(torch.float32).min)[None, None]
    visibility = Visibility(40, 40, causal=False, mask=mask)
    assert visibility.counts.flatten().tolist() == list(range(1, 41))
    assert visibility.has_bias


def test_blocks_read_no_more_keys_than_a_window_needs() -> None:
    visibility = Visibility(4096, 4096, window=128)
    spans = list(visibility.spans(64))
    assert max(span.k1 - span.k0 for span in spans) == 64 + 128 - 1
    assert all(c1 - c0 <= 64 + 128 - 1 for span in spans for c0, c1, _ in span.parts)


def test_a_causal_block_needs_a_mask_on_its_diagonal_only() -> None:
    for span in Visibility(1024, 1024).spans(128):
        assert [(c0, c1) for c0, c1, _ in span.parts] == [(span.i0, span.i1)]


def test_uniform_attention_of_a_causal_row_is_the_harmonic_number() -> None:
    n, null = Visibility(64, 64).columns
    assert n.flatten().tolist() == list(range(64, 0, -1))
    harmonic = sum(1 / i for i in range(1, 65))
    assert float(null[0, 0, 0]) == pytest.approx(harmonic, rel=1e-14)
    assert float(null[0, 0, -1]) == pytest.approx(1 / 64, rel=1e-13)


GOOD = torch.ones(1, 1, 4, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("window", {"window": 0}),
        ("window", {"window": -3}),
        ("mask", {"mask": GOOD[0]}),
        ("mask", {"mask": GOOD[0, 0]}),
        ("mask", {"mask": GOOD[..., :5]}),
        ("mask", {"mask": GOOD[:, :, :1]}),
        ("mask", {"mask": GOOD.transpose(-1, -2)}),
        ("real", {"real": torch.ones(6, dtype=torch.bool)}),
        ("real", {"real": torch.ones(1, 4, dtype=torch.bool)}),
        ("real", {"real": torch.ones(1, 1, 6, dtype=torch.bool)}),
    ],
)
def test_bad_inputs_name_the_argument(named: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"\b{named}\b") as error:
        Visibility(4, 6, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("named", "size", "arguments"),
    [
        ("window", (4, 6), {"causal": False, "window": 2}),
        ("mask", (4, 6), {"mask": GOOD.long()}),
        ("real", (4, 6), {"real": torch.ones(1, 6, dtype=torch.long)}),
        ("queries", (6, 4), {}),
    ],
)
def test_inputs_it_cannot_honour_are_refused(named: str, size: tuple[int, int], arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"\b{named}\b"):
        Visibility(*size, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", ["min", "-1e4", "-inf"])
def test_every_usual_hiding_value_hides_in_every_dtype(value: str, dtype: torch.dtype) -> None:
    """-1e4 is -9984 in bfloat16."""
    mask = torch.full((6, 6), HIDING[value](dtype), dtype=dtype).triu(1)[None, None]
    visibility = Visibility(6, 6, causal=False, mask=mask)
    assert visibility.counts.flatten().tolist() == [1, 2, 3, 4, 5, 6]
    assert not visibility.has_bias
