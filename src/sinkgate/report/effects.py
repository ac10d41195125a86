"""From what acts did to a model to what its page draws."""

from __future__ import annotations

from typing import Any

from sinkgate.files import jsonable
from sinkgate.interventions.effects import Effects
from sinkgate.report.chinese import translated

__all__ = ["payload"]


def payload(effects: Effects) -> dict[str, Any]:
    """Effects in plain JSON: each arm and each head acted on alone with its interval, and the screening of all heads.

    Returns:
        ``model`` (name, fingerprint), ``target``, ``settings``, ``samples``, ``where``, ``verdict``, ``notes``;
        ``rows``: as :meth:`~sinkgate.interventions.Effects.summary`; ``heads``: heads evicted one by one, as
        :meth:`~sinkgate.interventions.Effects.head_summary`; ``estimates``: the first-order estimate of every head's
        eviction, nats; ``chinese``: what is known of its labels in Chinese.
    """
    meta = effects.meta
    found: dict[str, Any] = jsonable(
        {
            "version": 1,
            "model": {"name": meta["model"]["name"], "fingerprint": meta["model"].get("fingerprint", "")},
            "target": meta["target"],
            "settings": meta["settings"],
            "samples": effects.samples,
            "where": meta["where"],
            "verdict": effects.verdict(),
            "notes": meta["notes"],
            "rows": [effects.summary(row) for row in effects.rows],
            "heads": [effects.head_summary(head) for head in effects.heads],
            "estimates": effects.estimates,
            "chinese": {
                text: chinese
                for text in [meta["target"], *(row.label for row in effects.rows)]
                if (chinese := translated(text))
            },
        }
    )
    return found
