"""``sinkgate generate`` and ``sinkgate chat`` as a person uses them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import sinkgate as sg
from models import tiny, tokenizer, words
from sinkgate.cli import main
from sinkgate.errors import ArgumentError, NonFiniteError
from sinkgate.hf import writing
from sinkgate.hf.turns import turns
from sinkgate.hf.writing import Sampling, Writer, _Text, end_ids, pick

Run = Callable[..., Any]
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}w5 {{ m['content'] }} . {% elif m['role'] == 'user' %}"
    "<pad> w1 {{ m['content'] }} <pad> {% else %}w2 {{ m['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}w2 {% endif %}"
)


@pytest.fixture(scope="module")
def chat_dir(model_dir: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = Path(shutil.copytree(model_dir, tmp_path_factory.mktemp("chat") / "model"))
    made = tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(path)
    return str(path)


def greedy(model: Any, ids: list[int], count: int) -> list[int]:
    """By whole plain passes."""
    for _ in range(count):
        with torch.no_grad():
            ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[-count:]


# ---- generate --------------------------------------------------------------------------------------------------------


def test_greedy_text_is_that_of_plain_passes(run: Run, model_dir: str, tmp_path: Path) -> None:
    prompt = words(20)
    loaded = sg.load(model_dir)
    ids = loaded.tokenizer(prompt)["input_ids"]
    assert ids[0] == 0, "the token that begins a text"
    wanted = loaded.tokenizer.decode(greedy(loaded.model, ids, 12), skip_special_tokens=True)
    done = run("generate", model_dir, "--prompt", prompt, "--max-new-tokens", "12")
    assert done.code == 0, done.err
    assert done.out.split() == wanted.split()
    note, stats = done.err.splitlines()
    assert note == "sinkgate: note: the policy keeps 1024 tokens, but LlamaForCausalLM was made for 512 positions"
    assert re.fullmatch(
        r"sinkgate: 21 tokens read at [\d,.]+/s, 12 written at [\d,.]+/s; 33 tokens seen, 33 held in [\d.]+ KiB "
        r"\(recent\(1020\) \+ sinks\(4\), positions: slots\)", stats,
    )  # fmt: skip
    (tmp_path / "prompt.txt").write_text(prompt)
    filed = run(
        "generate", model_dir, "--prompt-file", str(tmp_path / "prompt.txt"), "--max-new-tokens", "12", "--chunk", "7"
    )
    assert filed.out == done.out


def test_memory_stays_bounded(run: Run, model_dir: str) -> None:
    done = run(
        "generate", model_dir, "--prompt", words(300), "--policy", "recent(20) + sinks(4)", "--max-new-tokens", "30"
    )
    assert done.code == 0, done.err
    assert "331 tokens seen, 24 held in" in done.err
    assert "(recent(20) + sinks(4), positions: slots)" in done.err


def test_sampling(run: Run, model_dir: str) -> None:
    def text(*more: str) -> str:
        done = run("generate", model_dir, "--prompt", "w1 w2", "--max-new-tokens", "15", *more)
        assert done.code == 0, done.err
        return done.out

    plain = text()
    assert text("--temperature", "2", "--top-k", "1") == plain
    assert text("--temperature", "2", "--top-p", "1e-9") == plain
    assert text("--temperature", "1e-9") == plain
    hot = text("--temperature", "5", "--seed", "1")
    assert hot == text("--temperature", "5", "--seed", "1") != plain
    assert hot != text("--temperature", "5", "--seed", "2")


def test_stop_texts_are_not_part_of_it(run: Run, model_dir: str) -> None:
    whole = run("generate", model_dir, "--prompt", "w1 w2", "--max-new-tokens", "15").out
    stop = whole.split()[6]
    cut = whole.index(stop)
    stopped = run(
        "generate", model_dir, "--prompt", "w1 w2", "--max-new-tokens", "15", "--stop", "nowhere", "--stop", stop
    )
    assert stopped.out == whole[:cut] + "\n"
    assert "15 written" not in stopped.err


def test_the_token_that_ends_a_text(run: Run, model_dir: str, tmp_path: Path) -> None:
    path = shutil.copytree(model_dir, tmp_path / "model")
    loaded = sg.load(model_dir)
    wanted = greedy(loaded.model, loaded.tokenizer("w1 w2")["input_ids"], 6)
    config = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [95, wanted[3]]}))
    done = run("generate", str(path), "--prompt", "w1 w2", "--max-new-tokens", "6")
    first = wanted.index(wanted[3])
    assert f"{first} written" in done.err
    assert f"{3 + first} tokens seen" in done.err
    assert "6 written" in run("generate", str(path), "--prompt", "w1 w2", "--max-new-tokens", "6", "--ignore-end").err


def one_line(done: Any, *expected: str, code: int = 1) -> None:
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("sinkgate: ")
    assert done.err.count("\n") == 1, done.err
    for part in expected:
        assert part in done.err, done.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "give --prompt TEXT or --prompt-file FILE"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "w1", "--prompt-file", "x"], "not both"),
        (["--prompt-file", "/nowhere"], "cannot read the text '/nowhere'"),
        (["--prompt", "w1", "--chunk", "0"], "chunk must be"),
    ],
)
def test_prompts_that_are_refused(run: Run, model_dir: str, arguments: list[str], expected: str) -> None:
    one_line(run("generate", model_dir, "--policy", "recent(9)", *arguments), expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--policy", "recent(0)"], "recent(n)"),
        (["--policy", "lately(4)"], "there is no policy 'lately'"),
        (["--temperature", "-1"], "temperature must be"),
        (["--temperature", "nan"], "temperature must be"),
        (["--temperature", "1", "--top-p", "0"], "top_p must be"),
        (["--temperature", "1", "--top-k", "-1"], "top_k must be"),
        (["--top-k", "4"], "need a temperature"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be"),
    ],
)
@pytest.mark.parametrize("verb", [["generate", "--prompt", "w1"], ["chat"]])
def test_options_are_refused_before_anything_is_fetched(
    run: Run, verb: list[str], options: list[str], expected: str
) -> None:
    one_line(run(verb[0], "no-such-model", *verb[1:], *options), expected)


def test_a_prompt_through_a_pipe(model_dir: str) -> None:
    command = [sys.executable, "-m", "sinkgate", "generate", model_dir, "--max-new-tokens", "3"]
    done = subprocess.run(command, input=words(9).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"3 written" in done.stderr
    nothing = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert nothing.returncode == 1
    assert "give --prompt" in nothing.stderr


def interrupting(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A Ctrl-C in the middle of this pass."""
    passed, count = Writer._pass, [0]

    def _pass(self: Writer, ids: Any) -> int:
        count[0] += 1
        if count[0] == at:
            os.kill(os.getpid(), signal.SIGINT)
        return passed(self, ids)

    monkeypatch.setattr(Writer, "_pass", _pass)


