"""`sg.SinkCallback` in transformers' own Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainingArguments

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.errors import OutputError, TextError, UnsupportedError
from sinkgate.hf.callback import TrainerWatch

TEXTS = [words(60, seed) for seed in range(2)]


class Logger(TrainerCallback):
    """What an integration sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, Any]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.seen.append((state.global_step, dict(logs)))


def data(n: int = 32, t: int = 24) -> list[dict[str, Tensor]]:
    rows = torch.randint(0, 96, (n, t), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder: Path, callbacks: list[Any], model: Any = None, **options: Any) -> Trainer:
    torch.manual_seed(0)
    if model is None:
        model = tiny("gpt2")  # its embeddings, attention and blocks have dropout
        assert any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in model.modules())
    arguments = TrainingArguments(
        output_dir=str(folder), **{
            "max_steps": 6, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True, "save_strategy": "no",
            "disable_tqdm": True, "logging_steps": 1, "learning_rate": 1e-2, **options,
        },
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=data(), callbacks=callbacks, processing_class=tokenizer())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}, {"bf16": True}, {"gradient_accumulation_steps": 2}],
                         ids=lambda o: next(iter(o), "plain"))  # fmt: skip
def test_parameters_are_the_same_bits_with_and_without_it(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = trainer(tmp_path / "a", [sg.SinkCallback(TEXTS, every=2, tokens=48)], **options)
    train_loss = watched.train().metrics["train_loss"]
    plain = trainer(tmp_path / "b", [], **options)
    assert plain.train().metrics["train_loss"] == train_loss
    with_it, without = watched.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(with_it[n], without[n]) for n in without)
    assert any(not torch.equal(p, without[n]) for n, p in tiny("gpt2").state_dict().items())
    found = lines(tmp_path / "a" / "sinks.jsonl")
    assert [line["step"] for line in found] == [0, 2, 4, 6]
    assert len({line["first_token_mass"] for line in found}) == 4
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (watched, plain)]
    assert losses[0] == losses[1]  # no logged loss is swallowed, none is added
    assert len(losses[0]) == 6


def test_the_trainers_own_log_gets_the_readings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Callbacks before and after ours, the log history, and what is printed."""
    before, after = Logger(), Logger()
    run = trainer(tmp_path, [before, sg.SinkCallback(TEXTS, every=3, tokens=48, eps=0.05), after])
    run.train()
    found = lines(tmp_path / "sinks.jsonl")
    for logger in (before, after):
        assert [step for step, logs in logger.seen if "sinks/first_token_mass" in logs] == [0, 3, 6]
    assert before.seen == after.seen
    seen = [logs for _, logs in before.seen if "sinks/first_token_mass" in logs]
    history = [entry for entry in run.state.log_history if "sinks/first_token_mass" in entry]
    for line, logs, entry in zip(found, seen, history, strict=True):
        assert entry == {**logs, "step": line["step"]}
        for name in ("first_token_mass", "first_token_mass_null", "sink_rate", "sink_rate_null", "sink_rate_any_key",
                     "sink_rate_any_key_null", "max_activation", "median_activation", "max_kurtosis"):  # fmt: skip
            assert logs[f"sinks/{name}"] == line[name]
        assert logs["sinks/strongest_head_mass"] == line["strongest_head"]["first_token_mass"]
        assert logs["sinks/spikes"] == 0.0
        assert all(type(x) is float for name, x in logs.items() if name.startswith("sinks/"))
    assert "sinks/sink_rate" in capsys.readouterr().out
    d = sg.diagnose(run.model.eval(), tokenizer(), TEXTS, tokens=48, samples=4, batch_size=4, detail="keys")
    assert isinstance(d, sg.Diagnosis)
    assert found[-1]["first_token_mass"] == float(d.mean_mass().mean)


def test_a_resumed_training_leaves_the_file_of_the_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, saving = tmp_path / "kept" / "sinks.jsonl", {"save_strategy": "steps", "save_steps": 3}

    def callback(path: Path) -> sg.SinkCallback:
        return sg.SinkCallback(TEXTS, tokenizer(), 2, path, tokens=48, spikes=sg.Spikes(1, 1.001))

    trainer(tmp_path / "whole", [callback(tmp_path / "whole.jsonl")], **saving).train()
    trainer(tmp_path / "cut", [callback(path), Stop(5)], **saving).train()
    assert [x["step"] for x in lines(path) if "spike" not in x] == [0, 2, 4]
    again = trainer(tmp_path / "cut", [callback(path)], **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "cut" / "checkpoint-3"))
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert any("spike" in line for line in lines(path))
    assert any(line.get("spikes") for line in lines(path))
    with pytest.raises(OutputError, match="already holds readings"):  # from the start, over the same file
        trainer(tmp_path / "other", [callback(path)]).train()


class Stop(TrainerCallback):
    """Ends the training behind a step, as a kill would."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.at


def test_refused_before_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger()
    sg.register()
    swapped = tiny("llama", attn="sinkgate_softpick")
    run = trainer(tmp_path / "a", [sg.SinkCallback(TEXTS), logger], model=swapped)
    with pytest.raises(UnsupportedError, match="sinkgate_softpick"):
        run.train()
    assert run.state.global_step == 0
    with pytest.raises(TextError, match="empty"):
        trainer(tmp_path / "b", [sg.SinkCallback([" "]), logger]).train()
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        trainer(tmp_path / "c", [sg.SinkCallback(TEXTS, path=tmp_path / "file" / "x.jsonl"), logger]).train()
    assert not [logs for _, logs in logger.seen if "loss" in logs]


def test_outlets_that_are_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An untouched gate is exactly 1, so that only what is read while it trains shows it."""
    model = tiny("llama")
    sg.add_outlet(model, sg.Gate("G1", preserve=2.0))
    logger = Logger()
    trainer(tmp_path, [sg.SinkCallback(TEXTS, every=3, tokens=48), logger], model=model).train()
    found = lines(tmp_path / "sinks.jsonl")
    assert found[0]["gate_mean"] == found[0]["gate_mean_null"] == 1.0
    assert found[-1]["gate_mean"] != 1.0
    assert [logs["sinks/gate_mean"] for _, logs in logger.seen if "sinks/gate_mean" in logs] == [
        line["gate_mean"] for line in found
    ]


def test_a_callback_that_nobody_knows_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Called by something that is no Trainer: there is no log to bring the readings to."""
    run = trainer(tmp_path, [])
    state, control = run.state, run.control
    callback: TrainerWatch = sg.SinkCallback(TEXTS, every=2, tokens=48)
    with pytest.warns(UserWarning, match="set_trainer"):
        callback.on_train_begin(run.args, state, control, model=run.model, processing_class=tokenizer())
    callback.on_train_end(run.args, state, control)
    assert [line["step"] for line in lines(tmp_path / "sinks.jsonl")] == [0]
    callback = sg.SinkCallback(TEXTS, every=2, tokens=48, path=tmp_path / "again.jsonl")
    callback.set_trainer(run)
    callback.on_train_begin(run.args, state, control, model=run.model, processing_class=tokenizer())
    assert "sinks/sink_rate" in run.state.log_history[-1]
    callback.on_train_end(run.args, state, control)
