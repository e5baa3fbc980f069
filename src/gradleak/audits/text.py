"""Audits of text models."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradleak.attacks.base import Attack, AttackContext, Reconstruction
from gradleak.attacks.control import Control, frequent_tokens
from gradleak.attacks.run import run_attack
from gradleak.audits.membership import CandidateLists
from gradleak.audits.modality import Attacked, ControlScores, Modality, Truth
from gradleak.audits.spec import AuditSpec
from gradleak.clients.strength import strength
from gradleak.clients.text import Client
from gradleak.core.budget import Budget, Stopped
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.secret import Secret
from gradleak.core.seeds import derive_seed
from gradleak.core.supervision import supervised
from gradleak.data.chat import rendered
from gradleak.data.corpora import read_rows
from gradleak.data.draws import TextBatch, draw_texts
from gradleak.data.texts import BUILT_IN, Row
from gradleak.models.batch import Batch
from gradleak.models.tasks.seq2seq import NO_TARGET
from gradleak.models.text import TextModel
from gradleak.scoring.inferred import inferred_accuracy
from gradleak.scoring.metric import mean_scores
from gradleak.scoring.named import Named, named
from gradleak.scoring.pieces import total
from gradleak.scoring.score import Score, score
from gradleak.scoring.truth import truth_distance
from gradleak.training.text import TextLearner
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.manifest import Known
from gradleak.updates.update import Update

# The kind of file that images come in.
IMAGES = ".npz"

# Draws of the control a trial: its spread would otherwise hide what the attack adds.
CONTROL_DRAWS = 10
# What its first draw may still take when the time is over.
LAST_SECONDS = 2.0

Rows = Sequence[Row]


class TextAudits(Modality[TextModel, Rows, TextBatch]):
    name = "text"
    training = TextLearner.__module__

    def read(self, spec: AuditSpec, progress: Progress = SILENT) -> Rows:
        if Path(spec.data).suffix.lower() == IMAGES:
            raise GradleakError(f"{spec.data} holds images, and {spec.model} reads text; give --model one of images")
        return read_rows(spec.data, spec.text_column, spec.label_column)

    def given(self, data: Any) -> Rows:
        return [row if isinstance(row, Row) else Row(row) for row in data]

    def digest(self, data: Rows) -> str:
        digest = hashlib.sha256()
        for row in data:
            more = () if row.record is None else (row.record,)
            digest.update(repr((row.text, row.label, *more)).encode())
        return digest.hexdigest()[:32]

    def about(self, data: Rows, model: TextModel) -> dict[str, Any]:
        drawn = "given" if all(model.goal.takes(row.label) for row in data) else "drawn"
        return {"data_rows": len(data), "labels": drawn if model.goal.labelled else "none"}

    def draw(self, spec: AuditSpec, data: Rows, model: TextModel) -> list[TextBatch]:
        if model.goal.paired and spec.data == BUILT_IN:  # its labels are classes
            raise GradleakError(NO_TARGET)
        return draw_texts(
            _rendered(spec, data, model), model, batch_size=spec.examples, trials=spec.trials, seed=spec.seed,
            max_tokens=spec.max_tokens, window=spec.window, rule=spec.draw,
        )  # fmt: skip

    def candidate_lists(self, spec: AuditSpec, data: Rows, model: TextModel) -> CandidateLists | None:
        return None if spec.candidates is None else CandidateLists(spec, _rendered(spec, data, model), model)

    def truth(self, batch: TextBatch, model: TextModel) -> Truth:
        labels = None if batch.labels is None else model.goal.labels(model, batch.texts, batch.labels)
        places = {} if batch.completions is None else {"completions": batch.completions}
        targets = batch.targets(model)
        return Truth(texts=batch.texts, labels=labels if targets is None else None, targets=targets, **places)

    def batch(self, truth: Truth, model: TextModel) -> TextBatch:
        classes = truth.targets if model.goal.paired else truth.labels if model.goal.labelled else None
        batch = TextBatch(truth.examples, None if classes is None else [*classes], truth.completions)
        model.tokenize(batch.texts)  # refuses what the model cannot read
        self.truth(batch, model)  # and classes that it does not have
        return batch

    def client(self, spec: AuditSpec, model: TextModel) -> Client:
        return Client(model, spec.known, spec.client, spec.defenses, spec.observe, spec.aggregate or 1)

    def update(self, client: Any, batch: TextBatch, secret: Secret) -> Update:
        return client.update(batch.texts, batch.labels, secret, batch.completions)

    def learner(self, spec: AuditSpec, data: Rows, model: TextModel) -> TextLearner:
        return TextLearner(_rendered(spec, data, model), model)

    def score(self, found: Reconstruction, truth: Truth, model: TextModel | None, metrics: Sequence[str]) -> Score:
        assert model is not None
        return score(found, truth.examples, model, targets=truth.targets or (), metrics=metrics)

    def facts(self, trial: Attacked[TextBatch], model: TextModel, budget: Budget) -> dict[str, Any]:
        truth = self.truth(trial.batch, model)
        batch = _sentences(truth, trial.update.manifest.client, model)
        answer = trial.reconstruction
        whole = batch if truth.targets is None else model.encode(truth.compared)
        tokens = named(answer.bag, truth.compared, model) if "bag" in answer.found else None
        facts: dict[str, Any] = {
            "found": inferred_accuracy(answer, truth.labels, batch.lengths, tokens),
            "named": tokens,
            "tokens": sum(whole.lengths),
            "lost": sum(map(model.lost, whole.sentences())),
        }
        if budget.over:  # the others need passes of the client
            return facts
        given = trial.batch.labels is not None or not model.goal.labelled
        if given and not model.goal.draws_targets:
            labels = model.goal.labels(model, truth.examples, trial.batch.labels)
            facts["truth_distance"] = truth_distance(trial.update, truth.examples, labels, model, truth.completions)
        return facts | self._strength(trial)

    def _strength(self, trial: Attacked[TextBatch]) -> dict[str, float]:
        """Signal and noise, which only the client that made the update can tell."""
        client, secret = trial.client, trial.secret
        if client is None or secret is None:
            return {}
        size = len(trial.batch.texts) // client.aggregate
        sent = strength(client, trial.update, size, lambda other: self.update(other, trial.batch, secret))
        return {"signal": sent.signal, "noise": sent.noise}

    def control(
        self,
        method: Attack,
        trials: Sequence[Attacked[TextBatch]],
        model: TextModel,
        data: Sequence[Rows | None],
        budget: Budget,
        progress: Progress,
    ) -> list[ControlScores]:
        """Draws from the attack's prior (n-gram if it has none). Trials that differ in nothing else share them.

        There are fewer draws if the budget ends, and if it ends before the first, n-grams give that one.
        """
        keys = [_key(trial, model) for trial in trials]
        different = {key: trial.update for key, trial in zip(keys, trials, strict=True)}
        # A draw has as many sentences as the attacker knows; where the attack named more, several make one guess.
        draws = {key: CONTROL_DRAWS * -(-key.sentences // (key.known.size or 1)) for key in different}
        # The first draw of all, then the second: should the time end, all have some.
        order = sorted((i, number) for number, key in enumerate(different) for i in range(draws[key]))
        those = list(different)
        seeds = [derive_seed(those[number].seed, "control", i) for i, number in order]
        updates = [different[those[number]] for _, number in order]
        prior = "ngram" if method.prior == "none" else method.prior
        guesses = self._guess(prior, updates, seeds, model, budget, progress)
        progress.begin("scoring the control", 0)
        own: dict[ControlKey, list[Reconstruction]] = defaultdict(list)
        for (_, number), guess in zip(order, guesses, strict=True):
            own[those[number]].append(guess)
        reached: dict[ControlKey, ControlScores] = {}
        for key in those:
            drawn = [guess for guess in own[key] if guess.status == "completed"]
            needed = draws[key] // CONTROL_DRAWS
            if len(drawn) < needed:
                seeds = [derive_seed(key.seed, "control", i) for i in range(needed)]
                last = Budget(LAST_SECONDS)
                drawn = self._guess("ngram", [different[key]] * needed, seeds, model, last, progress)
            reached[key] = _reached(key, drawn, needed, model)
        return [
            reached[key]._replace(named=_guessed_tokens(trial, model, budget, progress))
            for key, trial in zip(keys, trials, strict=True)
        ]

    def _guess(
        self,
        prior: str,
        updates: Sequence[Update],
        seeds: Sequence[int],
        model: TextModel,
        budget: Budget,
        progress: Progress,
    ) -> list[Reconstruction]:
        context = AttackContext(seeds, budget, progress)
        return run_attack(Control.from_settings({"prior": prior}), updates, model, context)


def _rendered(spec: AuditSpec, data: Rows, model: TextModel) -> Rows:
    """The rows as the model is trained on them."""
    return rendered(data, model, spec.chat_template, completions=spec.rule.loss == "completion")


def _sentences(truth: Truth, rule: ClientRule, model: TextModel) -> Batch:
    """What the model saw as sentences of these texts."""
    if rule.pack is None:
        return model.encode(truth.examples)
    packed = model.goal.examples(model, truth.examples, truth.labels, rule, completions=truth.completions)
    return packed[0].apart(packed[1])[0]


def _guessed_tokens(trial: Attacked[TextBatch], model: TextModel, budget: Budget, progress: Progress) -> Named | None:
    """What as many of the commonest tokens as the attack named would hit; None if it looks for none, or time ends."""
    bag = trial.reconstruction.bag
    if "bag" not in trial.reconstruction.found:
        return None
    try:
        common = supervised(lambda: frequent_tokens(model, len(bag), progress), budget) if bag else []
    except Stopped:
        return None
    return named(common, [*trial.batch.texts, *(trial.batch.targets(model) or ())], model)


class ControlKey(NamedTuple):
    """What a trial's control depends on: the seed, the truth, what is scored, and what may be guessed."""

    seed: int
    texts: tuple[str, ...]
    targets: tuple[str, ...]
    metrics: tuple[str, ...]
    sentences: int
    known: Known


def _key(trial: Attacked[TextBatch], model: TextModel) -> ControlKey:
    """Guessing may name as many sentences as the attack did."""
    known, targets = trial.update.known, tuple(trial.batch.targets(model) or ())
    sentences = max(len(trial.reconstruction.sentences), known.size or 1)
    return ControlKey(trial.seed, tuple(trial.batch.texts), targets, trial.spec.metrics, sentences, known)


def _reached(key: ControlKey, draws: Sequence[Reconstruction], together: int, model: TextModel) -> ControlScores:
    """The mean over all guesses, each of so many draws."""
    scored = []
    for first in range(0, len(draws) - together + 1, together):
        sentences = [sentence for draw in draws[first : first + together] for sentence in draw.sentences]
        guess = Reconstruction(sentences=sentences[: key.sentences])
        scored.append(score(guess, key.texts, model, targets=key.targets, metrics=key.metrics))
    pieces = total([pair.pieces for guess in scored for pair in guess.pairs])
    return ControlScores(mean_scores([guess.metrics for guess in scored]), pieces)


TEXT = TextAudits()