def test_ctrl_c_ends_a_text_between_two_passes(run: Run, model_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    whole = run("generate", model_dir, "--prompt", "w1 w2", "--max-new-tokens", "15").out
    interrupting(monkeypatch, at=6)
    done = run("generate", model_dir, "--prompt", "w1 w2", "--max-new-tokens", "15")
    assert done.code == 130
    assert whole.startswith(done.out.rstrip("\n"))
    assert len(done.out.split()) == 5
    assert "5 written" in done.err
    assert done.err.endswith("sinkgate: interrupted; what was written stands\n")
    assert signal.getsignal(signal.SIGINT) is before


# ---- the pieces ------------------------------------------------------------------------------------------------------


def bytes_tokenizer() -> Any:
    """One token per byte."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.mark.parametrize("text", ["plain words", "naïve café", "日本語 und 🙂🙃", "👩‍👩‍👧", "e\u0301"])
def test_characters_come_whole(text: str) -> None:
    known = bytes_tokenizer()
    out = _Text(known, known.encode("before "), ())
    pieces = [out.add(i) for i in known.encode(text)]
    assert "".join(pieces) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert out.flush() == ""
    assert len(out.ids) < 20, "only a few tokens are remembered"


def test_bytes_that_are_no_text_are_not_waited_for_forever() -> None:
    known = bytes_tokenizer()
    broken = known.encode("é")[0]
    out = _Text(known, (), ())
    pieces = [out.add(i) for i in [*known.encode("a"), *[broken] * 20, *known.encode("b")]]
    text = "".join(pieces) + out.flush()
    assert text.startswith("a\N{REPLACEMENT CHARACTER}")
    assert text.endswith("b")


@pytest.mark.parametrize("stop", [("STOP",), ("xx", "STOP"), ("OP", "STOP"), ("P", "STOP!")])
def test_stop_texts_across_tokens(stop: tuple[str, ...]) -> None:
    known = bytes_tokenizer()
    out = _Text(known, (), stop)
    given = ""
    for i in known.encode("go STO and STOP! more"):
        given += out.add(i)
        if out.rest is not None:
            break
    cut = min("go STO and STOP! more".index(s) for s in stop if s in "go STO and STOP! more")
    if stop[0] == "P":
        cut = "go STO and STOP! more".index("P")
    assert given == "go STO and STOP! more"[:cut]
    assert out.rest is not None
    assert out.rest.startswith(tuple(stop))
    unfinished = _Text(known, (), stop)
    shown = "".join(unfinished.add(i) for i in known.encode("a STO")) + unfinished.flush()
    assert shown == "a STO"


def test_choices_follow_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])
    for sampling, allowed in (
        (Sampling(1.0), 4), (Sampling(1.0, top_k=2), 2), (Sampling(1.0, top_p=0.7), 2), (Sampling(1.0, top_p=0.5), 1),
        (Sampling(0.5, top_k=3), 3), (Sampling(1.0, top_k=99), 4),
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        drawn = (
            torch.bincount(torch.tensor([pick(logits, sampling, generator) for _ in range(3000)]), minlength=5) / 3000
        )
        wanted = torch.softmax(logits[:allowed] / sampling.temperature, -1)
        torch.testing.assert_close(drawn[:allowed], wanted, atol=0.03, rtol=0)
        assert float(drawn[allowed:].sum()) < 0.01
    assert pick(logits, Sampling(), torch.Generator()) == 0
    with pytest.raises(NonFiniteError, match="NaN"):
        pick(torch.tensor([1.0, float("nan")]), Sampling(), torch.Generator())


def test_nothing_to_go_on_from() -> None:
    model = tiny("llama")
    with sg.streaming(model, "recent(9)") as cache, pytest.raises(ArgumentError, match="nothing to go on from"):
        list(Writer(model, tokenizer(), cache).write(3))
    assert end_ids(model, tokenizer()) == set()


# ---- chat ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def talk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``sinkgate chat`` with these lines piped in."""

    def chat(model: str, lines: list[str], *args: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        capsys.readouterr()
        code = main(["chat", model, *args])
        captured = capsys.readouterr()
        return type("Ran", (), {"code": code, "out": captured.out, "err": captured.err})

    return chat


def saved(path: Path) -> list[int]:
    with safe_open(path, "pt") as f:
        return f.get_tensor("ids")[0].tolist()


@pytest.mark.parametrize("system", [[], ["--system", "w7 w8"]])
def test_what_was_read_is_the_template_of_the_whole_conversation(
    talk: Any, chat_dir: str, tmp_path: Path, system: list[str]
) -> None:
    path = tmp_path / "talk.safetensors"
    done = talk(chat_dir, ["w10 w11", "w12", "w13 w14 w15", f"/save {path}"], "--max-new-tokens", "5", *system)
    assert done.code == 0, done.err
    answers = done.out.splitlines()
    assert [len(a.split()) for a in answers] == [5, 5, 5]
    known = sg.load(chat_dir).tokenizer
    messages = [{"role": "system", "content": "w7 w8"}] if system else []
    for said, answer in zip(["w10 w11", "w12", "w13 w14 w15"], answers, strict=True):
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    text = known.apply_chat_template(messages, tokenize=False)
    assert saved(path) == known(text)["input_ids"]
    assert "sinkgate: saved: " in done.err


def test_only_new_tokens_go_through_and_memory_is_bounded(
    talk: Any, chat_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, sizes = Writer._pass, []
    monkeypatch.setattr(Writer, "_pass", lambda self, ids: (sizes.append(len(ids)), passed(self, ids))[1])
    done = talk(chat_dir, ["w1 w2 w3"] * 12 + ["/state"], "--policy", "recent(20) + sinks(4)", "--max-new-tokens", "4")
    assert done.code == 0, done.err
    read = [n for n in sizes if n > 1]
    assert len(set(read[1:])) == 1, "each turn reads as much as the one before"
    state = json.loads(done.out[done.out.index("{") :])
    assert state["seen"] == sum(sizes)
    assert state["held"] == 24
    assert state["policy"] == "recent(20) + sinks(4)"
    assert state["positions"] == "slots"
    assert state["bytes"] > 0
    assert f"{state['seen']:,} tokens seen, 24 held" in done.err.splitlines()[-1]


def test_a_conversation_is_saved_and_gone_on_with(talk: Any, chat_dir: str, tmp_path: Path) -> None:
    options = ["--policy", "recent(16) + sinks(4)", "--max-new-tokens", "6"]
    whole = talk(chat_dir, ["w1 w2", "w3", "w4 w5"], *options).out.splitlines()
    path = tmp_path / "talk"
    first = talk(chat_dir, ["w1 w2", "w3", f"/save {path}", "w9"], *options)
    second = talk(chat_dir, ["w30", f"/load {path}", "w4 w5"], *options)
    assert first.code == second.code == 0, second.err
    assert "sinkgate: loaded: " in second.err
    assert first.out.splitlines()[:2] == whole[:2]
    assert second.out.splitlines()[1] == whole[2]
    assert second.out.splitlines()[0] != whole[2]


def test_reset_begins_again(talk: Any, chat_dir: str) -> None:
    done = talk(chat_dir, ["w1 w2", "w3", "/reset", "w1 w2", "/quit", "w9"], "--max-new-tokens", "6")
    lines = done.out.splitlines()
    assert len(lines) == 3, "what stands behind /quit is not read"
    assert lines[0] == lines[2]
    assert "everything is forgotten" in done.err


def test_commands_that_fail_are_one_line_and_the_conversation_goes_on(talk: Any, chat_dir: str, tmp_path: Path) -> None:
    lines = ["w1", "/nothing", "/save", "/load /nowhere/at/all", f"/save {tmp_path}", "", "   ", "w2"]
    done = talk(chat_dir, lines, "--max-new-tokens", "3", "--policy", "recent(50)")
    assert done.code == 1, "something failed"
    assert len(done.out.splitlines()) == 2
    said = [line for line in done.err.splitlines() if "stopped at --max-new-tokens 3" not in line]
    assert all(line.startswith("sinkgate: ") for line in said)
    assert "there is no command /nothing; /state: what the cache holds" in said[1]
    assert said[2] == "sinkgate: /save needs a file: /save FILE"
    assert "/nowhere/at/all" in said[3]
    assert "cannot write" in said[4]
    other = talk(chat_dir, ["w1", f"/save {tmp_path / 'a'}"], "--policy", "recent(9)")
    assert other.code == 0
    assert "another policy" in talk(chat_dir, [f"/load {tmp_path / 'a'}", "w1"], "--policy", "recent(10)").err


def test_a_piece_of_the_program_that_is_not_there(
    talk: Any, chat_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sinkgate.hf.stream_files", None)
    assert "a cache cannot be saved here" in talk(chat_dir, ["w1", f"/save {tmp_path / 'a'}"]).err


def test_without_a_template_turns_are_lines_of_text(talk: Any, model_dir: str) -> None:
    done = talk(model_dir, ["w1 w2", "w3"], "--max-new-tokens", "4")
    assert done.code == 0, done.err
    assert "no chat template: plain text turns" in done.err
    assert [len(x.split()) for x in done.out.splitlines()] == [4, 4]
    made = turns(tokenizer(bos=True), "Be brief.", [0])
    assert (made.head, made.between, made.tail) == ("Be brief.\n\nUser: ", "\nUser: ", "\nAssistant:")
    assert made.stop == ("\nUser:",)
    assert made.prefix == (0,)


def test_a_stop_text_that_went_through_is_not_said_twice() -> None:
    made, known = turns(tokenizer()), bytes_tokenizer()
    read = lambda **kw: known.decode(made.ids(known, "hello", **kw))  # noqa: E731
    assert read(begun=False) == "User: hello\nAssistant:"
    assert read(begun=True) == "\nUser: hello\nAssistant:"
    assert read(begun=True, rest="\nUser:") == " hello\nAssistant:"
    assert read(begun=True, rest="\nUser: what") == "\nUser: hello\nAssistant:"


def test_a_model_that_speaks_for_the_user_is_stopped(
    talk: Any, model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(model_dir, tmp_path / "model"))
    bytes_tokenizer().save_pretrained(path)
    torch.manual_seed(0)
    model = tiny("llama")
    model.resize_token_embeddings(256, mean_resizing=False)
    model.save_pretrained(path)
    known = bytes_tokenizer()
    script = iter(known.encode(" I see.\nUser: and"))
    monkeypatch.setattr(writing, "pick", lambda *_: next(script))
    file = tmp_path / "talk"
    done = talk(str(path), ["hello", f"/save {file}"])
    assert done.code == 0, done.err
    assert done.out == "I see.\n"
    assert known.decode(saved(file)) == "User: hello\nAssistant: I see.\nUser:"
    script = iter(known.encode(" Yes.\nUser:"))
    done = talk(str(path), ["hello", f"/save {file}"])
    script = iter([*known.encode(" A.\nUser:"), *known.encode(" B.\nUser:")])
    done = talk(str(path), ["hello", "more", f"/save {file}"])
    assert done.out == "A.\nB.\n"
    assert known.decode(saved(file)) == "User: hello\nAssistant: A.\nUser: more\nAssistant: B.\nUser:"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",  # says everything twice
        "{{ messages[-1]['content'] }}",  # knows only the last
        "{{ raise_exception('no') }}",
        "{% for m in messages %}{{ loop.length }} {{ m['content'] }} {% endfor %}",  # the beginning depends on the end
    ],
)
def test_a_template_that_cannot_be_taken_turn_by_turn(template: str) -> None:
    known = tokenizer()
    known.chat_template = template
    assert "plain text turns" in turns(known).note


def test_a_template_without_a_system_message() -> None:
    known = tokenizer()
    known.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TEMPLATE
    )
    assert turns(known).note == ""
    with pytest.raises(ArgumentError, match="no --system message: no system role"):
        turns(known, "w1")


def test_the_end_of_a_turn_is_an_end() -> None:
    known = tokenizer()
    known.chat_template = (
        "{% for m in messages %}w1 {{ m['content'] }} <pad> {% endfor %}{% if add_generation_prompt %}w1 {% endif %}"
    )
    assert turns(known).ends == frozenset({1})


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(
    talk: Any, chat_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, at=4)
    path = tmp_path / "talk"
    done = talk(chat_dir, ["w10", "w11", f"/save {path}"], "--max-new-tokens", "9")
    assert done.code == 0, done.err
    first, second = done.out.splitlines()
    assert len(first.split()) == 3
    assert len(second.split()) == 9
    assert "sinkgate: stopped\n" in done.err
    known = sg.load(chat_dir).tokenizer
    text = known.apply_chat_template(
        [{"role": "user", "content": "w10"}, {"role": "assistant", "content": first},
         {"role": "user", "content": "w11"}, {"role": "assistant", "content": second}], tokenize=False,
    )  # fmt: skip
    assert saved(path) == known(text)["input_ids"], "what was shown is what the model remembers"


def test_ctrl_c_while_it_reads(talk: Any, chat_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, at=2)
    done = talk(chat_dir, [words(40), "w11"], "--max-new-tokens", "3", "--chunk", "10")
    assert done.code == 0, done.err
    assert "stopped after reading 20 of 44 tokens" in done.err
    assert len(done.out.splitlines()) == 1
