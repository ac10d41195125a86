"""The sizes of caches: the figures of the papers, and what each scheme may and may not change."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkgate.cache.schemes import Options, schemes
from sinkgate.cache.shape import CacheShape, LayerShape
from sinkgate.cache.sizes import (
    BITS,
    human,
    kv_bytes_per_token,
    latent_bytes_per_token,
    parse_count,
    quantised_bytes,
    quantised_bytes_per_token,
    state_bytes,
)
from sinkgate.errors import ArgumentError

KIB, MIB, GIB = 2**10, 2**20, 2**30
HYBRID = CacheShape.uniform(
    16, 24, 256, kv_heads=4, linear_layers=48, linear_heads=48, linear_k_dim=128, linear_v_dim=128
)
LLM67 = CacheShape.uniform(95, 64, 128, kv_heads=8)


def latent(layers: int) -> CacheShape:
    return CacheShape.uniform(layers, 128, 192, v_dim=128, latent=512, rotary=64)


def test_the_formulas_give_the_figures() -> None:
    assert kv_bytes_per_token(16, 24, 256) == 393_216 == 384 * KIB
    assert kv_bytes_per_token(16, 24, 256) * 262_144 == 96 * GIB
    assert kv_bytes_per_token(16, 4, 256) == 64 * KIB
    assert kv_bytes_per_token(16, 4, 256) * 262_144 == 16 * GIB
    assert kv_bytes_per_token(16, 1, 256) == 16 * KIB
    assert kv_bytes_per_token(16, 1, 256) * 262_144 == 4 * GIB
    assert kv_bytes_per_token(95, 8, 128) == 389_120
    assert kv_bytes_per_token(95, 64, 128) == 3_112_960
    assert kv_bytes_per_token(95, 8, 128) * 2**20 == 380 * GIB
    assert [latent_bytes_per_token(n) for n in (60, 61, 78)] == [69_120, 70_272, 89_856]
    assert round(100 * (69_120 / 389_120 - 1), 1) == -82.2
    assert latent_bytes_per_token(78) * 2**20 == 87.75 * GIB
    assert state_bytes(48, 48, 128, 128) == 144 * MIB
    assert kv_bytes_per_token(16, 4, 256) * (128 + 4) == 8.25 * MIB


def test_the_schemes_give_the_figures() -> None:
    found = schemes(HYBRID, Options(context=262_144))
    sizes = {name: (found[name].token_bytes, found[name].cache_bytes) for name in ("MHA", "GQA-4", "MQA")}
    assert sizes == {"MHA": (393_216, 96 * GIB), "GQA-4": (64 * KIB, 16 * GIB), "MQA": (16 * KIB, 4 * GIB)}
    assert found["this model"].cache_bytes == 16 * GIB
    assert found["this model"].state_bytes == found["MHA"].state_bytes == 144 * MIB
    assert found["this model"].total_bytes == 16 * GIB + 144 * MIB
    for context in (132, 262_144, 2**40):
        kept = schemes(HYBRID, Options(context=context))["sinks+recent"]
        assert (kept.token_bytes, kept.cache_bytes) == (0, 8.25 * MIB)
    found = schemes(LLM67, Options(context=2**20))
    assert found["this model"].token_bytes == 389_120
    assert found["MHA"].token_bytes == 3_112_960
    assert found["GQA-8"].cache_bytes == 380 * GIB
    for layers, size in ((60, 69_120), (61, 70_272), (78, 89_856)):
        found = schemes(latent(layers), Options(context=2**20))
        assert found["this model"].token_bytes == found["MLA"].token_bytes == size
        assert found["this model"].cache_bytes == size * 2**20
    assert found["this model"].cache_bytes == 87.75 * GIB
    assert schemes(LLM67, Options(context=1))["MLA"].token_bytes == latent_bytes_per_token(95)


def test_each_row_by_hand() -> None:
    # 2 layers that see all, 2 that see 100 tokens; 4 heads, 2 key-value heads of 8 + 6 numbers: 56 bytes a token
    shape = CacheShape.uniform(4, 4, 8, kv_heads=2, v_dim=6, sliding_layers=2, window=100)
    o = Options(context=1000, batch=3, sinks=2, recent=30, share=2, retrieval=0.25, top_k=10, bits=(32, 16))
    found = schemes(shape, dataclasses.replace(o, bits=(16, 32)))
    assert [row.name for row in found.rows] == [
        "this model", "no window", "MHA", "GQA-2", "MQA", "MLA", "window 100", "sinks+recent", "streaming heads",
        "top-10 reads", "2 layers share", "linear", "32 bits",
    ]  # fmt: skip
    assert found.left_out == {}
    sizes = {row.name: row.cache_bytes for row in found.rows}
    assert sizes["this model"] == sizes["GQA-2"] == 3 * 56 * (2 * 1000 + 2 * 100)
    assert sizes["no window"] == 3 * 56 * 4 * 1000
    assert sizes["MHA"] == 2 * sizes["this model"]
    assert sizes["MQA"] == sizes["this model"] // 2
    assert sizes["MLA"] == 3 * 2 * (512 + 64) * 2200
    assert sizes["window 100"] == 3 * 56 * 4 * 100
    assert sizes["sinks+recent"] == 3 * 56 * 4 * 32
    assert sizes["streaming heads"] == 3 * (28 * (1 * 1000 + 3 * 32) + 56 * 2 * 100)  # 1 head of 4, each 28 bytes
    assert sizes["top-10 reads"] == sizes["this model"]
    assert sizes["2 layers share"] == sizes["this model"] // 2
    assert sizes["linear"] == 0
    assert sizes["32 bits"] == 2 * sizes["this model"]
    reads = {row.name: row.read_bytes for row in found.rows}
    assert reads["top-10 reads"] == 3 * 56 * 4 * 10
    assert reads["2 layers share"] == reads["this model"] == sizes["this model"]
    assert found["linear"].total_bytes == reads["linear"] == 3 * 4 * 4 * 8 * 6 * 4  # four layers, four heads, FP32
    assert found["this model"].token_bytes == 2 * 56
    assert found["top-10 reads"].note.startswith("saves reads, not bytes")
    assert found["2 layers share"].note.startswith("saves bytes, not reads")
    wider = schemes(shape, dataclasses.replace(o, window=500, recent=198, bits=(16,)))  # no window of its own grows
    assert wider["window 500"].cache_bytes == 3 * 56 * (2 * 500 + 2 * 100)
    assert wider["sinks+recent"].cache_bytes == 3 * 56 * (2 * 200 + 2 * 100)
    wide = schemes(shape, o)
    assert [row.name for row in wide.rows][-1] == "16 bits"
    assert wide["this model"].cache_bytes == found["32 bits"].cache_bytes


def test_an_index_key_is_kept_and_read_whole() -> None:
    layer = LayerShape(heads=8, kv_heads=8, head_dim=24, v_dim=16, latent=32, rotary=8, index=4, top_k=5)
    found = schemes(CacheShape((layer,)), Options(context=100))
    assert found["this model"].token_bytes == 2 * (32 + 8 + 4)
    assert found["this model"].cache_bytes == 100 * 88
    assert found["this model"].read_bytes == 5 * 80 + 100 * 8
    assert found["top-2048 reads"].read_bytes == found["this model"].read_bytes
    assert found["MHA"].read_bytes == found["MHA"].cache_bytes == 100 * 8 * 40 * 2
    assert found.left_out == {"streaming heads": "a latent is one for all heads"}
    assert found["4 bits"].cache_bytes == quantised_bytes(100, 1, 0, 4, v_dim=32) + 100 * 2 * (8 + 4)


def test_what_has_no_row_is_said() -> None:
    state = CacheShape((LayerShape(heads=4, state_heads=4, k_dim=8, state_v_dim=8),))
    found = schemes(state, Options(context=10))
    assert [row.name for row in found.rows] == ["this model"]
    assert found["this model"].total_bytes == 4 * 8 * 8 * 4
    assert "the other schemes" in found.left_out
    assert schemes(CacheShape.uniform(2, 71, 64), Options(context=10)).left_out.keys() == {"GQA"}
    mistral = schemes(CacheShape.uniform(2, 4, 8, sliding_layers=2, window=5), Options(context=10))
    assert mistral.left_out == {"streaming heads": "every layer has a window"}
    both = LayerShape(heads=4, kv_heads=4, head_dim=8, v_dim=8, state_heads=2, k_dim=3, state_v_dim=5, conv=7)
    found = schemes(CacheShape((both,)), Options(context=10, state_bits=16))
    assert found["this model"].state_bytes == found["linear"].total_bytes == 2 * 3 * 5 * 2 + 7 * 2
    assert found["this model"].cache_bytes == 10 * 4 * 16 * 2


def counted(tokens: int, kv_heads: int, head_dim: int, v_dim: int, bits: int, group: int, residual: int) -> float:
    """The same, counted number by number: each is put into its group, each group has its scale and zero point."""
    whole = 0
    while whole + group <= tokens - residual:
        whole += group
    keys = {(h, t // group, c) for h in range(kv_heads) for t in range(whole) for c in range(head_dim)}
    values = {(h, t, c // group) for h in range(kv_heads) for t in range(whole) for c in range(v_dim)}
    bitcount = whole * kv_heads * (head_dim + v_dim) * bits + 32 * (len(keys) + len(values))
    return bitcount / 8 + (tokens - whole) * kv_heads * (head_dim + v_dim) * 2


@given(
    tokens=st.integers(1, 60), kv_heads=st.integers(1, 3), head_dim=st.integers(1, 9), v_dim=st.integers(1, 9),
    bits=st.sampled_from([2, 3, 4, 8]), group=st.integers(1, 9), residual=st.integers(0, 20),
)  # fmt: skip
def test_quantised_against_counting(**sizes: int) -> None:
    order = ("tokens", "kv_heads", "head_dim", "v_dim", "bits", "group", "residual")
    exact = counted(*(sizes[name] for name in order))
    assert 0 <= quantised_bytes(**sizes) - exact < 1


def test_quantised_rows() -> None:
    assert (
        quantised_bytes_per_token(1, 128, 2) / 256 * 8 == 2 + 1
    )  # a scale and a zero point for 32 numbers: one bit each
    assert quantised_bytes_per_token(1, 128, 3, group=64) / 256 * 8 == 3.5
    assert (
        quantised_bytes_per_token(1, 24, 8, group=32) == 48 + 24 / 32 * 4 + 4
    )  # an unfull group of values has its own
    found = schemes(LLM67, Options(context=32_768 + 128, bits=(2, 3, 4, 8, 16)))
    for bits in (2, 3, 4, 8):
        row = found[f"{bits} bits"]
        assert row.token_bytes == 389_120 * (bits + 1) / 16
        assert row.cache_bytes == 32_768 * row.token_bytes + 128 * 389_120 == row.read_bytes
        assert "keys per channel (32 tokens a group), values per token (32 channels a group)" in row.note
    assert "16 bits" not in [row.name for row in found.rows]


@given(
    context=st.integers(1, 10**6), layers=st.integers(1, 5), groups=st.integers(1, 4), kv_heads=st.integers(1, 4),
    retrieval=st.floats(0, 1), batch=st.integers(1, 3),
)  # fmt: skip
def test_order(context: int, layers: int, groups: int, kv_heads: int, retrieval: float, batch: int) -> None:
    shape = CacheShape.uniform(layers, groups * kv_heads, 16, kv_heads=kv_heads)
    found = schemes(shape, Options(context=context, retrieval=retrieval, batch=batch, bits=BITS))
    total = {row.name: row.total_bytes for row in found.rows}
    assert total["MQA"] <= total["this model"] <= total["MHA"]
    assert total["sinks+recent"] <= total["streaming heads"] <= total["this model"]
    assert total["2 bits"] <= total["3 bits"] <= total["4 bits"] <= total["8 bits"] <= total["this model"]
    assert all(row.read_bytes <= total["this model"] for row in found.rows if row.name.startswith("top"))
    assert all(row.total_bytes % batch == 0 for row in found.rows if row.name != "streaming heads")
    assert all(isinstance(row.total_bytes, int) for row in found.rows)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"context": 0}, "context"),
        ({"batch": -1}, "batch"),
        ({"recent": 0}, "recent"),
        ({"sinks": -1}, "sinks"),
        ({"window": 0}, "window"),
        ({"latent": -5}, "latent"),
        ({"top_k": 0}, "top_k"),
        ({"share": 0}, "share"),
        ({"group": 0}, "group"),
        ({"residual": -1}, "residual"),
        ({"retrieval": 1.5}, "from 0 to 1"),
        ({"retrieval": float("nan")}, "from 0 to 1"),
        ({"bits": (16, 5)}, "2, 3, 4, 8, 16, 32, got 5"),
        ({"bits": ()}, "bits"),
        ({"state_bits": 8}, "state_bits"),
        ({"context": 1.5}, "whole number"),
        ({"batch": True}, "whole number"),
    ],
)
def test_bad_options(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Options(**{"context": 10, **changes})  # type: ignore[arg-type]


def test_counts_and_units() -> None:
    said = {"262144": 2**18, "256k": 2**18, "1m": 2**20, "2**20": 2**20, "2^20": 2**20, " 8K ": 2**13, "1_000": 1000}
    assert {text: parse_count(text) for text in said} == said
    for text in ("many", "", "-5", "1.5k", "k", "2**", "**2", "2**3**4", "0x10", "1e6", "_1", "1g", "9" * 40):
        with pytest.raises(ArgumentError, match="such as 262144, 256k"):
            parse_count(text)
    for text in ("0", "0k", "2**49", "9**99999999", "99999999999999999**9", "999999999999m"):
        with pytest.raises(ArgumentError, match=r"from 1 to 2\*\*48"):
            parse_count(text)
    assert [human(size) for size in (0, 0.5, 1023, 1024, 3_112_960, 2**70)] == [
        "0 B", "0.5 B", "1023 B", "1 KiB", "2.969 MiB", "1024 EiB",
    ]  # fmt: skip
