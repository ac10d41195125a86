"""Policies inside a model: heavy hitters, heads and layers of their own, dynamic ones, sinks by id and folded sinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from streams import band, exact, in_parts, masked, rotated_afresh
from torch import Tensor, nn

import sinkgate as sg
from cache.brute import Fixed, Heavy, first_with
from models import tiny
from sinkgate.cache import Dense, Dynamic, HeavyHitters, PerHead, PerLayer, Policy, Quantized, Recent, Sinks
from sinkgate.cache.quantized_bank import stepwise
from sinkgate.errors import ArgumentError, UnsupportedError
from sinkgate.hf.anatomy import reading
from sinkgate.hf.layers import attention_layers
from sinkgate.hf.rotary import KEYWORD, find_rotations
from sinkgate.hf.stream_files import load_stream, save_stream

T = 36
IDS = torch.randint(0, 96, (1, T), generator=torch.Generator().manual_seed(5))
SIZES = [[1], [T], [7], [3, 1, 11, 2]]
BOTH = ["slots", "original"]
CLOSE = {"llama": 1e-11, "gpt_oss": 1e-11, "gemma2": 1e-6}  # whose eager softmax is in float32


def model(name: str = "llama") -> Any:
    return tiny(name, attn="eager" if name in ("gpt_oss", "gemma2") else "sdpa", dtype=torch.float64)


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Texts of several lengths, padded on the left, and their mask."""
    longest = max(len(x) for x in rows)
    ids = torch.stack([torch.cat([torch.full((longest - len(x),), 95), x]) for x in rows])
    mask = torch.stack([torch.arange(longest) >= longest - len(x) for x in rows]).long()
    return ids, mask


def in_padded_parts(m: nn.Module, ids: Tensor, mask: Tensor, cache: Any, sizes: Sequence[int]) -> Tensor:
    out, i, parts = [], 0, list(sizes)
    with torch.no_grad():
        while i < ids.shape[1]:
            j = i + (parts.pop(0) if len(parts) > 1 else parts[0])
            out.append(m(ids[:, i:j], attention_mask=mask[:, :j], cache=cache).logits)
            i = j
    return torch.cat(out, 1)


# ---- references -----------------------------------------------------------------------------------------------------


