"""The factor engine against the oracle, in one run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gradleak.bench.ratio import Ratio, compare
from gradleak.clients.text import Client
from gradleak.core.peak import peak_memory
from gradleak.core.progress import SILENT, Progress
from gradleak.matching.distances import Distance
from gradleak.matching.dummies import Dummies
from gradleak.matching.engine import FactorEngine
from gradleak.matching.naive import NaiveEngine
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel

TOKENS = 14
STEP_PASSES, EVALUATION_PASSES = 4, 2  # products with every weight: forward, backward, and both differentiated


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    what: str
    ratio: Ratio
    tokens_per_second: float
    peak_extra_mb: float
    share_of_matrix_throughput: float


def bench_engine(
    models: tuple[str, ...],
    seconds: float,
    progress: Progress = SILENT,
    distance: str = "cosine",
    precision: str = "fp32",
) -> Iterator[Row]:
    """Measure one step, a step of 32 attacks at once, and 64 candidates at once, each against the oracle."""
    for name in models:
        model = bench_model(name)
        bench = _Bench(model, TOKENS, distance, precision)
        for what, rows, differentiable in (
            ("one step", 1, True),
            ("step, 32 attacks at once", 32, True),
            ("candidate, 64 at once", 64, False),
        ):
            progress.begin(f"{name}: {what}", 1)
            yield bench.measure(name, what, rows, differentiable, seconds)
            progress.end()


def growth(name: str, progress: Progress = SILENT) -> dict[str, list[tuple[int, float]]]:
    """Seconds of a step over tokens (8 attacks) and over attacks (14 tokens): the best of five, interleaved."""
    model = bench_model(name)
    by_tokens = {n: _Bench(model, n, "cosine") for n in (8, 16, 32, 64)}
    by_attacks = _Bench(model, TOKENS, "cosine")
    best: dict[tuple[str, int], float] = {}
    progress.begin(f"{name}: growth", 5)
    for turn in range(5):
        for n, bench in by_tokens.items():
            best["tokens", n] = min(best.get(("tokens", n), 1e9), bench.step_seconds(8))
        for rows in (8, 16, 32, 64):
            best["attacks", rows] = min(best.get(("attacks", rows), 1e9), by_attacks.step_seconds(rows))
        progress.advance(turn + 1)
    progress.end()
    return {axis: [(n, s) for (a, n), s in best.items() if a == axis] for axis in ("tokens", "attacks")}


def candidates_memory(name: str, count: int = 200) -> float:
    """Peak extra memory in MB of evaluating so many candidates at once."""
    bench = _Bench(bench_model(name), TOKENS, "cosine")
    return bench.extra_memory(count, differentiable=False)


def bench_model(name: str) -> TextModel:
    """A built-in model, or `bert-base`: that architecture with random weights."""
    if name != "bert-base":
        return load_text_model(name)
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    module = BertForSequenceClassification(BertConfig(attn_implementation="eager"))
    return load_text_model(module, tokenizer=load_text_model("minilm").tokenizer, task="classification")


class _Bench:
    """One model at one sentence length."""

    def __init__(self, model: TextModel, tokens: int, distance: str, precision: str = "fp32") -> None:
        self.model, self.tokens = model, tokens
        text = " ".join(["the river rose again"] * tokens)
        words = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        inner = words[: tokens - len(model.prefix) - len(model.suffix)]
        update = Client(model).update([model.tokenizer.decode(inner)], [1])
        measure: Any = Distance(distance)  # type: ignore[arg-type]
        self.oracle = NaiveEngine(model, [update.tensors], measure)
        place = model.to_bfloat16() if precision == "bf16" else model
        self.engine = FactorEngine(place, [update.tensors], measure, tokens=tokens)
        layers = [m for m in model.module.base_model.modules() if isinstance(m, torch.nn.Linear)]
        self.weights = sum(m.weight.numel() for m in layers)

    def dummies(self, rows: int) -> Dummies:
        generator = torch.Generator().manual_seed(0)
        size = self.model.width
        embeds = 0.05 * torch.randn(rows, 1, self.tokens, size, generator=generator)
        mask = torch.ones(rows, 1, self.tokens, dtype=torch.bool)
        return Dummies(embeds, mask, torch.ones(rows, 1, dtype=torch.long), torch.zeros(rows, dtype=torch.long))

    def measure(self, name: str, what: str, rows: int, differentiable: bool, seconds: float) -> Row:
        one, many = self.dummies(1), self.dummies(rows)
        run = "values_and_gradients" if differentiable else "values"
        slow, fast = getattr(self.oracle, run), getattr(self.engine, run)
        ratio = compare(lambda: slow(one), lambda: fast(many), slow_units=1, fast_units=rows, seconds=seconds)
        passes = STEP_PASSES if differentiable else EVALUATION_PASSES
        work = 2 * passes * self.weights * self.tokens / ratio.fast_seconds
        return Row(
            model=name,
            what=what,
            ratio=ratio,
            tokens_per_second=self.tokens / ratio.fast_seconds,
            peak_extra_mb=self.extra_memory(rows, differentiable),
            share_of_matrix_throughput=work / matrix_throughput(),
        )

    def step_seconds(self, rows: int) -> float:
        dummies = self.dummies(rows)
        start = time.perf_counter()
        self.engine.values_and_gradients(dummies)
        return time.perf_counter() - start

    def extra_memory(self, rows: int, differentiable: bool) -> float:
        """Peak of the process during one call, above what it held before."""
        dummies = self.dummies(rows)
        with peak_memory(self.model.device) as before:
            pass
        with peak_memory(self.model.device) as during:
            (self.engine.values_and_gradients if differentiable else self.engine.values)(dummies)
        return max(0.0, (during.megabytes or 0) - (before.megabytes or 0))


def matrix_throughput(size: int = 1024, repeats: int = 10) -> float:
    """Multiply-add operations a second (times two) of a large product here and now."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    _ = a @ b
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        _ = a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def as_json(
    rows: list[Row], curves: dict[str, list[tuple[int, float]]] | None, memory: float | None
) -> dict[str, Any]:
    """Everything the table shows, for a file."""
    return {
        "rows": [asdict(row) for row in rows],
        "growth_seconds": curves,
        "memory_mb_200_candidates_bert_base": memory,
        "threads": torch.get_num_threads(),
    }
