"""Page 5: its arithmetic is that of Python, byte for byte, and every control does what it says."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import random
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from transformers import models as hf

from report.payloads import payload
from sinkgate.cache.schemes import Options, schemes
from sinkgate.cache.shape import CacheShape
from sinkgate.cache.sizes import BITS, human, parse_count
from sinkgate.cli import kv
from sinkgate.errors import ArgumentError
from sinkgate.report.html import Entry, document
from studio.watched import Serving, Watched, shown_address

SHAPE = ("layers", "heads", "head_dim", "kv_heads", "v_dim", "latent", "rotary", "sliding_layers", "window", "linear_layers", "linear_heads",
         "linear_k_dim", "linear_v_dim")  # fmt: skip
OPTIONS = (
    "context",
    "batch",
    "sinks",
    "recent",
    "window",
    "latent",
    "rotary",
    "share",
    "retrieval",
    "top_k",
    "group",
    "residual",
    "state_bits",
)

TWIN = """async (cases) => {
  const { uniform } = await import("sinkgate/kv/shape.js"), { schemes, ofModel } = await import("sinkgate/kv/schemes.js");
  const { human } = await import("sinkgate/kv/sizes.js"), { t } = await import("sinkgate/lib/language.js");
  return cases.map(([shape, options]) => {
    const { rows, leftOut } = schemes(uniform(shape), options);
    return { rows: rows.map((r) => [t(...r.name), r.tokenBytes, String(r.cacheBytes), String(r.stateBytes), String(r.readBytes), t(...r.note),
      human(r.totalBytes), human(r.tokenBytes), ofModel(r, rows[0])]), leftOut: leftOut.map(([n, why]) => [t(...n), t(...why)]) };
  });
}"""


def case(rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model and options, as the page holds them: 0 for the usual one."""
    kv_heads = rng.choice([1, 1, 2, 3, 4, 8, 16])
    heads, layers = kv_heads * rng.choice([1, 1, 2, 3, 4, 5, 7, 8, 12]), rng.randint(1, 130)
    sliding = rng.choice([0, 0, layers, rng.randint(0, layers)])
    shape = {
        "layers": layers, "heads": heads, "kv_heads": kv_heads, "head_dim": rng.randint(1, 300), "v_dim": rng.choice([0, rng.randint(1, 300)]),
        "latent": rng.choice([0, 0, rng.randint(1, 700)]), "rotary": rng.randint(1, 100), "sliding_layers": sliding, "window": rng.randint(1, 10**5),
        "linear_layers": rng.choice([0, 0, rng.randint(1, 60)]), "linear_heads": rng.choice([0, rng.randint(1, 64)]),
        "linear_k_dim": rng.choice([0, rng.randint(1, 300)]), "linear_v_dim": rng.choice([0, rng.randint(1, 300)]),
    }  # fmt: skip
    plain = rng.choice([16, 32])
    options = {
        "context": rng.choice([1, rng.randint(1, 3000), rng.randint(1, 2**24), rng.randint(1, 2**48)]), "batch": rng.choice([1, rng.randint(1, 999)]),
        "bits": [plain, *rng.sample([b for b in BITS if b != plain], rng.randint(0, 5))], "sinks": rng.randint(0, 70), "recent": rng.randint(1, 5000),
        "window": rng.choice([0, rng.randint(1, 9000)]), "latent": rng.choice([0, rng.randint(1, 900)]), "rotary": rng.choice([0, rng.randint(1, 90)]),
        "share": rng.randint(1, 9), "retrieval": rng.randint(0, 100) / 100, "top_k": rng.randint(1, 5000), "group": rng.randint(1, 200),
        "residual": rng.randint(0, 400), "state_bits": rng.choice([16, 32]), "plain": plain,
    }  # fmt: skip
    return shape, options


def python(shape: dict[str, Any], options: dict[str, Any]) -> tuple[CacheShape, Options]:
    """The same for Python."""
    optional = ("v_dim", "linear_heads", "linear_k_dim", "linear_v_dim")
    model = CacheShape.uniform(**{k: (v or None) if k in optional else v for k, v in shape.items()})
    asked = {k: (v or None) if k in ("window", "latent", "rotary") else v for k, v in options.items() if k != "plain"}
    return model, Options(**{**asked, "bits": tuple(asked["bits"])})


def printed(shape: CacheShape, options: Options) -> dict[str, Any]:
    """What Python says, in the page's form."""
    found = schemes(shape, options)
    whole = found.rows[0].total_bytes
    return {
        "rows": [
            [r.name, r.token_bytes, str(r.cache_bytes), str(r.state_bytes), str(r.read_bytes), r.note, human(r.total_bytes), human(r.token_bytes),
             f"{r.total_bytes / whole:.3g}×"] for r in found.rows
        ],
        "leftOut": [list(pair) for pair in found.left_out.items()],
    }  # fmt: skip


