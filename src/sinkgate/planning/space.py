"""What a search may choose from, for one model: which sinks, how long a window, which heads or layers keep more, how many bits.

The record says which sinks there are and which heads look far; the screening (:mod:`sinkgate.planning.screen`) says what it costs
when one layer forgets. Both only order the heads and layers: what a choice costs is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkgate.cache.base import Policy, Sum
from sinkgate.cache.heavy import HeavyHitters
from sinkgate.cache.per_head import PerHead, PerLayer
from sinkgate.cache.quantized import Quantized
from sinkgate.cache.recent import Recent
from sinkgate.cache.registry import as_policy
from sinkgate.errors import ArgumentError
from sinkgate.planning.cost import Shape
from sinkgate.planning.setting import Setting

__all__ = ["SHARES", "SPREADS", "Choice", "Space", "least_bytes"]

# how a setting differs over the model: nowhere; some key-value heads or layers keep the whole context; a part of the window
# goes to tokens that earned it; some layers get 8 bits and the others 4
SPREADS = ("alike", "heads", "layers", "heavy", "bits")
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
HEAVY = 4  # one token in so many of the window is a heavy hitter's slot
SMALLEST = 8  # tokens of the smallest window tried


@dataclass(frozen=True)
class Choice:
    """One point of the space.

    Args:
        spread: of ``SPREADS``.
        share: of the heads or layers that keep more (0 where all are alike).
        sinks: which option of the space's ``sinks``.
        window: recent tokens.
        bits: 4 or 8; 0: as the model computes.
        keep_sinks: whether packed caches keep the sinks as they are.
        positions: ``slots`` or ``original``.
    """

    spread: str = "alike"
    share: float = 0.0
    sinks: int = 0
    window: int = 128
    bits: int = 0
    keep_sinks: bool = True
    positions: str = "slots"

    def keeps_less(self, other: Choice) -> bool:
        """Whether it keeps nothing that the other does not, and counts positions alike."""
        same = (self.spread, self.share, self.sinks, self.positions) == (
            other.spread, other.share, other.sinks, other.positions,
        )  # fmt: skip
        return (
            same
            and self.window <= other.window
            and (self.bits or 16) <= (other.bits or 16)
            and self.keep_sinks <= other.keep_sinks
        )


@dataclass(frozen=True)
class Space:
    """What can be chosen.

    Args:
        shape: the model's caches.
        context: tokens that the plan is for.
        sinks: parts that keep sinks, as text, ``""`` for none; the record's own among them.
        heads: (layer, key-value head), those that should keep most first.
        layers: numbers of layers, those that should keep most first.
        positions: schemes that the model can do.
    """

    shape: Shape
    context: int
    sinks: tuple[str, ...]
    heads: tuple[tuple[int, int], ...]
    layers: tuple[int, ...]
    positions: tuple[str, ...]

    @property
    def windows(self) -> tuple[int, ...]:
        """Window lengths, two to an octave, up to the reach."""
        found, i = [], 0
        while (size := _notch(i)) < self.reach:
            found.append(size)
            i += 1
        return tuple(found) or (max(1, self.reach - 1),)

    @property
    def reach(self) -> int:
        """Tokens that a head may keep: the context, or as many positions as the model was trained for, if these are fewer."""
        return min(self.context, self.shape.context or self.context)

    @property
    def spreads(self) -> tuple[str, ...]:
        """Those that can differ in this model."""
        some = [s for s, n in (("heads", len(self.heads)), ("layers", len(self.layers))) if n > 1]
        more = ["bits"] if len(self.layers) > 1 and 4 in self.bits else []
        return ("alike", *some, "heavy", *more)

    @property
    def bits(self) -> tuple[int, ...]:
        """0 for as computed; 4 where every head's size is even."""
        even = all(layer.k_dim % 2 == 0 and layer.v_dim % 2 == 0 for layer in self.shape.free)
        return (0, 8, 4) if even else (0, 8)

    def suggest(self, trial: Any) -> Choice:
        """A choice that an Optuna trial makes."""
        spread = trial.suggest_categorical("spread", self.spreads)
        share = trial.suggest_categorical("share", SHARES) if spread in ("heads", "layers", "bits") else 0.0
        sinks = trial.suggest_categorical("sinks", tuple(range(len(self.sinks))))
        bits = 4 if spread == "bits" else 0 if spread == "heavy" else trial.suggest_categorical("bits", self.bits)
        keep = trial.suggest_categorical("keep_sinks", (True, False)) if bits and self.sinks[sinks] else True
        positions = trial.suggest_categorical("positions", self.positions)
        window = self.windows[trial.suggest_int("window", 0, len(self.windows) - 1)]
        return Choice(spread, share, sinks, window, bits, keep, positions)

    def whole(self, choice: Choice) -> Choice:
        """The same with its window rounded up to whole groups where it is packed, which weighs no more, and within the reach."""
        window = choice.window
        if choice.bits:
            group = Quantized(Recent(1)).group
            window = -(-window // group) * group
        return dataclasses.replace(choice, window=max(1, min(window, self.reach - self.pinned(choice))))

    def parameters(self, choice: Choice) -> dict[str, Any]:
        """What :meth:`suggest` would have to be told to make a choice: for ``enqueue_trial``."""
        at = min(range(len(self.windows)), key=lambda i: abs(math.log(self.windows[i] / choice.window)))
        found: dict[str, Any] = {
            "spread": choice.spread,
            "sinks": choice.sinks,
            "positions": choice.positions,
            "window": at,
        }
        if choice.spread in ("heads", "layers", "bits"):
            found["share"] = choice.share
        if choice.spread not in ("bits", "heavy"):
            found["bits"] = choice.bits
        if choice.bits and self.sinks[choice.sinks]:
            found["keep_sinks"] = choice.keep_sinks
        return found

    def setting(self, choice: Choice) -> Setting:
        """The policy of a choice.

        Raises:
            ArgumentError: it keeps no token.
        """
        base = self._packed(self._plain(choice), choice.bits, choice)
        if choice.spread == "heavy":
            earned = max(1, choice.window // HEAVY)
            base = self._plain(dataclasses.replace(choice, window=choice.window - earned)) + HeavyHitters(earned)
        elif choice.spread == "bits":
            more = self._packed(self._plain(choice), 8, choice)
            base = PerLayer(base, self.layers[: self._count(choice, len(self.layers))], more)
        elif choice.spread == "layers":
            base = PerLayer(base, self.layers[: self._count(choice, len(self.layers))], self._whole(choice))
        elif choice.spread == "heads":
            group = {layer.index: layer.heads // layer.kv_heads for layer in self.shape.free}
            named = self.heads[: self._count(choice, len(self.heads))]
            base = PerHead(base, tuple((i, kv * group[i]) for i, kv in named), self._whole(choice))
        return Setting(str(base), choice.positions)

    def bytes(self, choice: Choice, batch: int = 1) -> int:
        """What it keeps at the context."""
        setting = self.setting(choice)
        return self.shape.bytes(setting.value, setting.positions, context=self.context, batch=batch)

    def fitting(self, choice: Choice, most: int, batch: int = 1) -> Choice | None:
        """The same with the longest window, up to the context, that keeps no more than ``most`` bytes; None: none does."""
        low, high = 0, max(0, self.reach - self.pinned(choice))
        while low < high:  # bytes never fall as the window grows
            middle = (low + high + 1) // 2
            if self._allowed(choice, middle) and self.bytes(dataclasses.replace(choice, window=middle), batch) <= most:
                low = middle
            else:
                high = middle - 1
        return dataclasses.replace(choice, window=low) if low >= 1 and self._allowed(choice, low) else None

    def _allowed(self, choice: Choice, window: int) -> bool:
        return window >= (2 if choice.spread == "heavy" else 1)

    def pinned(self, choice: Choice) -> int:
        """Slots of its sinks."""
        part = self.sinks[choice.sinks]
        return 0 if not part else sum(p.slots for p in as_policy(f"recent(1) + {part}").kinds[0].pinned)

    def _plain(self, choice: Choice) -> Policy:
        part = self.sinks[choice.sinks]
        return Recent(choice.window) if not part else as_policy(f"recent({choice.window}) + {part}")

    def _whole(self, choice: Choice) -> Policy:
        """What a head or layer keeps that keeps the whole context: bounded all the same."""
        window = max(1, self.reach - self.pinned(choice))
        return self._packed(self._plain(dataclasses.replace(choice, window=window)), choice.bits, choice)

    def _packed(self, policy: Policy, bits: int, choice: Choice) -> Policy:
        return policy if not bits else Quantized(policy, bits=bits, keep_sinks=choice.keep_sinks)

    def _count(self, choice: Choice, of: int) -> int:
        return max(1, min(of - 1, round(choice.share * of)))


def least_bytes(space: Space, batch: int = 1) -> tuple[int, Setting]:
    """The lightest setting there is, and its bytes."""
    found = [
        (space.bytes(choice, batch), space.setting(choice))
        for bits in space.bits
        for positions in space.positions
        for sinks in range(len(space.sinks))
        for keep in (True, False)
        for choice in (Choice(sinks=sinks, window=1, bits=bits, keep_sinks=keep, positions=positions),)
    ]
    return min(found, key=lambda x: x[0])


def sink_options(record_part: str, first: Sequence[int] = (0, 1, 4)) -> tuple[str, ...]:
    """None, one and four first tokens, and what the record says, each once."""
    options = ["" if n == 0 else f"sinks({n})" for n in first]
    if record_part:
        as_policy(f"recent(1) + {record_part}")
        options.append(record_part)
    return tuple(dict.fromkeys(_canonical(o) for o in options))


def _canonical(part: str) -> str:
    """The text under which equal parts are equal."""
    if not part:
        return ""
    policy = as_policy(f"recent(1) + {part}")
    if not isinstance(policy, Sum):
        raise ArgumentError(f"{part!r} keeps no sinks")
    return " + ".join(str(p) for p in policy.of_ if p.name != "recent")


def _notch(i: int) -> int:
    """Two to an octave, in whole eights."""
    return max(SMALLEST, round(SMALLEST * 2 ** (i / 2) / 8) * 8) if i != 1 else 12
