"""The page of a comparison: offline, readable with one arm or twelve, the record's numbers and no others."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report.comparisons import comparison
from report.test_stream_report import HOSTILE, Page, figures
from sinkgate.errors import OutputError, RecordError
from sinkgate.lab.comparison_record import Comparison
from sinkgate.report.comparison import render, signed
from sinkgate.report.comparison_tables import minus
from sinkgate.report.metrics import METRICS, metric

LOST = comparison(3, 2, lost=lambda arm, rate, seed: True, cost=False)
UNEVEN = comparison(
    3, 3, (1e-3, 3e-3, 1e-2), spikes=(25, 26), lost=lambda arm, rate, seed: rate == 2 or (arm == 1 and seed == 1),
    ended=lambda arm, seed: 40 + 5 * seed if arm == 2 else None,
)  # fmt: skip


def empty() -> Comparison:
    """Nothing was logged or found but what every record has."""
    record = comparison(2, 2, (1e-3,), cost=False)
    for p in record.pieces:
        p["curve"], p["test"], p["select"], p["cost"] = (
            [],
            {"loss": None},
            {},
            {"seconds_per_step": None, "attempts": 1, "bytes": {}},
        )
    return record


def figure(page: str, title: str) -> dict[str, Any]:
    """What the script shows of the chart with that title."""
    found = re.search(rf'<span class="t">{re.escape(title)}</span>.*?<svg id="(c\d+)"', page, flags=re.S)
    assert found is not None, title
    return next(f for f in figures(page) if f["id"] == found[1])


def picture(page: str, title: str) -> str:
    """The drawing under a title."""
    found = re.search(rf'<span class="t">{re.escape(title)}</span>.*?(<svg.*?</figure>)', page, flags=re.S)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize(
    "record",
    [comparison(), comparison(1), comparison(1, 1, (1e-3,)), comparison(3, 1), comparison(2, 2, (1e-3,), cost=False), LOST, UNEVEN,
     empty(), comparison(12, 2, sweep=2, spikes=(30,))],
)  # fmt: skip
def test_nothing_is_loaded_and_every_tag_is_closed(record: Comparison) -> None:
    before = copy.deepcopy(record)
    page = render(record)
    parsed = Page(page)
    assert "://" not in page
    assert not re.search(r"@import|\burl\(|\bfetch\(|XMLHttpRequest|innerHTML|localStorage", page)
    for tag, attributes in parsed.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"}
        assert not [n for n in attributes if n.startswith("on") or n in ("src", "href")]
    drawn = [a["id"] for t, a in parsed.tags if t == "svg" and "id" in a]
    assert drawn == [f["id"] for f in figures(page)]
    shown = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.S)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", shown)
    assert page == render(record)
    assert record == before, "a page changes no record"


def test_the_findings_come_first_and_as_the_record_has_them() -> None:
    record = comparison()
    page = render(record)
    text = Page(page).text
    said = record.sentences()
    assert said[0].startswith("arm 1 is better than arm 0")
    assert "no difference found at this size" in said[1]
    places = [text.index(minus(line)) for line in said]
    assert places[0] < places[1] < text.index("In numbers")
    for shown in (
        "Lower is better", "the order of the data", "its own best learning rate of 2, chosen with 1 of 3 seeds", "paired by seed",
        "0, 1, 2", "0.001, 0.003", "a processor", "0123456789ab", "context",
    ):  # fmt: skip
        assert shown in text, shown
    assert "nothing was chosen" in Page(render(comparison(2, 2, (1e-3,)))).text
    assert "Higher is better" in render(_higher())


def _higher() -> Comparison:
    record = comparison()
    record.meta["higher"] = True
    return record


def test_every_cell_of_the_record_s_table_is_on_the_page() -> None:
    record = comparison()
    columns, rows = record.table()
    text = Page(render(record)).text
    for row in rows:
        for name, cell in zip(columns, row, strict=True):
            assert minus(cell) in text, (name, cell)
    page = render(record)
    (table,) = re.findall(r"<caption>Each arm at its best.*?</table>", page, flags=re.S)
    cells = [re.sub(r"<[^>]+>", "", c) for c in re.findall(r"<td[^>]*>(.*?)</td>", table)]
    width = len(cells) // 3
    assert cells[width : 2 * width] == [
        "0.001",
        minus(rows[1][2]),
        minus(rows[1][3]),
        "better",
        "0",
        "0/4",
        "1,001",
        "2.00",
    ]
    for arm in record.arms[1:]:
        assert signed(record.difference(arm)) == rows[record.arms.index(arm)][3]
    (beside,) = re.findall(r"<caption>Measured beside.*?</table>", page, flags=re.S)
    mean = record.interval("arm 2", "first_mass")
    assert f"{float(mean.mean):.4g}<small>±{(float(mean.high) - float(mean.low)) / 2:.2g}</small>" in beside
    assert "own_metric" in beside


def test_curves_over_steps_are_means_over_seeds() -> None:
    record = comparison()
    page = render(record)
    shown = figure(page, "First-token mass")
    steps = [line["step"] for line in record.pieces[0]["curve"] if "first_mass" in line]
    assert shown["place"] == [str(s) for s in steps]
    for i, arm in enumerate(record.arms):
        curves = [[line["first_mass"] for line in p["curve"] if "first_mass" in line] for p in record.at_best(arm)]
        np.testing.assert_allclose(shown["lines"][i]["value"], np.mean(curves, 0), rtol=1e-12)
    assert shown["lines"][3]["name"] == "uniform"
    assert set(shown["lines"][3]["value"]) == {0.05}
    first = re.search(r'<span class="t">([^<]*)</span></figcaption><div class="scroll plot"><svg id="c0"', page)
    assert first is not None
    assert first[1] == "Held-out loss"
    held = figure(page, "Held-out loss")["lines"][1]
    low, high = (3 + 5 * math.exp(-steps[0] / 20) + 0.1 + 0.01 * seed for seed in (0, 2))
    assert held["text"][0] == f"{held['value'][0]:.3g} ({low:.3g} to {high:.3g})"
    assert figure(page, "Gate, mean")["lines"][0]["value"] == [None] * len(steps)
    assert "(log scale)" in picture(page, "Largest activation")
    for title in ("Training loss", "Sink rate", "Kurtosis", "Gradient norm", "Mass"):
        assert picture(page, title).count('class="band') == 3, title
    assert 'class="band' not in render(comparison(7)), "so many areas would hide each other"
    assert 'class="band' not in render(comparison(3, 1))


def test_long_logs_are_means_of_stretches() -> None:
    record = comparison(2, 2, (1e-3,), steps=1000)
    page = render(record)
    shown = figure(page, "Training loss")
    assert len(shown["place"]) == 100
    assert shown["place"][3] == "30–39"
    losses = [[line["loss"] for line in p["curve"][30:40]] for p in record.at_best("arm 1")]
    assert shown["lines"][1]["value"][3] == pytest.approx(np.mean(losses), rel=1e-12)
    assert "the mean of what was logged in 10 steps" in page


def test_what_went_wrong_is_marked_and_said() -> None:
    page = render(UNEVEN)
    text = Page(page).text
    loss = picture(page, "Training loss")
    assert loss.count("<title>spike</title>") == 9 * 2
    assert "18 spikes" in text
    assert loss.count("<title>diverged</title>") == 1
    assert 'class="strand a1"' in loss, "the lost run, thin"
    assert 'class="strand a2"' in loss, "the seeds that went on alone"
    values = figure(page, "Training loss")["lines"]
    assert len([v for v in values[2]["value"] if v is not None]) == 40, "the mean ends with the first seed"
    means = [[line["loss"] for line in p["curve"]][:20] for p in UNEVEN.at_best("arm 1") if not p["diverged"]]
    np.testing.assert_allclose(values[1]["value"][:20], np.mean(means, 0), rtol=1e-12, err_msg="without the lost seed")
    top = max(v for line in values for v in line["value"] if v is not None)
    assert top > 20
    assert re.findall(r'text-anchor="end">(\d+)<', loss)[-1] == "8", "spikes set no scale"
    rates = picture(page, "Loss by learning rate")
    assert rates.count("<title>diverged</title>") == 3
    assert "arm 0 at 0.01 (1 of 1); arm 1 at 0.01 (1 of 1); arm 2 at 0.01 (1 of 1)" in text
    assert "arm 1 has no loss for 1 of 3 seeds" in text
    assert "diverged at step 29: loss is NaN" in text
    assert figure(page, "Loss by learning rate")["place"] == ["0.001", "0.003", "0.01"]
    assert figure(page, "Loss by learning rate")["lines"][0]["value"][2] is None
    swept = UNEVEN.sweep("arm 2")
    assert figure(page, "Loss by learning rate")["lines"][2]["value"][:2] == [swept[1e-3][0], swept[3e-3][0]]


def test_the_rate_that_was_chosen_is_filled() -> None:
    page = render(comparison())
    rates = picture(page, "Loss by learning rate")
    for i in range(3):
        filled, ring = (re.findall(rf'class="{kind}-a{i}" cx="([\d.]+)"', rates) for kind in ("dot", "ring"))
        assert len(filled) == len(ring) == 1
        assert float(filled[0]) < float(ring[0]), "the lower one"
    text = figure(page, "Loss by learning rate")["lines"][0]["text"]
    assert text[0].endswith(" chosen")
    assert not text[1].endswith("chosen")


def test_all_lost_is_said_and_shown() -> None:
    page = render(LOST)
    text = Page(page).text
    assert "arm 1 against arm 0: nothing to compare (diverged)." in text
    assert "arm 2 has no loss: no run at its rate came to its end." in text
    assert "may lie beyond" not in text, "no rate was the best one"
    assert picture(page, "Training loss").count('class="strand') == 6
    assert "The time of a step was not measured." in text


def test_a_run_that_ended_but_learned_nothing_is_in_no_mean() -> None:
    record = comparison(2, 3)
    lost = record.at_best("arm 1")[0]
    lost["diverged"], lost["test"]["loss"] = {"step": 59, "why": "the training loss ended no lower than it began"}, 50.0
    assert np.isnan(record.values("arm 1", "loss")[0])
    assert record.interval("arm 1", "loss").samples == 2
    assert float(record.interval("arm 1", "loss").mean) < 4


def test_differences_stand_around_zero() -> None:
    record = comparison()
    page = render(record)
    forest = picture(page, "Loss: arm − arm 0")
    assert forest.count('class="interval') == 2
    assert forest.count('class="dot-a1"') == 1, "filled: it leaves out zero"
    assert forest.count('class="ring-a2"') == 1
    assert forest.count('class="seed') == 6
    for arm in record.arms[1:]:
        assert minus(signed(record.difference(arm))) in forest
    zero = float(re.search(r'class="zero" d="M([\d.]+)', forest)[1])  # type: ignore[index]
    first, second = (
        [float(x) for x in found] for found in re.findall(r'class="interval a\d" d="M([\d.]+) [\d.]+H([\d.]+)', forest)
    )
    assert first[1] < zero
    assert second[0] < zero < second[1]
    assert "← better" in forest
    assert "← worse" in picture(render(_higher()), "Loss: arm − arm 0")
    assert "← lower" in picture(page, "First-token mass: arm − arm 0")
    alone = picture(render(comparison(3, 1)), "Loss: arm − arm 0")
    assert 'class="interval' not in alone
    assert "one seed: no spread, nothing can be said" in alone


def test_lists_by_length_position_depth_and_layer() -> None:
    record = comparison()
    page = render(record)
    length, stretched = figure(page, "Loss by length"), figure(page, "Loss by length, with YaRN")
    assert length["place"] == stretched["place"] == ["64", "128"]
    assert length["lines"][1]["value"] == [4.0, 5.0]
    assert stretched["lines"][1]["value"] == [4.0, 4.2]
    scale = [
        re.findall(r'text-anchor="end">([^<]*)<', picture(page, t))
        for t in ("Loss by length", "Loss by length, with YaRN")
    ]
    assert scale[0] == scale[1], "beside each other on one scale"
    depth = figure(page, "Recall by depth")
    assert depth["place"] == ["10%", "90%"]
    assert depth["lines"][0]["value"] == [0.5, pytest.approx(0.25 / 3)]
    assert depth["lines"][3]["name"] == "by chance"
    layer = figure(page, "First-token mass by layer")
    assert layer["place"] == ["0", "1", "2"]
    assert layer["lines"][0]["value"] == [pytest.approx(0.1), pytest.approx(0.21), None]
    position = figure(page, "Loss by position")
    assert position["place"][0] == "1"
    assert position["place"][-1].endswith("–200")
    assert len(position["place"]) <= 50
    edges = [[int(x) for x in place.split("–")] for place in position["place"]]
    assert all(b[0] == a[-1] + 1 for a, b in itertools.pairwise(edges)), "each position once"
    wanted = [np.mean([4 - 0.01 * k + 1 for k in range(e[0] - 1, e[-1])]) for e in edges]  # seeds 0, 1, 2
    np.testing.assert_allclose(position["lines"][0]["value"], wanted)


def test_cost_and_configuration() -> None:
    page = render(comparison())
    (costs,) = re.findall(r"<caption>Time and memory of one step.*?</table>", page, flags=re.S)
    text = re.sub(r"<[^>]+>", "|", costs)
    for shown in ("20 ms", "2.00", "4 KiB", "8 KiB", "3 MiB", "1,002"):
        assert shown in text, shown
    assert page.count("<summary>Arm: ") == 3
    for shown in ("arm.weighting.name", "training.betas", "0.9, 0.95", "0123456789ab", "All 12 runs"):
        assert shown in page, shown
    other = comparison()
    other.pieces[-1]["environment"]["code"] = "ffffffffffff"
    assert "they differ in code" in render(other)
    assert "they differ" not in page


def test_what_comes_from_outside_is_data() -> None:
    record = comparison(
        [HOSTILE, f"{HOSTILE} two", "c"], spikes=(30,), lost=lambda arm, rate, seed: arm == 1 and seed == 0
    )
    record.meta["plan"]["task"] |= {"name": HOSTILE, HOSTILE: HOSTILE}
    record.meta["environment"]["cpu"] = HOSTILE
    record.meta["headline"] = record.meta["shown"][-1] = HOSTILE
    for p in record.pieces:
        for part in ("select", "test"):
            if p[part]:
                p[part] |= {HOSTILE: p[part]["loss"], f"{HOSTILE}_by_layer": [1.0, 2.0]}
        p["curve"] = [{**line, HOSTILE: line["loss"]} for line in p["curve"]]
        p["environment"]["code"] = HOSTILE
        if p["diverged"]:
            p["diverged"]["why"] = HOSTILE
    page = render(record)
    page.encode()
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    assert not set("\u202e\x00") & set(page)
    assert page.count("<h1>") == 1
    Page(page)
    assert figures(page)[0]["lines"][0]["name"].startswith("</script><script>")


def test_twelve_arms_and_five_seeds_are_under_a_megabyte() -> None:
    record = comparison(12, 5, (1e-3, 3e-3, 1e-2), steps=2000, sweep=2, spikes=tuple(range(100, 1000, 9)))
    page = render(record)
    assert len(page.encode()) < 1_000_000
    looks = re.findall(r'<path class="series (a\d)"(?: stroke-dasharray="([^"]+)")?', picture(page, "Held-out loss"))
    assert len(set(looks)) == 12, "told apart without colour"
    names = [
        float(y) for y in re.findall(r'<text class="strong halo" x="[\d.]+" y="([\d.-]+)"', picture(page, "Kurtosis"))
    ]
    assert len(names) == 12
    assert min(np.diff(sorted(names))) >= 15
    assert min(names) > 0


def test_words_of_the_lab_say_what_the_code_does() -> None:
    from sinkgate.lab.measure import CLOSED, DEAD, EPS

    assert f"{EPS:g}" in metric("sink_rate").says
    assert f"{EPS:g}" in metric("any_sink_rate").says
    assert f"{CLOSED:g}" in metric("gate_closed").says
    assert DEAD == 0.01
    assert "a hundredth" in metric("dead_heads").says
    assert all(m.says.endswith(".") and m.name == name for name, m in METRICS.items())
    assert metric("my_own").title == metric("my_own").label == metric("my_own").full == "my_own"
    assert metric("sink_rate_by_layer").label == "sink rate by layer"
    assert metric("my_own_by_layer").label == "my_own_by_layer"


def test_the_number_of_a_task_with_an_end_is_shown_as_it_is() -> None:
    """A task without evaluations whose headline is logged at every step, as the trigger task's."""
    record = comparison(2, 2, (1e-3,), ended=lambda arm, seed: 30 + 10 * seed)
    record.meta["headline"], record.meta["shown"] = "linf", ["solved", "bos_least"]
    for p in record.pieces:
        p["test"] = {"linf": 0.004 + 0.001 * p["piece"]["seed"], "solved": 1.0, "bos_least": 0.99}
        p["select"] = dict(p["test"])
        p["curve"] = [
            {"step": s, "loss": 1 / (s + 1), "lr": 1e-3, "grad_norm": 1.0, "linf": 2 / (s + 1)}
            for s in range(p["steps"])
        ]
    page = render(record)
    shown = figure(page, "Largest error")
    assert shown["id"] == "c0"
    assert [v for v in shown["lines"][0]["value"] if v is not None] == [2 / (s + 1) for s in range(30)]
    assert "Of the batches that were trained on." in page
    assert "BOS mass, least" in page