@pytest.fixture
def page(watched: Watched, as_file: Callable[..., str]) -> Page:
    return watched.open(as_file(document([], title="kv")) + "#page=kv")


def test_the_arithmetic_is_that_of_python(page: Page) -> None:
    rng = random.Random(7)
    cases = [case(rng) for _ in range(400)]
    for given, got in zip(cases, page.evaluate(TWIN, [list(c) for c in cases]), strict=True):
        assert got == printed(*python(*given)), given


def test_numbers_are_written_and_read_as_in_python(page: Page) -> None:
    rng = random.Random(8)
    sizes = [rng.randint(0, 2 ** rng.randint(1, 66)) for _ in range(500)] + [
        k * 2 ** rng.randint(0, 40) / 16 for k in range(1, 500)
    ]
    sizes = [float(x) for x in sizes]
    said = page.evaluate(
        "async (all) => { const { human } = await import('sinkgate/kv/sizes.js'); return all.map(human); }", sizes
    )
    assert said == [human(x) for x in sizes]
    texts = [
        "262144",
        "256k",
        "1M",
        "2**20",
        "2^18",
        "262_144",
        " 12 ",
        "",
        "0",
        "-3",
        "1.5",
        "k",
        "1kk",
        "2**60",
        "2**",
        "**2",
        "_1",
        "1_",
        "9" * 40,
        "2**2**2",
        "1e5",
        "2**48",
    ]
    got = page.evaluate(
        "async (all) => { const { parseCount } = await import('sinkgate/kv/sizes.js'); return all.map(parseCount); }",
        texts,
    )

    def count(text: str) -> int | None:
        try:
            return parse_count(text)
        except ArgumentError:
            return None

    assert got == [count(text) for text in texts]


CONFIGS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: hf.gpt2.GPT2Config(), "llama-7b": lambda: hf.llama.LlamaConfig(), "mistral-7b": lambda: hf.mistral.MistralConfig(),
    "gpt-oss-120b": lambda: hf.gpt_oss.GptOssConfig(), "deepseek-v3": lambda: hf.deepseek_v3.DeepseekV3Config(), "qwen3-next": lambda: hf.qwen3_next.Qwen3NextConfig(),
}  # fmt: skip


def test_a_known_shape_is_the_one_its_config_gives(page: Page) -> None:
    made = page.evaluate("""async () => {
      const { presets } = await import("sinkgate/kv/presets.js"), { shapeOf, usual } = await import("sinkgate/kv/fields.js");
      return Object.fromEntries(presets().map(([id, , shape]) => [id, shapeOf({ ...usual(), ...shape })]));
    }""")
    assert set(CONFIGS) < set(made)
    for name, config in CONFIGS.items():
        given = Counter(
            dataclasses.replace(layer, conv=0) for layer in CacheShape.from_config(config().to_dict()).layers
        )
        assert {json.dumps(dataclasses.asdict(k), sort_keys=True): n for k, n in given.items()} == {
            json.dumps(g["layer"], sort_keys=True): g["n"] for g in made[name]
        }, name
    assert made["deepseek-67b"] == [
        {"n": 95, "layer": dataclasses.asdict(CacheShape.uniform(95, 64, 128, kv_heads=8).layers[0])}
    ]


def test_a_known_model_on_this_machine_has_its_shape(page: Page) -> None:
    from sinkgate.hf.fetch import cache_dir, known_models

    for model in known_models().values():
        path = cache_dir() / "models" / f"{model.name}-{model.gguf_sha256[:12]}" / "config.json"
        if not path.exists():
            continue
        page.select_option("#kv-preset", f"known:{model.name}")
        shape = CacheShape.from_config(json.loads(path.read_text()))
        count = f"--layers {len(shape.layers)} "
        page.wait_for_function("s => document.querySelector('#kv-command').textContent.includes(s)", arg=count)
        rows = table(page)
        assert rows[0]["kept"] == str(
            schemes(shape, Options(context=int(page.input_value("input#kv-context"))))["this model"].total_bytes
        )