class Loops:
    """Attention of a whole model, query by query.

    Args:
        m: the model.
        query: layer, row, key-value head, query, and the scores of its group over all keys up to it ``[group, t + 1]``
            (learned sinks apart) → what each of the group reads, bool of the same shape.
        told: layer, row, head, query and the weights of those keys ``[group, t + 1]``.
        slots: positions are counted among the keys that are read, the same for all of the group.
    """

    def __init__(self, m: nn.Module, query: Callable[..., Tensor], told: Callable[..., None], slots: bool) -> None:
        self.layers = {id(a.module): a.layer for a in attention_layers(m)}
        self.omega = {i: r.omega for i, r in find_rotations(m).items() if r is not None and not isinstance(r, str)}
        self.query, self.told, self.slots = query, told, slots

    def turn(self, layer: int, x: Tensor, places: Tensor) -> Tensor:
        omega = self.omega[layer]
        n = len(omega)
        z = torch.complex(x[..., :n], x[..., n : 2 * n]) * torch.exp(1j * places[:, None].double() * omega)
        return torch.cat([z.real, z.imag, x[..., 2 * n :]], -1)

    def attend(self, function: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        q, k, v = args[:3]
        layer = self.layers[id(module)]
        if kwargs.get("sliding_window"):
            return function(module, *args, **kwargs)
        (b, h, n, _), kv = q.shape, k.shape[1]
        group, cap, learned = h // kv, kwargs.get("softcap"), kwargs.get("s_aux")
        out = torch.zeros(b, h, n, v.shape[3], dtype=v.dtype)

        def score(x: Tensor, keys: Tensor) -> Tensor:
            s = x @ keys.T * kwargs["scaling"]
            return cap * torch.tanh(s / cap) if cap else s

        for row in range(b):
            for j in range(kv):
                mine = slice(j * group, (j + 1) * group)
                for t in range(n):
                    keys, queries = k[row, j, : t + 1], q[row, mine, t]
                    seen = self.query(layer, row, j, t, lambda x=queries, y=keys: score(x, y))
                    if self.slots:
                        places = seen[0].cumsum(0) - 1
                        keys = self.turn(layer, keys, places)
                        queries = self.turn(layer, queries, places[-1:])
                    s = score(queries, keys).masked_fill(~seen, -math.inf)
                    if learned is not None:
                        s = torch.cat([s, learned[mine, None].to(s.dtype)], -1)
                    weights = torch.softmax(s, -1)[:, : t + 1]
                    self.told(layer, row, j, t, weights)
                    out[row, mine, t] = weights @ v[row, j, : t + 1]
        return out.transpose(1, 2), None


@contextmanager
def unrotated(m: nn.Module, found: Any) -> Iterator[None]:
    """Layers without a window are handed cosines of 1: their queries and keys come raw."""
    hooks = []
    for a in attention_layers(m):
        if getattr(a.module, "sliding_window", None):
            continue

        def still(_m: nn.Module, args: Any, kwargs: Any, scale: float = found[a.layer].scale) -> Any:
            cos, sin = kwargs[KEYWORD]
            return args, {**kwargs, KEYWORD: (torch.full_like(cos, scale), torch.zeros_like(sin))}

        hooks.append(a.module.register_forward_pre_hook(still, with_kwargs=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def by_loops(m: nn.Module, ids: Tensor, query: Any, told: Any = lambda *_: None, *, slots: bool = False) -> Tensor:
    loops, found = Loops(m, query, told, slots), find_rotations(m)
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(exact(m))
        if slots:
            stack.enter_context(unrotated(m, found))
        stack.enter_context(reading(m, loops))
        return m(ids, use_cache=False).logits


def chosen(m: nn.Module, ids: Tensor, choice: Callable[[int, int, int], Any], *, slots: bool) -> Tensor:
    """Logits where each layer, row and key-value head has a choice of its own (:class:`cache.brute.Fixed`, ``Heavy``)."""
    kept: dict[tuple[int, int, int], Any] = {}

    def query(layer: int, row: int, j: int, t: int, _scores: Any) -> Tensor:
        seen = torch.zeros(6 // 2, t + 1, dtype=torch.bool)
        seen[:, kept.setdefault((layer, row, j), choice(layer, row, j)).see(t)] = True
        return seen

    def told(layer: int, row: int, j: int, t: int, weights: Tensor) -> None:
        mass = weights.sum(0).tolist()
        kept[layer, row, j].got(list(range(t + 1)), mass)

    return by_loops(m, ids, query, told, slots=slots)


def under(m: nn.Module, ids: Tensor, mask: Callable[[int], Tensor]) -> Tensor:
    """Logits of one pass whose layers each have a mask ``[heads, t, t]``, with the model's own attention function."""
    layers = {id(a.module): a.layer for a in attention_layers(m)}

    class Mask:
        def attend(self, function: Any, module: nn.Module, q: Any, k: Any, v: Any, _mask: Any, **kwargs: Any) -> Any:
            return function(module, q, k, v, mask(layers[id(module)])[None], **kwargs)

    with torch.no_grad(), exact(m), reading(m, Mask()):
        return m(ids, use_cache=False).logits


def weights_of(m: nn.Module, ids: Tensor) -> dict[int, Tensor]:
    """Layer → the weights ``[h, t, t]`` of an ordinary pass, by hand."""
    found: dict[int, Tensor] = {}
    layers = {id(a.module): a.layer for a in attention_layers(m)}

    class Look:
        def attend(self, function: Any, module: nn.Module, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            s = q[0] @ k[0].repeat_interleave(q.shape[1] // k.shape[1], 0).transpose(-1, -2) * kwargs["scaling"]
            n = s.shape[-1]
            found[layers[id(module)]] = torch.softmax(s.masked_fill(~band(n, n, 0), -math.inf), -1)
            return function(module, q, k, v, *args, **kwargs)

    with torch.no_grad(), exact(m), reading(m, Look()):
        m(ids, use_cache=False)
    return found


# ---- heavy hitters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", BOTH)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_heavy_hitters_in_any_parts(name: str, positions: str) -> None:
    m = model(name)
    policy = Recent(6) + HeavyHitters(5) + Sinks(2)
    want = chosen(m, IDS, lambda *_: Heavy(6, 5, lambda p: p < 2), slots=positions == "slots")
    plain = chosen(m, IDS, lambda *_: Fixed(6, lambda p: p < 2), slots=positions == "slots")
    assert (want - plain).abs().max() > 0.01  # the held ones are read
    for sizes in SIZES:
        with sg.streaming(m, policy, positions=positions) as cache:
            got = in_parts(m, IDS, cache, sizes)
            assert cache.held() == 13
        assert (got - want).abs().max() < CLOSE[name], sizes
    with sg.streaming(m, policy, positions=positions, chunk=4) as cache:
        assert (in_parts(m, IDS, cache, [T]) - want).abs().max() < CLOSE[name]


@pytest.mark.parametrize("positions", BOTH)
@pytest.mark.parametrize("sizes", [[1], [5], [40]], ids=str)
def test_heavy_hitters_of_a_batch(sizes: list[int], positions: str) -> None:
    m = model()
    rows = [IDS[0, :30], IDS[0, 7:], IDS[0, 3:20]]
    ids, mask = padded(rows)
    policy = Recent(4) + HeavyHitters(3) + Sinks(1)
    with sg.streaming(m, policy, positions=positions) as cache:
        got = in_padded_parts(m, ids, mask, cache, sizes)
    for i, row in enumerate(rows):
        want = chosen(m, row[None], lambda *_: Heavy(4, 3, lambda p: p < 1), slots=positions == "slots")
        assert (got[i, -len(row) :] - want[0]).abs().max() < 1e-11


def test_what_counts_is_the_mass_of_the_group_and_not_of_one_head() -> None:
    """With six query heads over two key heads, one head's favourites differ from those of all three."""

    class First(Heavy):
        """Counts the first query head only: told by the layer below."""

    m = model()
    one: dict[Any, Any] = {}

    def query(layer: int, row: int, j: int, t: int, _s: Any) -> Tensor:
        seen = torch.zeros(3, t + 1, dtype=torch.bool)
        seen[:, one.setdefault((layer, j), First(6, 5)).see(t)] = True
        return seen

    def told(layer: int, _row: int, j: int, t: int, weights: Tensor) -> None:
        one[layer, j].got(list(range(t + 1)), weights[0].tolist())

    wrong = by_loops(m, IDS, query, told)
    with sg.streaming(m, Recent(6) + HeavyHitters(5), positions="original") as cache:
        got = in_parts(m, IDS, cache, [T])
    assert (got - wrong).abs().max() > 1e-3
    assert (got - chosen(m, IDS, lambda *_: Heavy(6, 5), slots=False)).abs().max() < 1e-11


# ---- heads and layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_heads_of_their_own_equal_a_mask_per_head(sizes: list[int]) -> None:
    m = model()
    policy = PerHead(Recent(6) + Sinks(2), ((0, 4), (2, 0), (2, 5)), Dense())
    small, whole = band(T, 6, 2), band(T, T, 0)

    def mask(layer: int) -> Tensor:
        streams = {0: [0, 1, 2], 1: [0, 1, 2, 3, 4, 5], 2: []}[layer]  # three query heads share a key head
        return torch.stack([small if h in streams else whole for h in range(6)])

    with sg.streaming(m, policy, positions="original") as cache:
        got = in_parts(m, IDS, cache, sizes)
        report, size = cache.report(), cache.nbytes()
        stored = [x for layer in cache.layers for bank in layer.layer.banks for x in bank.state().values()]
    assert (got - under(m, IDS, mask)).abs().max() < 1e-11
    assert report["bytes"] == size == sum(x.untyped_storage().nbytes() for x in stored)
    assert size == 8 * 2 * 8 * (
        3 * 8 + 3 * 256
    )  # three key heads keep 8 tokens, three have the 256 that dense begins with
    with sg.streaming(m, "dense", positions="original") as cache:
        dense = in_parts(m, IDS, cache, sizes)
        assert size < cache.nbytes() == 8 * 2 * 8 * 6 * 256
    assert (dense - masked(m, IDS, band(T, T, 0))).abs().max() < 1e-11


@pytest.mark.parametrize("positions", BOTH)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_layers_and_heads_with_policies_of_all_kinds(sizes: list[int], positions: str) -> None:
    m = model()
    heads = PerHead(Recent(5) + Sinks(1), ((0, 0), (1, 3)), Recent(3) + HeavyHitters(4))
    policy = PerLayer(heads, (2,), Recent(9))

    def choice(layer: int, _row: int, j: int) -> Any:
        if layer == 2:
            return Fixed(9)
        return Heavy(3, 4) if (layer, j) in ((0, 0), (1, 1)) else Fixed(5, lambda p: p < 1)

    want = chosen(m, IDS, choice, slots=positions == "slots")
    with sg.streaming(m, policy, positions=positions) as cache:
        got = in_parts(m, IDS, cache, sizes)
        assert cache.report()["policy"] == str(policy)
        assert cache.held() == 9
    assert (got - want).abs().max() < 1e-11


def test_a_layer_of_its_own_equals_a_mask_per_layer() -> None:
    m = model()
    with sg.streaming(m, "per_layer(recent(6) + sinks(2), [1], dense)", positions="original") as cache:
        got = in_parts(m, IDS, cache, [5])
    want = under(m, IDS, lambda layer: (band(T, T, 0) if layer == 1 else band(T, 6, 2)).expand(6, T, T))
    assert (got - want).abs().max() < 1e-11


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("per_head(recent(4), [[1, 6]], dense)", "heads 0 to 5"),
        ("per_head(recent(4), [[3, 0]], dense)", "names layer 3"),
        ("per_layer(recent(4), [0, 7], dense)", "names layer 7"),
        ("per_layer(recent(4), [0], per_head(recent(4), [[9, 0]]))", "names layer 9"),
    ],
)
def test_heads_and_layers_that_are_not_there(policy: str, says: str) -> None:
    m = model()
    with pytest.raises(ArgumentError, match=says), sg.streaming(m, policy):
        pass
    assert "forward" not in m.__dict__


def test_a_layer_with_a_window_of_its_own_cannot_be_named() -> None:
    with pytest.raises(ArgumentError, match=r"names layer 0.*there are \[1\]"):
        sg.streaming(model("gemma2"), "per_layer(recent(4), [0], dense)").__enter__()


# ---- dynamic: heads -------------------------------------------------------------------------------------------------


def outside(m: nn.Module, rows: Sequence[Tensor], counts: Sequence[int], recent: int, sinks: int) -> Tensor:
    """``[layer, kv]`` mean mass outside, over queries of all rows that have an outside."""
    total, queries = torch.zeros(3, 2, dtype=torch.float64), 0
    for row, count in zip(rows, counts, strict=True):
        found = weights_of(m, row[None, :count])
        for t in range(count):
            far = [p for p in range(t + 1) if p <= t - recent and p >= sinks]
            if not far:
                continue
            queries += 1
            for layer, w in found.items():
                for h in range(6):
                    total[layer, h // 3] += w[h, t, far].sum() / 3
    return total / queries


@pytest.mark.parametrize("sizes", [[1], [5], [7, 1], [3, 18, 1]], ids=str)
def test_heads_part_and_free_their_bytes(sizes: list[int]) -> None:
    m, after = model(), 20
    passes = [0]
    while passes[-1] < T:
        passes.append(passes[-1] + sizes[min(len(passes) - 1, len(sizes) - 1)])
    part = min(p for p in passes if p >= after)
    share = outside(m, [IDS[0]], [part], 6, 2)
    edge = float(share.flatten().sort().values[2:4].mean())
    streams = [[i, j] for i in range(3) for j in range(2) if share[i, j] <= edge]
    assert len(streams) == 3
    policy = Dynamic(Recent(6) + Sinks(2), "head", edge, after)
    small, whole = band(T, 6, 2), band(T, T, 0)
    later = whole.clone()
    later[part:] = small[part:]
    want = under(m, IDS, lambda layer: torch.stack([later if [layer, h // 3] in streams else whole for h in range(6)]))
    with sg.streaming(m, policy, positions="original") as cache:
        begin = in_parts(m, IDS[:, :part], cache, [b - a for a, b in pairwise(passes)])
        freed = cache.nbytes()
        assert cache.report()["streaming_kv_heads"] == streams
        twin = cache.fork()
        rest = in_parts(m, IDS[:, part:], cache, [1])
        again = in_parts(m, IDS[:, part:], twin, [4])
        assert cache.nbytes() == freed == 8 * 2 * 8 * (3 * 8 + 3 * 256)
    with sg.streaming(m, policy, positions="original") as cache:
        in_parts(m, IDS[:, : after - 1], cache, [after - 1])
        assert cache.report()["streaming_kv_heads"] == []
        assert cache.nbytes() == 8 * 2 * 8 * 6 * 256
    assert (torch.cat([begin, rest], 1) - want).abs().max() < 1e-11
    assert (torch.cat([begin, again], 1) - want).abs().max() < 1e-11


@pytest.mark.parametrize("sizes", [[1], [4], [20]], ids=str)
def test_heads_of_a_batch_part_when_its_shortest_row_is_long_enough(sizes: list[int]) -> None:
    m, after = model(), 16
    rows = [IDS[0, :30], IDS[0, 7:36], IDS[0, 3:25]]
    ids, mask = padded(rows)
    columns = min(30, next(c for c in range(sizes[0], 60, sizes[0]) if c - 8 >= after))  # the shortest has 8 of padding
    counts = [columns - (30 - len(row)) for row in rows]
    share = outside(m, rows, counts, 6, 2)
    edge = float(share.flatten().sort().values[2:4].mean())
    streams = [[i, j] for i in range(3) for j in range(2) if share[i, j] <= edge]
    with sg.streaming(m, Dynamic(Recent(6) + Sinks(2), "head", edge, after), positions="original") as cache:
        got = in_padded_parts(m, ids, mask, cache, sizes)
        assert cache.report()["streaming_kv_heads"] == streams
    for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
        n = len(row)
        small, whole = band(n, 6, 2), band(n, n, 0)
        later = torch.where(torch.arange(n)[:, None] >= count, small, whole)

        def each(layer: int, a: Tensor = later, b: Tensor = whole) -> Tensor:
            return torch.stack([a if [layer, h // 3] in streams else b for h in range(6)])

        assert (got[i, -n:] - under(m, row[None], each)).abs().max() < 1e-11


def test_layers_may_part_at_different_tokens() -> None:
    m = model()
    early, late = (Dynamic(Recent(6) + Sinks(2), "head", 1.0, n) for n in (12, 20))
    small, whole = band(T, 6, 2), band(T, T, 0)

    def mask(layer: int) -> Tensor:
        edge = 20 if layer == 0 else 12
        return torch.where(torch.arange(T)[:, None] >= edge, small, whole).expand(6, T, T)

    with sg.streaming(m, PerLayer(early, (0,), late), positions="original") as cache:
        got = in_parts(m, IDS, cache, [4])
        assert cache.report()["streaming_kv_heads"] == [[i, j] for i in range(3) for j in range(2)]
        assert cache.nbytes() == 8 * 2 * 8 * 6 * 8
    assert (got - under(m, IDS, mask)).abs().max() < 1e-11


@pytest.mark.parametrize(("share", "streams"), [(0.0, 0), (1.0, 6)])
def test_none_or_all_heads_part(share: float, streams: int) -> None:
    m = model()
    with sg.streaming(m, Dynamic(Recent(6), "head", share, 10), positions="original") as cache:
        got = in_parts(m, IDS, cache, [1])
        assert len(cache.report()["streaming_kv_heads"]) == streams
    edge = torch.arange(T)[:, None] >= (10 if streams else T)
    want = under(m, IDS, lambda _l: torch.where(edge, band(T, 6, 0), band(T, T, 0)).expand(6, T, T))
    assert (got - want).abs().max() < 1e-11


# ---- dynamic: queries -----------------------------------------------------------------------------------------------


def by_query(m: nn.Module, ids: Tensor, recent: int, sinks: int, share: float) -> tuple[Tensor, int, int]:
    """Logits, and keys read and offered, by the rule of each query."""
    counts = [0, 0]

    def query(_layer: int, _row: int, _j: int, t: int, scores: Any) -> Tensor:
        base = torch.tensor([p > t - recent or p < sinks for p in range(t + 1)])
        weights = torch.softmax(scores().masked_fill(~base, -math.inf), -1)
        seen = torch.stack([base if float(w[:sinks].sum()) > 1 - share else torch.ones_like(base) for w in weights])
        counts[0] += int(seen.sum())
        counts[1] += seen.numel()
        return seen

    logits = by_loops(m, ids, query)
    return logits, counts[0], counts[1]


@pytest.mark.parametrize("share", [0.0, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("sizes", [[1], [T], [7]], ids=str)
def test_a_query_that_rests_on_its_sinks_reads_less(sizes: list[int], share: float) -> None:
    m = model()
    want, reads, offered = by_query(m, IDS, 5, 2, share)
    if share in (0.6, 0.9):
        assert 0 < reads < offered
    with sg.streaming(m, Dynamic(Recent(5) + Sinks(2), "query", share), positions="original") as cache:
        got = in_parts(m, IDS, cache, sizes)
        report = cache.report()
    assert (got - want).abs().max() < 1e-11
    assert report["reads"] == reads / offered
    assert (report["reads"] < 1) == (share > 0)
    assert "streaming_kv_heads" not in report
    with sg.streaming(m, "dense", positions="original") as cache:
        in_parts(m, IDS, cache, sizes)
        assert report["bytes"] == cache.nbytes()  # nothing is saved but reads


def test_queries_of_a_batch_and_more_than_a_block_of_them() -> None:
    m = model()
    text = torch.randint(0, 96, (100,), generator=torch.Generator().manual_seed(8))
    rows = [text, text[20:]]
    ids, mask = padded(rows)
    found = [by_query(m, row[None], 8, 2, 0.8) for row in rows]
    with sg.streaming(m, Dynamic(Recent(8) + Sinks(2), "query", 0.8), positions="original") as cache:
        got = in_padded_parts(m, ids, mask, cache, [100])
        assert cache.report()["reads"] == sum(x[1] for x in found) / sum(x[2] for x in found)
    for i, (row, (want, _, _)) in enumerate(zip(rows, found, strict=True)):
        assert (got[i, -len(row) :] - want[0]).abs().max() < 1e-11


@pytest.mark.parametrize(
    ("name", "policy", "options", "says"),
    [
        ("llama", "dynamic(recent(6) + sinks(2))", {}, "positions='original'"),
        ("llama", 'dynamic(recent(6) + sinks(2), rule="query")', {}, "positions='original'"),
        ("llama", "dynamic(recent(6) + sinks(2))", {"positions": "original", "rollback": 2}, "rollback=0"),
        ("llama", "recent(6) + heavy(2)", {"rollback": 2}, "rollback=0"),
        ("llama", "quantized(recent(6))", {"rollback": 2}, "rollback=0"),
    ],
)
def test_what_a_policy_cannot_do_is_refused_before_the_model_is_touched(
    name: str, policy: str, options: dict[str, Any], says: str
) -> None:
    m = model(name)
    with pytest.raises(UnsupportedError, match=says), sg.streaming(m, policy, **options):
        pass
    assert "forward" not in m.__dict__


@pytest.mark.parametrize("rule", ["head", "query"])
def test_dynamic_policies_judge_plain_softmax(rule: str) -> None:
    m = model("gpt_oss")
    wrong = pytest.raises(UnsupportedError, match="learned sink logits")
    with sg.streaming(m, Dynamic(Recent(6) + Sinks(2), rule), positions="original") as cache, wrong:
        m(IDS, cache=cache)


def test_heavy_hitters_are_not_taken_back_and_the_stream_goes_on() -> None:
    m = model()
    with sg.streaming(m, Recent(6) + HeavyHitters(3)) as cache:
        begin = in_parts(m, IDS[:, :20], cache, [5])
        with pytest.raises(UnsupportedError, match="taken back"):
            cache.crop(-1)
        rest = in_parts(m, IDS[:, 20:], cache, [1])
        cache.reset()
        assert torch.allclose(torch.cat([begin, rest], 1), in_parts(m, IDS, cache, [5, 5, 5, 5, 1]), atol=1e-12)


# ---- sinks by id ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("n", [1, 3])
def test_tokens_with_certain_ids(n: int, sizes: list[int]) -> None:
    m = model()
    wanted = (int(IDS[0, 4]), int(IDS[0, 9]), int(IDS[0, 21]))
    pinned = first_with(IDS[0], wanted, n, range(T))
    seen = band(T, 6, 0) | torch.tensor([[pinned(p) and p <= t for p in range(T)] for t in range(T)])
    assert int(seen[-1].sum()) == 6 + n
    policy = Recent(6) + Sinks(n, token_ids=wanted)
    with sg.streaming(m, policy, positions="original") as cache:
        got = in_parts(m, IDS, cache, sizes)
        assert cache.held() == 6 + n
    assert (got - masked(m, IDS, seen)).abs().max() < 1e-11
    with sg.streaming(m, policy, positions="slots") as cache:
        got = in_parts(m, IDS, cache, sizes)
    want = rotated_afresh(m, IDS, lambda t: [p for p in range(t + 1) if bool(seen[t, p])])
    assert (got - want).abs().max() < 1e-11


@pytest.mark.parametrize("positions", BOTH)
@pytest.mark.parametrize("sizes", [[1], [6], [40]], ids=str)
def test_each_row_keeps_its_own_tokens(sizes: list[int], positions: str) -> None:
    m = model()
    rows = [IDS[0, :33], IDS[0, 7:], IDS[0, 3:20]]
    ids, mask = padded(rows)  # padded with token 95, which is wanted too: padding is no sink
    wanted = (95, int(IDS[0, 9]), int(IDS[0, 25]), int(IDS[0, 12]))
    with sg.streaming(m, Recent(5) + Sinks(2, token_ids=wanted), positions=positions) as cache:
        got = in_padded_parts(m, ids, mask, cache, sizes)
    for i, row in enumerate(rows):
        pinned = first_with(row, wanted, 2, range(len(row)))
        want = chosen(m, row[None], lambda *_, p=pinned: Fixed(5, p), slots=positions == "slots")
        assert (got[i, -len(row) :] - want[0]).abs().max() < 1e-11


def test_embeddings_have_no_ids() -> None:
    m = model()
    wrong = pytest.raises(ArgumentError, match="input_ids")
    with torch.no_grad(), sg.streaming(m, Recent(5) + Sinks(token_ids=(4,))) as cache, wrong:
        m(inputs_embeds=m.get_input_embeddings()(IDS), cache=cache)


# ---- folded sinks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["llama", "gpt_oss", "gemma2"])
def test_a_folded_sink_is_that_token_in_front(name: str, sizes: list[int]) -> None:
    m = model(name)
    whole = torch.cat([torch.tensor([[17]]), IDS], 1)
    policy = Recent(6) + Sinks(folded=(17,))
    if name == "llama":
        want = masked(m, whole, band(T + 1, 6, 1))[:, 1:]
        with sg.streaming(m, policy, positions="original") as cache:
            got = in_parts(m, IDS, cache, sizes)
            assert cache.held() == 7
        assert (got - want).abs().max() < 1e-11
        want = rotated_afresh(m, whole, lambda t: [p for p in range(t + 1) if p == 0 or p > t - 6])[:, 1:]
        with sg.streaming(m, policy, positions="slots") as cache:
            got = in_parts(m, IDS, cache, sizes)
        assert (got - want).abs().max() < 1e-11
        return
    # Layers with a window keep it, and the token in front is not in it: only the middle layer sees the constant.
    alone = constants(m, whole, 1)
    for positions in BOTH:
        with sg.streaming(m, policy, positions=positions) as cache:
            got = in_parts(m, IDS, cache, sizes)
        want = with_constant(m, IDS, alone, recent=6, slots=positions == "slots")
        assert (got - want).abs().max() < 3e-6  # the model scales its own cosines in float32


def constants(m: nn.Module, ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """The raw key and value of the first token, alone, in one layer."""
    found: list[tuple[Tensor, Tensor]] = []
    module = attention_layers(m)[layer].module

    class Look:
        def attend(self, function: Any, at: nn.Module, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            if at is module:
                found.append((k[0, :, 0], v[0, :, 0]))
            return function(at, q, k, v, *args, **kwargs)

    with torch.no_grad(), exact(m), reading(m, Look()):
        m(ids[:, :1], use_cache=False)
    return found[0]


def with_constant(m: nn.Module, ids: Tensor, constant: tuple[Tensor, Tensor], *, recent: int, slots: bool) -> Tensor:
    """Logits where the layer without a window sees a constant key one token in front of the text."""
    loops = Loops(m, None, None, False)  # type: ignore[arg-type]

    class Front:
        def attend(self, function: Any, module: nn.Module, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
            layer = loops.layers[id(module)]
            if kwargs.get("sliding_window"):
                return function(module, q, k, v, mask, **kwargs)
            n, outs = q.shape[2], []
            for t in range(n):
                distance = min(t + 1, recent) if slots else t + 1
                first = loops.turn(layer, constant[0][None], torch.tensor([t - distance]))[:, :, None]
                some = slice(max(0, t - recent + 1), t + 1)
                keys = torch.cat([first.to(k.dtype), k[:, :, some]], 2)
                values = torch.cat([constant[1][None, :, None], v[:, :, some]], 2)
                outs.append(function(module, q[:, :, t : t + 1], keys, values, None, **kwargs)[0])
            return torch.cat(outs, 1), None

    with torch.no_grad(), exact(m), reading(m, Front()):
        return m(ids, use_cache=False).logits


@pytest.mark.parametrize("positions", BOTH)
def test_several_folded_tokens_are_one_constant_their_mean(positions: str) -> None:
    m = model()
    first = torch.tensor([[17], [40], [3]])
    layers = {id(a.module): a.layer for a in attention_layers(m)}

    class Mean:
        """The texts behind each of the tokens all see the mean of their keys and values; each token itself does not."""

        def attend(self, function: Any, module: nn.Module, q: Any, k: Any, v: Any, _mask: Any, **kwargs: Any) -> Any:
            assert id(module) in layers
            mask = band(T + 1, 6, 1)[None, None]
            own = function(module, q, k, v, mask, **kwargs)[0]
            k, v = k.clone(), v.clone()
            k[:, :, 0], v[:, :, 0] = k[:, :, 0].mean(0), v[:, :, 0].mean(0)
            out = function(module, q, k, v, mask, **kwargs)[0]
            return torch.cat([own[:, :1], out[:, 1:]], 1), None

    with torch.no_grad(), exact(m), reading(m, Mean()):
        want = m(torch.cat([first, IDS.expand(3, -1)], 1), use_cache=False).logits[:, 1:]
    assert (want - want[:1]).abs().max() < 1e-11
    with sg.streaming(m, Recent(6) + Sinks(folded=(17, 40, 3)), positions="original") as cache:
        got = in_parts(m, IDS, cache, [5])
    assert (got - want[:1]).abs().max() < 1e-11
    with sg.streaming(m, Recent(6) + Sinks(folded=(17, 17)), positions=positions) as cache:
        twice = in_parts(m, IDS, cache, [5])
    with sg.streaming(m, Recent(6) + Sinks(folded=(17,)), positions=positions) as cache:
        once = in_parts(m, IDS, cache, [1])
    assert (twice - once).abs().max() < 1e-11


@pytest.mark.parametrize("positions", BOTH)
@pytest.mark.parametrize("sizes", [[1], [6], [40]], ids=str)
def test_a_folded_sink_stands_in_front_of_every_row(sizes: list[int], positions: str) -> None:
    m = model()
    rows = [IDS[0, :33], IDS[0, 7:], IDS[0, 3:20]]
    ids, mask = padded(rows)
    for policy, choice in (
        (Recent(5) + Sinks(folded=(17,)), lambda *_: Fixed(5, lambda p: p == 0)),
        (Recent(5) + HeavyHitters(3) + Sinks(folded=(17,)), lambda *_: Heavy(5, 3, lambda p: p == 0)),
    ):
        with sg.streaming(m, policy, positions=positions) as cache:
            got = in_padded_parts(m, ids, mask, cache, sizes)
        for i, row in enumerate(rows):
            whole = torch.cat([torch.tensor([17]), row])
            want = chosen(m, whole[None], choice, slots=positions == "slots")[0, 1:]
            assert (got[i, -len(row) :] - want).abs().max() < 1e-11


def test_a_folded_sink_of_some_heads_and_in_fewer_bits() -> None:
    m = model()
    whole = torch.cat([torch.tensor([[17]]), IDS], 1)
    policy = PerHead(Recent(6) + Sinks(folded=(17,)), ((0, 0), (1, 0), (2, 0)), Recent(40) + Sinks(folded=(17,)))
    with sg.streaming(m, policy, positions="original") as cache:
        got = in_parts(m, IDS, cache, [5])
    want = under(
        m, whole, lambda _l: torch.stack([band(T + 1, 40 if h < 3 else 6, 1) for h in range(6)])
    )[:, 1:]  # fmt: skip
    assert (got - want).abs().max() < 1e-11
    for positions in BOTH:
        with sg.streaming(m, Recent(6) + Sinks(folded=(17,)), positions=positions) as cache:
            want = in_parts(m, IDS, cache, [5])
        fewer = Quantized(Recent(6) + Sinks(folded=(17,)), 4, tail=6, group=2)
        with sg.streaming(m, fewer, positions=positions) as cache:
            assert (in_parts(m, IDS, cache, [5]) - want).abs().max() < 1e-11  # all that is seen is kept as it is


# ---- saved, restored, forked ----------------------------------------------------------------------------------------

ALL: list[tuple[str, Policy]] = [
    ("slots", Recent(5) + HeavyHitters(3) + Sinks(2)),
    ("slots", Recent(5) + HeavyHitters(3) + Sinks(2, token_ids=(int(IDS[0, 3]), int(IDS[0, 9])))),
    ("original", Recent(5) + HeavyHitters(3) + Sinks(folded=(17,))),
    ("slots", PerHead(Recent(4) + Sinks(1), ((0, 0), (2, 4)), Recent(3) + HeavyHitters(2))),
    ("original", Dynamic(Recent(6) + Sinks(2), "head", 0.15, 16)),
    ("original", Dynamic(Recent(6) + Sinks(2), "head", 1.0, 16)),
    ("original", Dynamic(Recent(6) + Sinks(2), "query", 0.8)),
    ("slots", Quantized(Recent(6) + Sinks(2), 4, False, 3, 4)),
    ("slots", Quantized(Recent(6) + Sinks(2), 8, True, 0, 4)),
]


@pytest.mark.parametrize("at", [1, 14, 22])
@pytest.mark.parametrize(("positions", "policy"), ALL, ids=[str(p) for _, p in ALL])
def test_a_stream_goes_on_from_a_file_and_from_a_fork(tmp_path: Path, positions: str, policy: Policy, at: int) -> None:
    m = model()
    with sg.streaming(m, policy, positions=positions) as cache:
        in_parts(m, IDS[:, :at], cache, [2, 1])
        save_stream(cache, tmp_path / "stream")
        twin, size = cache.fork(), cache.nbytes()
        want, report = in_parts(m, IDS[:, at:], cache, [1]), cache.report()
    with sg.streaming(m, policy, positions=positions) as cache:
        load_stream(cache, tmp_path / "stream")
        assert cache.nbytes() == size
        assert torch.equal(in_parts(m, IDS[:, at:], cache, [1]), want)
        assert cache.report() == report
        twin._made = cache._made
        assert torch.equal(in_parts(m, IDS[:, at:], twin, [1]), want)
        assert twin.report() == report


@pytest.mark.parametrize(("positions", "policy"), ALL, ids=[str(p) for _, p in ALL])
def test_rows_are_chosen(positions: str, policy: Policy) -> None:
    m = model()
    ids = torch.stack([IDS[0], IDS[0].flip(0), IDS[0].roll(5)])
    order = torch.tensor([2, 0, 2])
    with sg.streaming(m, policy, positions=positions) as cache:
        in_parts(m, ids[:, :20], cache, [4])
        cache.reorder_cache(order)
        got = in_parts(m, ids[order][:, 20:], cache, [1])
        cache.reset()
        want = in_parts(m, ids, cache, [4, 4, 4, 4, 4, 1])[order][:, 20:]
    assert (got - want).abs().max() < 1e-11


@pytest.mark.parametrize("policy", ["quantized(recent(40) + sinks(4), bits=4)", "quantized(recent(70), tail=33)",
                                    "quantized(recent(33) + sinks(2), keep_sinks=false)"])  # fmt: skip
@pytest.mark.parametrize("positions", ["slots", "original"])
@torch.no_grad()
def test_long_passes_find_what_single_steps_find(policy: str, positions: str) -> None:
    """Two rows, passes of many sizes, rows put in another order half way; and as many bytes are reported."""
    lm = tiny("llama", dtype=torch.float64)
    ids = torch.randint(2, 90, (2, 200))
    first = 2 if "keep_sinks" in policy else 5  # sinks that are packed are so behind their pass

    def read(sizes: list[int]) -> tuple[torch.Tensor, int]:
        with sg.streaming(lm, policy, positions=positions) as cache:
            logits, i = [], 0
            for n in sizes:
                if i == 144:
                    cache.batch_select_indices(torch.tensor([1, 0]))
                logits.append(lm(ids[:, i : i + n], cache=cache).logits)
                i += n
        assert i == 200
        return torch.cat(logits, 1), cache.nbytes()

    steps, size = read([first, *[1] * (200 - first)])
    with stepwise():
        kept_open = read([first, *[1] * (200 - first)])
        long = read([first, 1, 1, 142 - first, 2, 1, 7, 46])
    assert torch.equal(kept_open[0], steps)
    torch.testing.assert_close(long[0], steps, rtol=0, atol=1e-9)
    assert kept_open[1] == long[1] == size
    away = (read([first, 1, 1, 142 - first, 2, 1, 7, 46])[0] - steps).abs().max()
    assert away > 1e-4, "outside, a pass finds its own tokens as they are"
