"""A gate merged into the query projection is the gate, as transformers and the authors read it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

import models
from sinkgate.errors import ArgumentError, NonFiniteError, UnsupportedError
from sinkgate.gate import LAYOUTS, Gate, split_query_and_gate
from sinkgate.gate.merge import MergedGate, merge_gate, relayout, split_gate

DIM, HEADS, KV_HEADS, HEAD_DIM = 48, 6, 2, 8  # of models.GROUPED
SIZES = {"heads": HEADS, "kv_heads": KV_HEADS}
GATES = {
    "elementwise": Gate(),
    "preserve": Gate(preserve=2.0),
    "preserve 0": Gate(preserve=0.0),
    "shared": Gate(shared=True),
    "shared, preserve": Gate(shared=True, preserve=-1.3),
    "no input": Gate(input_dependent=False),
    "no input, shared, preserve": Gate(input_dependent=False, shared=True, preserve=0.7),
}
PER_HEAD = {name: Gate(**gate.to_json() | {"elementwise": False}) for name, gate in GATES.items()}


# ---- the two orders ----------------------------------------------------------------------------------------------


@st.composite
def shapes(draw: Any) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 4))
    return {
        "heads": kv_heads * draw(st.integers(1, 4)),
        "kv_heads": kv_heads,
        "head_dim": draw(st.integers(1, 5)),
        "elementwise": draw(st.booleans()),
    }


@settings(max_examples=80, deadline=None)
@given(
    shape=shapes(),
    dim=st.one_of(st.none(), st.integers(1, 4)),
    layouts=st.permutations([*LAYOUTS]),
    dtype=st.sampled_from([torch.float64, torch.bfloat16, torch.int32, torch.int8]),
)
def test_relayout_is_a_permutation_and_its_own_way_back(
    shape: dict[str, Any], dim: int | None, layouts: list[str], dtype: torch.dtype
) -> None:
    there, back = layouts
    rows = shape["heads"] * (shape["head_dim"] * 2 if shape["elementwise"] else shape["head_dim"] + 1)
    raw = torch.randint(-(2**31), 2**31 - 1, (rows,) if dim is None else (rows, dim))
    x = raw.view(torch.float64).clone() if dtype == torch.float64 else raw.to(torch.int32).to(dtype)
    y = relayout(x, **shape, layout_from=there, layout_to=back)
    z = relayout(y, **shape, layout_from=back, layout_to=there)
    bits = {torch.float64: torch.int64, torch.bfloat16: torch.int16}.get(dtype, dtype)
    assert torch.equal(z.view(bits), x.view(bits))
    assert torch.equal(relayout(x, **shape, layout_from=there, layout_to=there).view(bits), x.view(bits))
    # each order's rows, numbered: the same queries and gates wherever they stand
    number = torch.arange(rows)
    other = relayout(number, **shape, layout_from=there, layout_to=back)
    assert torch.equal(other.sort().values, number)
    assert torch.equal(x[other].view(bits), y.view(bits))
    for a, b in zip(
        split_query_and_gate(number, **shape, layout=there),
        split_query_and_gate(other, **shape, layout=back),
        strict=True,
    ):
        assert torch.equal(a, b)


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes(), dim=st.integers(1, 4), layout=st.sampled_from([*LAYOUTS]),
    biases=st.tuples(st.booleans(), st.booleans()), shared=st.booleans(),
)  # fmt: skip
def test_split_gives_back_what_was_merged(
    shape: dict[str, Any], dim: int, layout: str, biases: tuple[bool, bool], shared: bool
) -> None:
    heads, kv_heads, head_dim = (shape[k] for k in ("heads", "kv_heads", "head_dim"))
    gate = Gate(elementwise=shape["elementwise"], shared=shared)
    rows, features = heads * head_dim, gate.features(dim, heads, kv_heads, head_dim)
    q, g, o = torch.randn(rows, dim), torch.randn(features, dim), torch.randn(dim, rows)
    q_bias, gate_bias = (torch.randn(n) if b else None for n, b in zip((rows, features), biases, strict=True))
    merged = merge_gate(
        gate, q, g, o, heads=heads, kv_heads=kv_heads, q_bias=q_bias, gate_bias=gate_bias, layout=layout
    )
    times = heads if shared else 1  # a shared gate's rows, once per head
    found = split_gate(merged)
    assert torch.equal(found[0], q)
    assert torch.equal(found[1], g.repeat(times, 1))
    assert torch.equal(merged.o_weight, o)
    if not any(biases):
        assert merged.q_bias is None
        assert found[2:] == (None, None)
    else:
        assert torch.equal(found[2], torch.zeros(rows) if q_bias is None else q_bias)
        assert torch.equal(found[3], torch.zeros(features * times) if gate_bias is None else gate_bias.repeat(times))
    for other in LAYOUTS:
        moved = relayout(merged.q_weight, **shape, layout_from=layout, layout_to=other)
        same = merge_gate(
            gate, q, g, o, heads=heads, kv_heads=kv_heads, q_bias=q_bias, gate_bias=gate_bias, layout=other
        )
        assert torch.equal(same.q_weight, moved)


# ---- whole layers ------------------------------------------------------------------------------------------------


class Case:
    """A Qwen3 attention layer, an input, and a gate's parameters, float64."""

    def __init__(self, gate: Gate, *, bias: bool) -> None:
        config = models.CONFIGS["qwen3"]()
        config._attn_implementation = "sdpa"  # the eager softmax is in float32
        config.attention_bias = bias
        self.gate, self.bias = gate, bias
        self.layer = Qwen3Attention(config, 0).double().eval()
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.normal_(0, 0.5)
            for norm in (self.layer.q_norm, self.layer.k_norm):
                # powers of two: both norms work in float32, where w·x and (1 + (w − 1))·x must be the same number
                norm.weight.copy_(2.0 ** torch.randint(-2, 3, (HEAD_DIM,)))
        features = gate.features(DIM, HEADS, KV_HEADS, HEAD_DIM)
        self.weight = torch.randn(features, DIM, dtype=torch.float64) if gate.input_dependent else None
        self.gate_bias = torch.randn(features, dtype=torch.float64) if bias or not gate.input_dependent else None
        self.x = torch.randn(2, 11, DIM, dtype=torch.float64)
        angle = torch.arange(11)[None, :, None] * 10.0 ** -torch.arange(HEAD_DIM // 2).double()
        self.rope = (torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin())

    def value(self) -> Tensor:
        """The gate by its formula: ``[batch, length, heads or 1, head_dim or 1]``."""
        logits = torch.zeros((), dtype=torch.float64)
        if self.weight is not None:
            logits = logits + self.x @ self.weight.T
        if self.gate_bias is not None:
            logits = logits + self.gate_bias
        if self.gate.preserve is not None:
            b = torch.tensor(self.gate.preserve, dtype=torch.float64)
            value = torch.sigmoid(b + logits) / torch.sigmoid(b)
        else:
            value = torch.sigmoid(logits)
        return value.expand(2, 11, -1).unflatten(-1, (1 if self.gate.shared else HEADS, -1))

    def merged(self, layout: str = "per_head") -> MergedGate:
        p = self.layer
        return merge_gate(
            self.gate, p.q_proj.weight, self.weight, p.o_proj.weight, **SIZES, q_bias=p.q_proj.bias,
            gate_bias=self.gate_bias, layout=layout,
        )  # fmt: skip


@torch.no_grad()
def gated(layer: nn.Module, case: Case, value: Any) -> Tensor:
    """x → attention → ⊙ ``value()`` → o_proj."""

    def multiply(module: nn.Module, args: tuple[Tensor]) -> Tensor:
        return (args[0].unflatten(-1, (HEADS, HEAD_DIM)) * value()).flatten(-2)

    hook = layer.o_proj.register_forward_pre_hook(multiply)
    try:
        return layer(case.x, case.rope, None)[0]
    finally:
        hook.remove()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_transformers_computes_the_gate(name: str, bias: bool) -> None:
    case = Case(GATES[name], bias=bias)
    expected = gated(case.layer, case, case.value)
    merged = case.merged()

    config = models.CONFIGS["qwen3_next"]()
    config._attn_implementation = "sdpa"
    config.attention_bias = merged.q_bias is not None
    theirs = Qwen3NextAttention(config, 1).double().eval()
    state = {k: v.clone() for k, v in case.layer.state_dict().items()}
    state["q_proj.weight"], state["o_proj.weight"] = merged.q_weight, merged.o_weight
    if merged.q_bias is not None:
        state["q_proj.bias"] = merged.q_bias
        for part in ("k_proj", "v_proj", "o_proj"):
            state.setdefault(f"{part}.bias", torch.zeros(len(state[f"{part}.weight"]), dtype=torch.float64))
    for norm in ("q_norm.weight", "k_norm.weight"):
        state[norm] = state[norm] - 1  # theirs is zero-centred
    theirs.load_state_dict(state)  # strict: nothing missing, nothing left over
    with torch.no_grad():
        found = theirs(case.x, case.rope, None)[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    ungated = case.layer(case.x, case.rope, None)[0].detach()
    assert float((ungated - expected).abs().max()) > 0.1  # the gate did something


class Fused(nn.Module):
    """The merged ``q_proj`` read as the authors do: queries out, the gate kept."""

    def __init__(self, merged: MergedGate) -> None:
        super().__init__()
        self.merged = merged
        self.gate = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        m = self.merged
        q, self.gate = split_query_and_gate(
            nn.functional.linear(x, m.q_weight, m.q_bias), heads=m.heads, kv_heads=m.kv_heads, head_dim=m.head_dim,
            elementwise=m.elementwise, layout=m.layout,
        )  # fmt: skip
        return q.flatten(-2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate", [*GATES.values(), *PER_HEAD.values()], ids=str)
def test_both_layouts_read_as_the_layout_says(gate: Gate, bias: bool, layout: str) -> None:
    case = Case(gate, bias=bias)
    expected = gated(case.layer, case, case.value)
    merged = case.merged(layout)
    fused = Fused(merged)
    case.layer.q_proj = fused
    case.layer.o_proj.weight.data = merged.o_weight
    found = gated(case.layer, case, lambda: torch.sigmoid(fused.gate))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_two_layouts_are_not_the_same_rows() -> None:
    case = Case(Gate(), bias=True)
    one, other = case.merged("per_head"), case.merged("per_group")
    assert one.q_weight.shape == other.q_weight.shape
    assert not torch.equal(one.q_weight, other.q_weight)
    # as transformers and as the authors (view(…, kv_heads, −1).split(group·head_dim)) cut them
    per_head = one.q_weight.view(HEADS, 2, HEAD_DIM, DIM)
    per_group = other.q_weight.view(KV_HEADS, 2, HEADS // KV_HEADS, HEAD_DIM, DIM)
    for i, whole in enumerate((case.layer.q_proj.weight, case.weight)):
        assert torch.equal(per_head[:, i].reshape(-1, DIM), whole)
        assert torch.equal(per_group[:, i].reshape(-1, DIM), whole)


def test_split_gate_of_a_merged_preserve_is_a_bare_gate_of_the_same_function() -> None:
    case = Case(Gate(preserve=2.0), bias=False)
    merged = case.merged("per_group")
    q, weight, q_bias, gate_bias = split_gate(merged)
    assert torch.equal(q, case.layer.q_proj.weight)
    assert torch.equal(weight, case.weight)
    assert not q_bias.any()
    assert torch.equal(gate_bias, torch.full_like(gate_bias, 2.0))
    again = merge_gate(
        Gate(), q, weight, merged.o_weight, **SIZES, q_bias=q_bias, gate_bias=gate_bias, layout="per_group"
    )
    for name in ("q_weight", "q_bias", "o_weight"):
        assert torch.equal(getattr(again, name), getattr(merged, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("b", [2.0, -1.3, 0.1])
def test_what_preserve_rounds(dtype: torch.dtype, b: float) -> None:
    """At W = 0 the gate is σ(b₀) times o_weight / σ(b₀): o_weight up to the rounding that the docstring states."""
    q, o = torch.randn(48, 4, dtype=dtype), torch.randn(5, 48, dtype=dtype)
    merged = merge_gate(Gate(preserve=b), q, torch.zeros_like(q), o, **SIZES)
    assert merged.q_weight.dtype == merged.o_weight.dtype == merged.q_bias.dtype == dtype
    gate_bias = split_gate(merged)[3].double()
    effect = merged.o_weight.double() * torch.sigmoid(gate_bias)
    assert float(((effect - o.double()) / o.double()).abs().max()) <= torch.finfo(dtype).eps


def test_what_is_given_back_is_detached_and_the_arguments_stay() -> None:
    case = Case(Gate(preserve=1.0), bias=True)
    before = {k: v.clone() for k, v in case.layer.state_dict().items()}
    merged = case.merged()
    assert not any(x.requires_grad for x in (merged.q_weight, merged.q_bias, merged.o_weight))
    assert all(torch.equal(v, before[k]) for k, v in case.layer.state_dict().items())


# ---- refusals ----------------------------------------------------------------------------------------------------


def merge(gate: Gate | None = None, **changed: Any) -> MergedGate:
    q, o = torch.randn(48, 5), torch.randn(5, 48)
    args: dict[str, Any] = {"q_weight": q, "gate_weight": torch.randn(48, 5), "o_weight": o, **SIZES}
    return merge_gate(Gate() if gate is None else gate, **args | changed)


@pytest.mark.parametrize(
    ("gate", "got"),
    [
        *((Gate(p), f"got position='{p}'") for p in ("G2", "G3", "G4", "G5")),
        (Gate(activation="silu"), "got activation='silu'"),
        (Gate(activation="half_sigmoid"), "got activation='half_sigmoid'"),
        (Gate(additive=True), "got additive=True"),
    ],
)
def test_gates_that_the_public_form_cannot_state(gate: Gate, got: str) -> None:
    with pytest.raises(UnsupportedError, match=r"only Y ⊙ σ\(x W_θᵀ \+ bias\) at G1 can be merged") as error:
        merge(gate)
    assert got in str(error.value)
    assert "\n" not in str(error.value)


RELAYOUT: dict[str, Any] = {
    **SIZES, "head_dim": 8, "elementwise": True, "layout_from": "per_head", "layout_to": "per_group",
}  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: merge(layout="odd"), "layout must be one of per_head, per_group, got 'odd'"),
        (lambda: merge(kv_heads=4), "kv_heads must divide heads, got heads=6, kv_heads=4"),
        (lambda: merge(kv_heads=0), "kv_heads must divide heads, got heads=6, kv_heads=0"),
        (lambda: merge(q_weight=torch.zeros(47, 5)), "q_weight must have a multiple of heads=6 rows, got 47"),
        (lambda: merge(q_weight=torch.zeros(48)), r"q_weight must be \[any, any\], got \[48\]"),
        (lambda: merge(Gate(elementwise=False)), r"gate_weight must be \[6, 5\], got \[48, 5\]"),
        (lambda: merge(Gate(shared=True)), r"gate_weight must be \[8, 5\], got \[48, 5\]"),
        (lambda: merge(o_weight=torch.zeros(48, 5)), r"o_weight must be \[any, 48\], got \[48, 5\]"),
        (lambda: merge(q_bias=torch.zeros(8)), r"q_bias must be \[48\], got \[8\]"),
        (lambda: merge(gate_bias=torch.zeros(1, 48)), r"gate_bias must be \[48\], got \[1, 48\]"),
        (lambda: merge(gate_weight=None), "gate_weight is None, which only a gate with input_dependent=False may have"),
        (lambda: merge(Gate(input_dependent=False)), "input_dependent=False: pass gate_weight=None"),
        (lambda: merge(Gate(input_dependent=False), gate_weight=None), "and the gate's logits as gate_bias"),
        (lambda: merge(gate_weight=torch.zeros(48, 5).double()), "one floating dtype on one device, got q_weight torch.float32 on cpu, gate_weight torch.float64 on cpu"),
        (lambda: merge(**{k: torch.ones(s, dtype=torch.int8) for k, s in (("q_weight", (48, 5)), ("gate_weight", (48, 5)), ("o_weight", (5, 48)))}), "one floating dtype"),
        (lambda: relayout(torch.zeros(95, 5), **RELAYOUT), r"q_weight_or_bias must be \[96, any\], got \[95, 5\]"),
        (lambda: relayout(torch.zeros(6), **RELAYOUT), r"q_weight_or_bias must be \[96\], got \[6\]"),
        (lambda: relayout(torch.zeros(()), **RELAYOUT), r"q_weight_or_bias must be \[96, any\], got \[\]"),
        (lambda: relayout(torch.zeros(96), **RELAYOUT | {"layout_to": "odd"}), "layout must be one of"),
        (lambda: relayout(torch.zeros(96), **RELAYOUT | {"heads": 0}), "kv_heads must divide heads, got heads=0"),
        (lambda: MergedGate(torch.zeros(95, 5), None, torch.zeros(5, 48), "per_head", 6, 2, 8, True), r"q_weight must be \[96, any\]"),
        (lambda: MergedGate(torch.zeros(96, 5), torch.zeros(6), torch.zeros(5, 48), "per_head", 6, 2, 8, True), r"q_bias must be \[96\]"),
        (lambda: MergedGate(torch.zeros(96, 5), None, torch.zeros(5, 48), "odd", 6, 2, 8, True), "layout must be one of"),
    ],
)  # fmt: skip
def test_errors(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("dtype", "b"), [(torch.float16, -12.0), (torch.float16, -15.0)])
def test_a_factor_out_of_range_is_an_error(dtype: torch.dtype, b: float) -> None:
    q, o = torch.ones(48, 5, dtype=dtype), torch.ones(5, 48, dtype=dtype)
    with pytest.raises(NonFiniteError, match=rf"o_weight / σ\({b}\) is not finite in {dtype}: merge in a wider dtype"):
        merge_gate(Gate(preserve=b), q, q, o, **SIZES)
