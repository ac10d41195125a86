"""One process of a training by several, for tests: ``python ranks.py FOLDER`` with torchrun's environment.

The model is tiny, has dropout and sees the same batch in every process, so that what several processes train is what one
does. Every kind of training is run with and without a watch and leaves ``KIND-WATCH-RANK.pt`` in the folder; what has to be
refused leaves its message in ``refused-RANK.pt``.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

STEPS, EVERY = 5, 2
KINDS = ("ddp", "fsdp", "fsdp-root", "trainer-ddp", "trainer-fsdp")


def network() -> Any:
    from transformers import AutoModelForCausalLM
    from transformers import models as hf

    torch.manual_seed(0)
    config = hf.llama.LlamaConfig(
        vocab_size=96, hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, attention_dropout=0.1, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def random_ids(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 96, shape, generator=torch.Generator().manual_seed(seed))


HELD = random_ids(2, 80, seed=7)


def train(kind: str, watched: bool, path: Path | None) -> tuple[list[Any], dict[str, torch.Tensor], Any]:
    """A loop of one's own. ``kind``: plain, ddp, fsdp (a unit for each layer), fsdp-root (one around everything)."""
    import sinkgate as sg

    model: nn.Module = network()
    if kind.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for block in model.model.layers if kind == "fsdp" else ():
            fully_shard(block)
        fully_shard(model)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    watch = sg.SinkWatch(model, HELD, every=EVERY, path=path) if watched else None
    lines = [watch.step(0)] if watch else []
    for step, ids in enumerate(random_ids(STEPS, 2, 40, seed=1)):
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch:
            lines.append(watch.step(step + 1, loss))
    if watch:
        watch.close()
    return lines, parameters(model), [torch.rand(3).tolist(), random.random(), np.random.rand()]


def train_by_trainer(
    kind: str, watched: bool, path: Path, saved: Path
) -> tuple[list[Any], dict[str, torch.Tensor], Any]:
    """By transformers' Trainer, a model that is sharded while it is loaded (FSDP2) or not (DDP)."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
    from transformers.distributed import DistributedConfig

    import sinkgate as sg

    sharded = {"distributed_config": DistributedConfig(fsdp_size=2)} if kind == "trainer-fsdp" else {}
    model = AutoModelForCausalLM.from_pretrained(saved, **sharded)
    arguments = TrainingArguments(
        output_dir=str(path.parent / "output"), max_steps=STEPS, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_steps=1, learning_rate=0.01,
    )  # fmt: skip
    callbacks = [sg.SinkCallback(HELD, every=EVERY, path=path)] if watched else []
    rows = [{"input_ids": row, "labels": row} for row in random_ids(20, 40, seed=1)]
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks)
    trainer.train()
    history = [e for e in trainer.state.log_history if "sinks/first_token_mass" in e]
    return history, parameters(trainer.model), torch.rand(3).tolist()


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    state = {n: p.full_tensor() if hasattr(p, "full_tensor") else p for n, p in model.state_dict().items()}
    return {n.removeprefix("module."): p.detach().clone() for n, p in state.items()}


def refused(saved: Path) -> dict[str, str]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    import sinkgate as sg

    found = {}
    for name in ("tensor parallel", "FSDP 1"):
        if name == "FSDP 1":  # which a CPU cannot be asked to make
            model = network()
            unit: Any = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
            nn.Module.__init__(unit)
            model.add_module("unit", unit)
        else:
            model = AutoModelForCausalLM.from_pretrained(saved, distributed_config=DistributedConfig(tp_size=2))
        try:
            sg.SinkWatch(model, HELD)
        except sg.errors.UnsupportedError as err:
            found[name] = str(err)
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        for kind in KINDS:
            for watched in (True, False):
                path = folder / f"{kind}.jsonl"
                if kind.startswith("trainer"):
                    found = train_by_trainer(kind, watched, path, folder / "model")
                else:
                    found = train(kind, watched, path if watched else None)
                torch.save(found, folder / f"{kind}-{watched}-{rank}.pt")
        torch.save(refused(folder / "model"), folder / f"refused-{rank}.pt")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
