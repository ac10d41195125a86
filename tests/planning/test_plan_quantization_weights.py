"""Weight arms: bytes counted by hand, never more than uniform, and as near to it as whole weights allow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sinkgate as sg
from models import tiny, tokenizer
from sinkgate.errors import ArgumentError
from sinkgate.hf.head_parts import layer_parts
from sinkgate.planning.quantization_found import outliers, promoted
from sinkgate.planning.quantization_record import CONTROL
from sinkgate.planning.quantization_spec import WeightSpec
from sinkgate.planning.quantization_weights import (
    fitting,
    matrices,
    matrix_bytes,
    uncounted_bytes,
    weight_arms,
    weight_bytes,
)
from sinkgate.quantization import Quantization

sys.path.insert(0, str(Path(__file__).parents[1] / "interventions"))
from planted import planted, texts


@pytest.fixture(scope="module")
def massive() -> tuple[Any, Any]:
    model = planted(massive=3000.0)
    return model, sg.diagnose(model, tokenizer(), texts(4), tokens=100, samples=4)


def counted(model: Any, spec: WeightSpec) -> int:
    """Every number and every scale, one by one."""
    bits = 0
    hows = dict(spec.modules)
    for name, module in model.named_modules():
        if name not in hows:
            continue
        weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
        kind = [[str(hows[name])] * weight.shape[1] for _ in range(weight.shape[0])]
        for part in spec.parts:
            if part.module == name:
                for a, b in part.spans:
                    for i in range(a, b):
                        for row in kind if part.axis == "columns" else [kind[i]]:
                            for j in [i] if part.axis == "columns" else range(len(row)):
                                row[j] = str(part.how)
        for row in kind:
            for how in sorted(set(row)):
                q, n = Quantization.from_text(how), row.count(how)
                bits += n * q.bits + 16 * (1 if q.group is None else n // q.group)
                assert q.group is None or n % q.group == 0
    assert bits % 8 == 0
    return bits // 8


def test_bytes_are_those_that_are_counted_one_by_one(massive: tuple[Any, Any]) -> None:
    model, diagnosis = massive
    for group in (8, 16):
        arms = weight_arms(model, diagnosis, layer_parts(model), bits=4, group=group, first=2)
        found = {a.name: a for a in arms.planned}
        for arm in arms.planned:
            assert isinstance(arm.spec, WeightSpec)
            extra = 2 * 3 * 96 * 2 if arm.spec.prefix else 0  # tokens, layers, numbers, bytes
            assert arm.size == counted(model, arm.spec) + extra
            assert arm.size <= found["uniform"].size
            assert arm.size > 0.97 * found["uniform"].size  # one weight's groups make less than that
        assert set(found) | set(arms.skipped) >= {"uniform", "preserve-first-2", "sink-aware", "per-head"}
    assert uncounted_bytes(model) == 2 * (
        sum(p.numel() for p in model.parameters()) - sum(m.rows * m.columns for m in matrices(model))
    )


def test_what_is_in_more_bits(massive: tuple[Any, Any]) -> None:
    model, diagnosis = massive
    parts = layer_parts(model)
    arms = {a.name: a for a in weight_arms(model, diagnosis, parts, bits=4, group=8, first=2).planned}
    there = outliers(diagnosis)
    assert (there.first, there.last) == (1, 3)
    assert 11 in there.channels
    spec: Any = arms["sink-aware"].spec
    more = {name for name, how in spec.modules if how.bits == 8}
    assert more == {"transformer.h.0.attn.c_proj", "transformer.h.0.mlp.c_proj"}  # they stay to the end of the model
    hows = {name: how.group for name, how in spec.modules if how.bits == 4}
    assert {name.split(".")[2] for name, group in hows.items() if group != 8} == {"1"}  # the middle pays
    chosen = promoted(diagnosis, parts)
    assert len(chosen.groups) == len(chosen.others) == 4  # a quarter of 18
    assert not set(chosen.groups) & set(chosen.others)
    by_head, control = arms["per-head"].spec, arms[CONTROL].spec
    assert isinstance(by_head, WeightSpec)
    assert isinstance(control, WeightSpec)
    assert len(by_head.heads) == len(control.heads) > 0
    assert set(by_head.heads) <= {(g.layer, g.kv_head) for g in chosen.groups}
    assert {p.axis for p in by_head.parts} == {"rows", "columns"}
    layer, head = by_head.heads[0]
    fused = next(p for p in by_head.parts if p.module == f"transformer.h.{layer}.attn.c_attn")
    for place in range(3):  # queries, keys and values of a head of 8 channels
        at = 48 * place + 8 * head
        assert any(a <= at and at + 8 <= b for a, b in fused.spans)
    mass = [g.mass for g in chosen.groups]
    assert mass == sorted(mass, reverse=True)
    assert min(mass) >= max(g.mass for g in chosen.others)


def test_a_fresh_model_has_no_outliers_and_no_record_says_so() -> None:
    model = tiny("llama")
    parts = layer_parts(model)
    arms = weight_arms(model, None, parts, bits=4, group=8, first=2)
    assert [a.name for a in arms.planned] == ["uniform", "preserve-first-2"]
    assert set(arms.skipped) == {"sink-aware", "per-head"}
    assert "there is no record" in arms.skipped["sink-aware"]
    diagnosis = sg.diagnose(model, tokenizer(), texts(2), tokens=64, samples=2)
    arms = weight_arms(model, diagnosis, parts, bits=4, group=8, first=2)
    assert "no massive activation" in arms.skipped["sink-aware"]
    arms = weight_arms(
        model, diagnosis, parts, bits=4, group=64, first=2
    )  # groups that cannot grow: nothing to pay with
    assert "larger groups" in arms.skipped["preserve-first-2"]
    assert "smaller groups" in arms.skipped["per-head"]
    keys = sg.diagnose(model, tokenizer(), texts(2), tokens=64, samples=2, detail="keys")
    arms = weight_arms(model, keys, parts, bits=4, group=8, first=2)
    assert "detail='full'" in arms.skipped["sink-aware"]


@given(st.integers(1, 300), st.integers(2, 64), st.integers(2, 8))
def test_groups_divide_and_are_at_least_as_large(columns: int, group: int, bits: int) -> None:
    how = fitting(columns, group, bits)
    size = how.group or columns
    assert columns % size == 0
    assert size >= min(group, columns)
    assert not [n for n in range(group, size) if columns % n == 0]
    weight = torch.randn(3, columns)
    sg.quantization.quantize(weight, how, "weights")  # which refuses groups that do not divide
    assert matrix_bytes(3, columns, how) == -(-3 * columns * bits // 8) + 3 * (columns // size) * 2
    with pytest.raises(ArgumentError, match="symmetric"):
        matrix_bytes(3, columns, Quantization(4, symmetric=False, granularity="channel"))


@settings(max_examples=15, deadline=None)
@given(bits=st.integers(2, 7), group=st.sampled_from([4, 6, 8, 12, 16, 24]), first=st.integers(1, 12))
def test_no_arm_takes_more_than_uniform(massive: tuple[Any, Any], bits: int, group: int, first: int) -> None:
    model, diagnosis = massive
    parts = layer_parts(model)
    arms = weight_arms(model, diagnosis, parts, bits=bits, group=group, first=first)
    for arm in arms.planned:
        assert isinstance(arm.spec, WeightSpec)
        extra = first * 3 * 96 * 2 if arm.spec.prefix else 0
        assert arm.size == weight_bytes(matrices(model), arm.spec) + extra <= arms.planned[0].size
