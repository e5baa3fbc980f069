"""The benchmark's table, file and figure."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from gradleak.bench.engine import as_json, bench_engine, candidates_memory, growth
from gradleak.bench.figure import growth_figure
from gradleak.core.console import SafeConsole
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.progress import Progress


def run_engine_bench(
    models: tuple[str, ...],
    seconds: float,
    json_file: Path | None,
    svg_file: Path | None,
    precision: str,
    progress: Progress,
) -> None:
    """Measure, print, and write what was asked for."""
    if precision not in ("fp32", "bf16"):
        raise GradleakError(f"unknown precision {precision!r}; known: fp32, bf16")
    table = Table(title=f"Factor engine ({precision}) against the oracle, 14 tokens, one run", title_justify="left")
    for heading in (
        "model",
        "what",
        "ratio",
        "95 %",
        "oracle",
        "engine",
        "tokens/s",
        "extra memory",
        "of matrix peak",
    ):
        table.add_column(heading, justify="left" if heading in ("model", "what") else "right")
    rows = []
    for row in bench_engine(models, seconds, progress, precision=precision):
        rows.append(row)
        ratio = row.ratio
        table.add_row(
            row.model,
            row.what,
            f"{ratio.ratio:.1f}",
            f"{ratio.low:.1f} to {ratio.high:.1f}",
            f"{1e3 * ratio.slow_seconds:.1f} ms",
            f"{1e3 * ratio.fast_seconds:.2f} ms",
            f"{row.tokens_per_second:,.0f}",
            f"{row.peak_extra_mb:,.0f} MB",
            f"{row.share_of_matrix_throughput:.0%}",
        )
    console = SafeConsole()
    console.print(table)
    memory = candidates_memory("bert-base") if "bert-base" in models else None
    if memory is not None:
        console.print(f"200 candidates on bert-base: {memory:,.0f} MB extra at the peak")
    curves = growth(models[0], progress) if svg_file is not None or json_file is not None else None
    if json_file is not None:
        write_text(json_file, json.dumps(as_json(rows, curves, memory), indent=2) + "\n")
    if svg_file is not None and curves is not None:
        write_text(svg_file, growth_figure(curves, models[0]))
