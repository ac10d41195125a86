"""What a cache should keep, from what a diagnosis found: how many sinks, on which kinds of token."""

from __future__ import annotations

from typing import Any

from sinkgate.cache.base import Policy, Sum
from sinkgate.cache.sinks import Sinks
from sinkgate.errors import ArgumentError
from sinkgate.record import Diagnosis

__all__ = ["sinks_policy"]


def sinks_policy(d: Diagnosis, tokenizer: Any = None, *, share: float = 0.5) -> Policy:
    """The sinks of a record as a policy: the count and the kinds of token; positions do not carry over to another text.

    Sinks on the first tokens become ``Sinks(n)`` with n up to the last of them. Sinks further in, on tokens that were sinks in
    ``share`` of the texts, become ``Sinks(k, token_ids=[…])``, k being how many a text had of them.

    Args:
        d: the record.
        tokenizer: of the model; needed where there are sinks further in.
        share: of the texts that a sink must have been found in.

    Raises:
        ArgumentError: no sink was found, or one further in and no tokenizer to name its token.
    """
    texts = d.meta["samples"]
    need = share * len(texts)
    leading = 0
    while sum(any(s["position"] == leading for s in text["sinks"]) for text in texts) >= need > 0:
        leading += 1
    further: dict[str, list[int]] = {}
    for text in texts:
        here: dict[str, int] = {}
        for sink in text["sinks"]:
            if sink["position"] >= leading:
                here[sink["token"]] = here.get(sink["token"], 0) + 1
        for token, count in here.items():
            further.setdefault(token, []).append(count)
    kept = {token: max(counts) for token, counts in further.items() if len(counts) >= need}
    if not leading and not kept:
        raise ArgumentError(
            f"no sink was found in {share:.0%} of the {len(texts)} texts over the threshold of {d.settings.threshold}: there is "
            "nothing to keep but recent(n)"
        )
    parts: list[Policy] = [Sinks(leading)] if leading else []
    if kept:
        if tokenizer is None:
            raise ArgumentError(
                f"there are sinks on {', '.join(map(repr, kept))} further in: give the tokenizer, which knows their ids"
            )
        ids = [i for token in kept if (i := _id(tokenizer, token)) is not None]
        if ids:
            parts.append(Sinks(sum(kept.values()), token_ids=tuple(ids)))
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def _id(tokenizer: Any, token: str) -> int | None:
    """The id of a token as the record shows it; None where it stands for several."""
    found = tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
    if len(found) == 1:
        return int(found[0])
    known = tokenizer.convert_tokens_to_ids(token)
    return int(known) if isinstance(known, int) and known != tokenizer.unk_token_id else None