def test_it_is_written_and_shown_again_without_torch(tmp_path: Path) -> None:
    record = comparison()
    folder = tmp_path / "r"
    record.save(folder / "record.json")
    page = record.to_html(tmp_path / "deep" / "report.html")
    assert page.read_text() == render(record)
    assert [p.name for p in page.parent.iterdir()] == ["report.html"]
    with pytest.raises(OutputError, match="cannot write the report"):
        record.to_html(page / "below.html")
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers'): raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from sinkgate.cli import main\n"
        f"raise SystemExit(main(['show', {str(folder)!r}, '--html', {str(tmp_path / 'again.html')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{record}\n"
    assert (tmp_path / "again.html").read_text() == page.read_text()


@pytest.mark.parametrize("damage", [
    lambda d: d["meta"].pop("plan"), lambda d: d["meta"].update(arms=["x"]), lambda d: d.update(pieces=[]), lambda d: d.update(pieces=3),
    lambda d: d["pieces"][0].pop("piece"), lambda d: d["pieces"][0].update(test=None), lambda d: d.update(version=2), lambda d: d.update(meta=None),
    lambda d: d["pieces"][0].pop("curve"), lambda d: d["meta"].update(cost=[]),
])  # fmt: skip
def test_a_damaged_record_is_one_clear_error(damage: Any, tmp_path: Path) -> None:
    path = comparison().save(tmp_path / "record.json")
    data = json.loads(path.read_text())
    assert render(Comparison.load(path)) == render(comparison())
    damage(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=r"record\.json"):
        Comparison.load(path)
