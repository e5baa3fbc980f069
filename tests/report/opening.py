"""How fast the page opens with many trials, in headless Chromium: `python tests/report/opening.py [trials] [loads]`.

Wall-clock time says what a reader waits on this machine as busy as it is; processor time, of the page's main thread
and of all processes of the browser, says what it costs.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from browser import Browser, find_chromium  # noqa: E402
from sample import sample_results  # noqa: E402

from gradleak.audits.results import Results  # noqa: E402
from gradleak.report.build import write_report  # noqa: E402

AUDITS = 20


def made(trials: int) -> list[Results]:
    """Audits of different defences that share so many trials, no two with the same sentence."""
    found = []
    for number in range(AUDITS):
        base = sample_results()
        own = []
        for i in range(trials // AUDITS):
            trial = base.trials[i % 2]
            pair = trial.pairs[0].model_copy(update={"truth": f"{trial.truth[0]} {number} {i}"})
            own.append(trial.model_copy(update={"index": i, "seed": i, "truth": [pair.truth], "pairs": [pair]}))
        scenario = base.scenario.model_copy(update={"defenses": [f"noise:sigma={number + 1}"]})
        found.append(base.model_copy(update={"trials": own, "scenario": scenario}))
    return found


def processor_seconds(root: int) -> float:
    """Of a process and all that it has started."""
    stats = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        stats[int(place.parent.name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    ours = {root}
    while more := {pid for pid, (parent, _) in stats.items() if parent in ours} - ours:
        ours |= more
    return sum(stats[pid][1] for pid in ours if pid in stats) / os.sysconf("SC_CLK_TCK")


def main(trials: int = 2000, loads: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(made(trials), folder)
        browser = Browser(find_chromium() or "chromium", Path(folder) / "profile")
        browser.size(1200, 900)
        browser.send("Performance.enable", timeDomain="threadTicks")
        wall, thread, whole = [], [], []
        for _ in range(loads):
            before = processor_seconds(browser.process.pid)
            browser.open(page)
            wall.append(browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000)
            metrics = {one["name"]: one["value"] for one in browser.send("Performance.getMetrics")["metrics"]}
            thread.append(metrics["TaskDuration"])
            whole.append(processor_seconds(browser.process.pid) - before)
        size = page.stat().st_size / 1e6
        browser.close()
    print(f"{trials} trials, {size:.1f} MB, {loads} loads, medians (least to most), seconds:")
    for name, values in (("wall clock", wall), ("main thread", thread), ("all processes", whole)):
        print(f"  {name}: {median(values):.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