def table(page: Page) -> list[dict[str, str]]:
    """The table as its CSV, by column."""
    with page.expect_download() as waiting:
        page.click("#kv-table .tools button")
    text = Path(waiting.value.path()).read_text(encoding="utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def from_command(page: Page) -> dict[str, Any]:
    """What the command on the page prints."""
    words = shlex.split(page.inner_text("#kv-command"))
    assert words[:2] == ["sinkgate", "kv"]
    parser = argparse.ArgumentParser()
    kv.arguments(parser)
    args = parser.parse_args([*words[2:], "--json"])
    out = io.StringIO()
    import contextlib

    with contextlib.redirect_stdout(out):
        kv.run(args)
    return dict(json.loads(out.getvalue()))


def same_as_the_command(page: Page, *, saved: bool = False) -> None:
    """The table, its CSV and the bars say what the command prints."""
    said = from_command(page)
    shown = page.eval_on_selector_all(
        "#kv-table tbody tr", "all => all.map(r => [...r.children].map(c => c.textContent))"
    )
    names = ("token_bytes", "total_bytes", "state_bytes", "read_bytes")
    for cells, row in zip(shown, said["rows"], strict=True):
        assert cells[0] == row["name"]
        for cell, name in zip(cells[1:5], names, strict=True):
            exact = f"{int(row[name]):,}" if row[name] == int(row[name]) else str(row[name])
            assert cell == f"{human(row[name])}{exact} B"
        assert cells[-1] == row["note"]
    label = page.get_attribute("#kv-bars svg", "aria-label") or ""
    bars = [part.split(": ")[1] for part in label.split(". ", 1)[1].split("; ")]
    assert bars == [human(r["total_bytes"]) for r in said["rows"]]
    if saved:
        heads = ("a token adds", "kept", "of it, states", "read a step")
        for line, row in zip(table(page), said["rows"], strict=True):
            assert [float(line[head]) for head in heads] == [float(row[name]) for name in names]
            assert line["kept"] == str(row["total_bytes"])


def test_every_control_and_its_command(page: Page) -> None:
    same_as_the_command(page, saved=True)
    for name, text in {
        "context": "2**18", "batch": "3", "layers": "16", "heads": "24", "kv_heads": "4", "head_dim": "256", "v_dim": "128", "latent": "256",
        "rotary": "32", "sliding_layers": "5", "window": "1k", "sinks": "2", "recent": "300", "retrieval": "37", "share": "3", "top_k": "777",
        "group": "64", "residual": "100",
    }.items():  # fmt: skip
        page.fill(f"input#kv-{name}", text)
        same_as_the_command(page)
    page.click("#kv-linear summary")
    for name, text in {
        "linear_layers": "48",
        "linear_heads": "48",
        "linear_k_dim": "128",
        "linear_v_dim": "64",
    }.items():
        page.fill(f"input#kv-{name}", text)
    for name, value in {"plain": "32", "state_bits": "16"}.items():
        page.select_option(f"select#kv-{name}", value)
        same_as_the_command(page)
    page.check("#kv-bits-3")
    page.uncheck("#kv-bits-8")
    same_as_the_command(page)
    page.select_option("select#kv-mla", "1")
    same_as_the_command(page)
    assert page.is_disabled("input#kv-kv_heads")
    page.wait_for_timeout(400)
    before = [page.inner_text("#kv-command"), shown_address(page)]
    page.goto("about:blank")
    page.goto(before[1])
    Watched.ready(page)
    assert page.inner_text("#kv-command") == before[0]
    same_as_the_command(page)


def test_sliders_move_by_keyboard_and_stay_with_their_fields(page: Page) -> None:
    for name in page.eval_on_selector_all(
        ".kv-number input[type=range]", "all => all.map(e => e.nextElementSibling.id)"
    ):
        if not page.is_visible(f"#{name}"):
            page.click("#kv-linear summary")
        slider = page.locator(f".kv-number:has(#{name}) input[type=range]")
        slider.focus()
        before = page.inner_text("#kv-command")
        slider.press("Home")
        slider.press("ArrowRight")
        first = page.input_value(f"#{name}")
        assert slider.get_attribute("aria-valuetext") == first
        slider.press("End")
        assert page.input_value(f"#{name}") != first
        assert page.inner_text("#kv-command") != before
        if name == "kv-sliding_layers":
            slider.press("Home")
    same_as_the_command(page)


def test_what_is_impossible_is_said_and_nothing_breaks(page: Page) -> None:
    whole = page.inner_text("#kv-table")
    page.fill("input#kv-kv_heads", "4")
    assert page.inner_text("#kv-problem") == "9 heads cannot share 4 key-value heads: no multiple"
    with pytest.raises(ArgumentError, match="9 heads cannot share 4 key-value heads: no multiple"):
        CacheShape.uniform(30, 9, 64, kv_heads=4)
    assert page.inner_text("#kv-table") == whole
    page.fill("input#kv-kv_heads", "3")
    assert page.is_hidden("#kv-problem")
    page.fill("input#kv-sliding_layers", "31")
    assert page.inner_text("#kv-problem") == "sliding_layers is 31, of 30 layers"
    page.fill("input#kv-sliding_layers", "0")
    for bad in ("", "-1", "1.5", "x", "2**49", "<b>"):
        page.fill("input#kv-context", bad)
        assert page.get_attribute("input#kv-context", "aria-invalid") == "true"
        assert page.is_visible("#kv-context-wrong")
    assert page.inner_text("#kv-table") == whole
    page.fill("input#kv-context", "8k")
    assert page.is_hidden("#kv-context-wrong")
    assert page.inner_text("#kv-table") == whole


def test_measures_scales_and_the_chart(page: Page) -> None:
    said = from_command(page)
    for measure, column in (("read", "read_bytes"), ("token", "token_bytes"), ("kept", "total_bytes")):
        page.check(f'#kv-measure input[value="{measure}"]', force=True)
        for scale in ("linear", "log"):
            page.check(f'#kv-scale input[value="{scale}"]', force=True)
            label = page.get_attribute("#kv-bars svg", "aria-label") or ""
            assert [part.split(": ")[1] for part in label.split(". ", 1)[1].split("; ")] == [
                human(r[column]) for r in said["rows"]
            ]
    assert "kvscale" in shown_address(page)
    assert "kvshow" in shown_address(page)
    wide = page.eval_on_selector_all("#kv-bars rect", "all => all.map(e => +e.getAttribute('width'))")
    page.check('#kv-scale input[value="linear"]', force=True)
    linear = page.eval_on_selector_all("#kv-bars rect", "all => all.map(e => +e.getAttribute('width'))")
    totals = [r["total_bytes"] for r in said["rows"]]
    assert wide != linear
    assert [w / linear[0] for w in linear] == pytest.approx([x / totals[0] for x in totals], rel=1e-6)
    with page.expect_download() as waiting:
        page.click('#kv-context button:has-text("CSV")')
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text(encoding="utf-8-sig"))))
    assert len(rows) > 20
    for row in rows[::7]:
        want = schemes(CacheShape.uniform(30, 9, 64, kv_heads=3), Options(context=int(row["tokens of context"])))
        assert {r.name: str(r.total_bytes) for r in want.rows} == {
            k: v for k, v in row.items() if k != "tokens of context"
        }
    with page.expect_download() as waiting:
        page.click('#kv-bars button:has-text("SVG")')
    assert "<svg" in Path(waiting.value.path()).read_text(encoding="utf-8")
    page.focus("#kv-context svg")
    page.keyboard.press("Home")
    assert "this model: " in page.inner_text("#live")


