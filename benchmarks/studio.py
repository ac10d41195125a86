"""How the studio feels: first paint, a slider's answer, a large map, and readers while the default model writes.

Everything runs as a person runs it: the command in a process of its own, over a real record of the real default model,
in Debian's Chromium. Medians of ``ROUNDS``.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import write

ROUNDS = 20
MODEL = "smollm2-135m"
RECORD = Path(__file__).parents[1] / "build" / "studio" / "demo"
KEYS = 64  # of the simulator's row
LAYERS, HEADS = 48, 64  # of the large map
READERS, WAVES = 200, 5
BOUNDS = {"first_paint_ms": 1000, "slider_ms": 16, "map_ms": 100, "readers_p95_ms": 1000, "report_bytes": 3_000_000}

# The time of one input event: its handlers, and the styles and places of what they changed; then until it was painted.
MOVE = """const slider = document.querySelectorAll('input[type="range"]:not(:disabled)')[dial], lo = +slider.min, hi = +slider.max;
  const move = (i) => {
    slider.value = String(lo + (hi - lo) * (0.2 + 0.6 * ((i * 7) % 20) / 20));
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    document.body.getBoundingClientRect();
  };"""
# Seen on the clock, and on that of the page's own thread: on a busy machine the first also counts others' work.
SLIDE_ONCE = f"([dial, i]) => {{ {MOVE} move(i); }}"
SLIDE = (
    "async (dial) => {"
    + MOVE
    + """
  const painted = () => new Promise((done) => requestAnimationFrame(() => { const after = new MessageChannel(); after.port1.onmessage = done; after.port2.postMessage(0); }));
  const worked = [], framed = [];
  for (let i = 0; i <= ROUNDS; i++) {
    await painted();
    const start = performance.now();
    move(i);
    const end = performance.now();
    await painted();
    if (i) { worked.push(end - start); framed.push(performance.now() - start); }
  }
  return { name: slider.dataset.dial ?? slider.id, worked, framed };
}""".replace("ROUNDS", str(ROUNDS))
)

DRAW = """async () => {
  const { drawMap } = await import("sinkgate/model/map.js");
  const payload = JSON.parse(document.getElementById("payload").textContent).records[0].payload, grid = document.getElementById("grid"), times = [];
  for (let i = 0; i <= ROUNDS; i++) {
    const start = performance.now();
    drawMap(grid, payload, { metric: payload.metrics[i % payload.metrics.length].id, layer: 0, head: 0, theme: "light" });
    grid.getBoundingClientRect();
    if (i) times.push(performance.now() - start);
    await new Promise((done) => setTimeout(done, 50));
  }
  return [times, grid.querySelectorAll(".cell").length];
}""".replace("ROUNDS", str(ROUNDS))

TIMES = "[performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null, window.readyAt ?? null]"
READY = """new MutationObserver(() => { if (document.documentElement?.dataset.ready && !window.readyAt) window.readyAt = performance.now(); })
  .observe(document, { attributes: true, subtree: true })"""


def main() -> None:
    """Measure, and keep what was found."""
    if not (RECORD / "record.json").exists():
        run = [sys.executable, "-m", "sinkgate", "diagnose", MODEL, "--out", str(RECORD)]
        subprocess.run(run, check=True, capture_output=True)
    found: dict[str, Any] = {"rounds": ROUNDS, "model": MODEL, "bounds": BOUNDS}
    found["report_bytes"] = report()
    with studio() as address:
        found |= pages(address)
        found["readers"] = readers(address)
    for name, value in found.items():
        print(name, value)
    write("studio", found)


@contextmanager
def studio() -> Iterator[str]:
    """The command, as a person starts it; its address."""
    command = [sys.executable, "-m", "sinkgate", "studio", str(RECORD), "--no-open", "--model", MODEL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.stdout.readline().split()[2]
    finally:
        process.terminate()
        process.wait(10)


def report() -> int:
    """Bytes of the record's report."""
    from sinkgate.record import Diagnosis

    return Diagnosis.load(RECORD).to_html(RECORD.parent / "report.html").stat().st_size


