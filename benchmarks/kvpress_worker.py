"""kvpress's side of :mod:`benchmarks.kvpress`: runs in kvpress's own environment and knows nothing of sinkgate.

One JSON object a line comes in, one goes out. ``PYTHON -I benchmarks/kvpress_worker.py MODEL_FOLDER``; ``-I``, since the
files beside this one have names of libraries.

A text is read once, whole, as kvpress reads every prompt: its presses act after a layer's attention, so that what a layer
passes on does not depend on them. Every press's own ``compress`` is therefore asked in that one pass, each for a cache of its
own. ``timed`` uses kvpress as it is meant to be used, one pass per press, and gives the losses again: they have to be the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def presses(kvpress: Any, kept: int, prefix: int, sinks: int) -> dict[str, Any]:
    """What is compared, made anew for each budget; half a token more than asked, since kvpress rounds down."""
    ratio = 1 - (kept + 0.5) / prefix
    return {
        "streaming": kvpress.StreamingLLMPress(compression_ratio=ratio, n_sink=sinks),
        "rerotated": kvpress.KeyRerotationPress(kvpress.StreamingLLMPress(compression_ratio=ratio, n_sink=sinks)),
        "expected": kvpress.ExpectedAttentionPress(compression_ratio=ratio, n_sink=sinks),
    }


class Worker:
    """A model and what is asked of it."""

    def __init__(self, folder: str) -> None:
        import torch
        import transformers

        import kvpress

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.kvpress, self.torch, self.transformers = kvpress, torch, transformers
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def hello(self) -> dict[str, Any]:
        """Versions, and what kvpress says of the model."""
        from importlib.metadata import version

        return {
            "python": sys.version.split()[0], "torch": self.torch.__version__, "transformers": self.transformers.__version__,
            "kvpress": version("kvpress"), "threads": self.torch.get_num_threads(),
            "model_in_its_list": isinstance(self.model, self.kvpress.SUPPORTED_MODELS),
        }  # fmt: skip

    def logits(self, ids: list[int]) -> dict[str, Any]:
        """Those of the last position."""
        return {"logits": self.model(self.torch.tensor([ids]), logits_to_keep=1).logits[0, -1].tolist()}

    def text(
        self, ids: list[int], prefix: int, budgets: list[int], sinks: int, pass_tokens: int, only: list[str] | None = None
    ) -> dict[str, Any]:  # fmt: skip
        """Losses behind every press's cache, and behind everything; the prefix is read once."""
        made = {
            f"{name} {kept}": press
            for kept in budgets
            for name, press in presses(self.kvpress, kept, prefix, sinks).items()
            if only is None or f"{name} {kept}" in only
        }
        caches = {name: self.transformers.DynamicCache() for name in made}
        whole = self.transformers.DynamicCache()
        for press in made.values():
            press.post_init_from_model(self.model)

        def hook(module: Any, _args: Any, kwargs: dict[str, Any], output: Any) -> None:
            layer = whole.layers[module.layer_idx]
            for name, press in made.items():
                k, v = press.compress(module, kwargs["hidden_states"], layer.keys, layer.values, output[1], kwargs)
                caches[name].update(k, v, module.layer_idx)

        hooks = []
        for layer in self.model.model.layers:
            layer.self_attn.rotary_emb = self.model.model.rotary_emb  # as BasePress.__call__ does
            hooks.append(layer.self_attn.register_forward_hook(hook, with_kwargs=True))
        try:
            self.model.model(input_ids=self.torch.tensor([ids[:prefix]]), past_key_values=whole)
        finally:
            for handle in hooks:
                handle.remove()
        return {
            "dense": self.scored(whole, ids, prefix, prefix, pass_tokens),
            **{
                name: self.scored(cache, ids, prefix, start_of(name, cache, prefix), pass_tokens)
                for name, cache in caches.items()
            },
        }

    def timed(self, ids: list[int], prefix: int, kept: int, sinks: int, pass_tokens: int) -> dict[str, Any]:
        """Processor seconds of reading and scoring, one after the other in this process, and the losses."""
        from contextlib import nullcontext

        found = {}
        for name, press in {"dense": None, **presses(self.kvpress, kept, prefix, sinks)}.items():
            start = time.process_time()
            cache = self.transformers.DynamicCache()
            with nullcontext() if press is None else press(self.model):
                self.model.model(input_ids=self.torch.tensor([ids[:prefix]]), past_key_values=cache)
            row = self.scored(cache, ids, prefix, start_of(name, cache, prefix), pass_tokens)
            key = name if press is None else f"{name} {kept}"
            found[key] = row | {"seconds": round(time.process_time() - start, 3)}
        return found

    def tried(self, ids: list[int], prefix: int, sinks: int, pass_tokens: int) -> dict[str, Any]:
        """Whether each press runs on this model at all, half of the prefix kept: tokens held by layer, or its error."""
        found: dict[str, Any] = {"in_its_list": isinstance(self.model, self.kvpress.SUPPORTED_MODELS), "presses": {}}
        found["layers"] = getattr(self.model.config, "layer_types", None)
        for name, press in presses(self.kvpress, prefix // 2, prefix, sinks).items():
            row = found["presses"].setdefault(name, {})
            for how, cache in {
                "with": self.transformers.DynamicCache(config=self.model.config), "without": self.transformers.DynamicCache()
            }.items():  # fmt: skip
                try:
                    with press(self.model):
                        self.model.model(input_ids=self.torch.tensor([ids[:prefix]]), past_key_values=cache)
                    held = [layer.keys.shape[2] for layer in cache.layers]
                    self.scored(cache, ids, prefix, start_of(name, cache, prefix), pass_tokens)
                    row[how] = {"held": held}
                except Exception as err:  # noqa: BLE001 - what it cannot do is the answer
                    row[how] = {"error": f"{type(err).__name__}: {str(err).splitlines()[0]}"}
        return found

    def scored(self, cache: Any, ids: list[int], prefix: int, position: int, pass_tokens: int) -> dict[str, Any]:
        """Nats of every token after the first that is read through this cache, which grows meanwhile."""
        first, nats = size(cache), []
        for i in range(prefix, len(ids) - 1, pass_tokens):
            part = self.torch.tensor([ids[i : min(i + pass_tokens, len(ids) - 1) + 1]])
            n = part.shape[1] - 1
            at = self.torch.arange(position, position + n)[None]
            rows = self.model(part[:, :-1], past_key_values=cache, position_ids=at).logits[0].float()
            nats += (rows.logsumexp(-1) - rows.gather(-1, part[0, 1:, None])[:, 0]).double().tolist()
            position += n
        return {"nats": nats, "bytes_first": first, "bytes_end": size(cache)}


def start_of(name: str, cache: Any, prefix: int) -> int:
    """The position of the first token read after the prompt, as kvpress's own pipeline counts it."""
    return cache.get_seq_length() if name.startswith("rerotated") else prefix


def size(cache: Any) -> int:
    """Bytes of the keys and values that are held."""
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints goes elsewhere
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(worker, asked.pop("do"))(**asked)
        except Exception as err:  # noqa: BLE001 - said to the one who asked
            answer = {"failed": f"{type(err).__name__}: {err}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
