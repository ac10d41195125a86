"""Every act on SmolLM2 and Gemma 3, 4 texts of 512 tokens; and what one repeated token does to the sinks."""

from __future__ import annotations

from typing import Any

from benchmarks.common import write

FEW = ("evict", "start", "scalar gate", "constant gate", "transplant")
MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("smollm2-135m", "auto", {"confirm": 4, "sweep": (16,)}),
    ("gemma3-270m", "yes", {"confirm": 0, "acts": FEW}),
    ("gemma3-270m", "no", {"confirm": 0, "acts": FEW}),
)


def main() -> None:
    import sinkgate as sg

    models = []
    for name, bos, settings in MODELS:
        loaded = sg.load(name)
        found = sg.intervene(loaded.model, loaded.tokenizer, tokens=512, samples=4, bos=bos, name=name, **settings)
        print(found, flush=True)
        repeated = sg.repeated_tokens(loaded.model, loaded.tokenizer, token=" the")
        print(repeated, flush=True)
        models.append(
            {
                "model": name, "bos": bos, "verdict": found.verdict(), "notes": found.meta["notes"],
                "rows": [rounded(found.summary(row)) for row in found.rows],
                "heads": [rounded(found.head_summary(h)) for h in found.heads], "correlations": found.rank_correlations(),
                "repeated": rounded({**repeated.to_json(), "sinks": len(repeated.sinks), "where": [s["position"] for s in repeated.sinks[:8]]}),
            }
        )  # fmt: skip
        write("intervene", {"tokens": 512, "samples": 4, "models": models})


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}


if __name__ == "__main__":
    main()