def test_the_shape_of_a_record(watched: Watched, as_file: Callable[..., str], serving: Callable[..., Serving]) -> None:
    made = payload(layers=6, heads=8, kv_heads=2, windows=(1, 2))
    page = watched.open(as_file(document([Entry("0", "diagnosis", "a model", made)], title="kv")) + "#page=kv")
    want = f"--layers 6 --heads 8 --head-dim {made['model']['head_dim']} --kv-heads 2 --sliding-layers 2 --window {made['layers'][1]['window']}"
    assert want in page.inner_text("#kv-command")
    page.select_option("#kv-preset", "known:gpt2")
    page.wait_for_function("document.querySelector('#kv-command').textContent.includes('--layers 12')")
    same_as_the_command(page)
    page.select_option("#kv-preset", "record:0")
    page.wait_for_function("document.querySelector('#kv-command').textContent.includes('--layers 6')")
    assert want in page.inner_text("#kv-command")
    same_as_the_command(page)
    served = watched.open(serving().address + "#page=kv")
    same_as_the_command(served)


def test_hostile_addresses(watched: Watched, as_file: Callable[..., str]) -> None:
    address = as_file(document([], title="kv"))
    for asked in (
        "kv=layers-999999999999",
        "kv=__proto__-1.constructor-2.layers--1",
        "kv=bits-7-<b>.context-0",
        "kv=" + "layers-2." * 500,
        "kv=kv_heads-7",
        "kvshow=x&kvscale=y",
    ):
        page = watched.open(f"{address}#page=kv&{asked}")
        assert page.inner_text("#kv-table").count("MHA") == 1 or page.is_visible("#kv-problem")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_accessible_and_narrow(watched: Watched, as_file: Callable[..., str], scheme: str, language: str) -> None:
    address = as_file(document([], title="kv")) + f"#page=kv&lang={language}&theme={scheme}"
    page = watched.open(address)
    page.click("#kv-linear summary")
    found = Axe().run(page).response["violations"]
    assert [
        (v["id"], [n["target"] for n in v["nodes"]][:3]) for v in found if v["impact"] in ("serious", "critical")
    ] == []
    if language == "zh":
        english = re.findall(r"[A-Za-z]{4,} [a-z]{3,} [a-z]{2,}", page.inner_text("main"))
        assert [text for text in english if text not in page.inner_text("#kv-command")] == []
    narrow = watched.open(address, width=390)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 390