def pages(address: str) -> dict[str, Any]:
    """First paint from the server, the simulator's sliders, a large map."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        painted, ready = [], []
        for i in range(ROUNDS + 1):
            context = browser.new_context(viewport={"width": 1280, "height": 900})  # its cache is empty
            page = context.new_page()
            page.add_init_script(READY)
            page.goto(address)
            page.wait_for_selector('html[data-ready="yes"]')
            times = None
            while not times or None in times:
                times = page.evaluate(TIMES)
            if i:
                painted.append(times[0])
                ready.append(times[1])
            context.close()
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        scores = ",".join(f"{((7 * k) % 13) / 4 - 1.5:g}" for k in range(KEYS))
        page.goto(f"{address}#page=simulator&scores={scores}")
        page.wait_for_selector('html[data-ready="yes"]')
        assert page.locator(".score").count() == KEYS, "the simulator did not take the scores"
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def thread_ms() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return 1000 * float(next(m["value"] for m in metrics if m["name"] == "ThreadTime"))

        dials = page.locator('input[type="range"]:not(:disabled)').count()
        sliders = {}
        for dial in range(dials):
            one = page.evaluate(SLIDE, dial)
            spent = []
            for i in range(ROUNDS):
                before = thread_ms()
                page.evaluate(SLIDE_ONCE, [dial, i])
                spent.append(thread_ms() - before)
            sliders[one["name"]] = {
                "work_ms": middle(one["worked"]), "painted_ms": middle(one["framed"]), "thread_ms": middle(spent)
            }  # fmt: skip
        page.goto(large().as_uri())
        page.wait_for_selector('html[data-ready="yes"]')
        times, cells = page.evaluate(DRAW)
        assert cells == LAYERS * HEADS, f"the map has {cells} cells"
        version = browser.version
        browser.close()
    worst = max(sliders, key=lambda name: sliders[name]["work_ms"])
    return {
        "chromium": version, "first_paint_ms": middle(painted), "ready_ms": middle(ready), "keys": KEYS, "sliders": sliders,
        "slider_ms": sliders[worst]["work_ms"], "slowest_slider": worst, "map": [LAYERS, HEADS], "map_ms": middle(times),
    }  # fmt: skip


def middle(times: list[float]) -> float:
    """The median, in tenths of a millisecond."""
    return round(statistics.median(times), 1)


def large() -> Path:
    """The real record's report with its layers and heads repeated to the size of a large model's."""
    from sinkgate.record import Diagnosis
    from sinkgate.report.html import render
    from sinkgate.report.payload import payload

    one = json.loads(json.dumps(payload(Diagnosis.load(RECORD))))
    layers, heads = one["model"]["layers"], one["model"]["heads"]
    one["model"] |= {"layers": LAYERS, "heads": HEADS}
    one["layers"] = [{**one["layers"][i % layers], "index": i} for i in range(LAYERS)]
    for metric in one["metrics"]:
        metric["values"] = [[metric["values"][i % layers][k % heads] for k in range(HEADS)] for i in range(LAYERS)]
    path = RECORD.parent / "large.html"
    path.write_text(render(one), encoding="utf-8")
    return path


def readers(address: str) -> dict[str, Any]:
    """Two hundred at once, several times over, each on a connection of its own, while the model writes."""
    tokens: list[float] = []
    wrong: list[str] = []
    over = threading.Event()
    writing = threading.Thread(target=generate, args=(address, tokens, wrong, over), daemon=True)
    writing.start()
    while len(tokens) < 8 and not wrong:
        time.sleep(0.05)
    assert not wrong, wrong
    before, started = len(tokens), time.perf_counter()
    waves = [asyncio.run(wave(address, target)) for _ in range(WAVES) for target in ("/", "/api/records/0")]
    took = time.perf_counter() - started
    written = len(tokens) - before
    over.set()
    assert not wrong, wrong
    assert written > 0, "the model wrote nothing meanwhile"
    p95 = [statistics.quantiles([seconds for seconds, _ in w], n=20)[-1] for w in waves]
    return {
        "at_once": READERS, "waves": len(waves), "errors": sum(status != 200 for w in waves for _, status in w),
        "p95_ms": round(1000 * statistics.median(p95), 1), "worst_wave_p95_ms": round(1000 * max(p95), 1),
        "tokens_written_meanwhile": written, "seconds": round(took, 2),
    }  # fmt: skip


def generate(address: str, tokens: list[float], wrong: list[str], over: threading.Event) -> None:
    """Read what the model writes, again and again."""
    while not over.is_set():
        said = {"model": MODEL, "prompt": "Once upon a time", "tokens": 1000, "temperature": 0.8}
        asking = urllib.request.Request(
            f"{address}api/write", json.dumps(said).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asking, timeout=300) as answer:
                for line in answer:
                    if "error" in json.loads(line):
                        wrong.append(line.decode())
                        return
                    tokens.append(time.perf_counter())
                    if over.is_set():
                        return
        except OSError as err:
            wrong.append(str(err))
            return


async def wave(address: str, target: str) -> list[tuple[float, int]]:
    """(seconds, status) of each reader; all of them begin together."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    request = (
        f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n".encode()
    )

    async def one() -> tuple[float, int]:
        start = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            data = await reader.read()
            writer.close()
            return time.perf_counter() - start, int(data[9:12]) if data else 0
        except OSError:
            return time.perf_counter() - start, 0

    return list(await asyncio.gather(*(one() for _ in range(READERS))))


if __name__ == "__main__":
    main()
