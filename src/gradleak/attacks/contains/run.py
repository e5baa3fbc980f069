"""Were these sentences in it? An update, candidates and public text in; a likelihood ratio for each candidate out."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.contains.calibration import (
    ENOUGH_CANDIDATES,
    Regression,
    false_alarm_rates,
    fitted,
    moved_up,
    standardised,
    told_apart,
)  # fmt: skip
from gradleak.attacks.contains.place import at_the_middle
from gradleak.attacks.contains.rehearse import client_size, draw, rehearsed, shrunk, without_decay
from gradleak.attacks.contains.result import Candidate, Containment
from gradleak.attacks.contains.rows import GradientRows, chosen_matrices
from gradleak.attacks.contains.scorer import Scorer, sizes_of
from gradleak.attacks.evidence.whitening import Moments
from gradleak.core.budget import Budget, Stopped, StopReason
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.core.seeds import derive_seed
from gradleak.models.base import Target
from gradleak.models.tasks import WITH_CANDIDATES
from gradleak.models.text import TextModel, refuse_pairs, text_target
from gradleak.priors.public import public_rows
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.update import Update

# Public sentences that false alarms are counted on, and those that the whitening is learnt from.
REFERENCES, LEARNT_FROM = 240, 240
# Of each kind there must be as many for anything to be said; the time that they may take, as a share of all.
LEAST, LEARNING_SHARE, COUNTING_SHARE = 12, 0.2, 0.35
# Rehearsed clients.
REHEARSALS = 8
# Classes that a candidate is tried under, if nobody told which there are.
MOST_LABELS = 8


def contains(
    update: Update,
    model: Target,
    texts: Sequence[str],
    *,
    public: Sequence[str] | None = None,
    references: int = REFERENCES,
    seed: int = 0,
    budget: Budget | str | float | None = None,
    progress: Progress = SILENT,
) -> Containment:
    """For every text a likelihood ratio and a false-alarm rate of its having been in what an update was made from.

    Args:
        update: A client's update, full or of LoRA factors.
        model: The model it was made with.
        texts: The candidates.
        public: Texts of the same kind that were surely not in it; without any, sentences of WikiText-2.
        references: How many of them false alarms are counted on: the lowest rate that can be shown is 1 in so many.
        seed: Fixes which public texts are taken.
        budget: A duration such as "60s", a number of seconds, or a `Budget`; what is scored by then is kept.
        progress: Who watches.

    It takes about a minute on a small encoder, most of it to learn from public text, so this example is not run as a
    test; tests/attacks/test_contains.py has smaller ones:

        update = Client(model).update(["Her biopsy came back clear."], labels=[0])
        found = contains(update, model, ["Her biopsy came back clear.", "The loan was refused."])
        [each.false_alarm_rate for each in found.candidates]
    """
    server = Server(model, public=public, references=references, seed=seed)
    return server.ask(update, texts, budget=budget, progress=progress)


class Server:
    """A server that has public text and is asked about candidates, of one update or of many.

    Most of the time goes into the gradients of public text, which depend on the model and on which matrices were
    sent, not on the update. So they are kept for the next one; not after several local steps, where they are taken at
    the weights halfway, which are every update's own.
    """

    def __init__(
        self, model: Target, *, public: Sequence[str] | None = None, references: int = REFERENCES, seed: int = 0
    ) -> None:
        self.model = text_target(model, "looking for candidates")
        refuse_pairs(self.model, "contains")
        if references < LEAST:
            raise GradleakError(
                f"false alarms cannot be counted on {references} public sentences; take {LEAST} or more"
            )
        self.public, self.references, self.seed = public, references, seed
        self._kept: tuple[object, _Search] | None = None

    def ask(
        self,
        update: Update,
        texts: Sequence[str],
        *,
        budget: Budget | str | float | None = None,
        progress: Progress = SILENT,
    ) -> Containment:
        """For every text how much speaks for its having been in the update, as `contains` has it."""
        started, limit = time.monotonic(), Budget.of(budget)
        if not texts:
            raise GradleakError("there are no candidates to look for")
        update.check(self.model)
        candidates = self.model.encode(texts).sentences()
        public = _public(self.model, candidates, self.public, LEARNT_FROM + self.references, self.seed, progress)
        search = self._search(update, public, limit, progress)
        scores = search.score(candidates)
        done = [i for i, score in enumerate(scores) if score is not None]
        status: StopReason = "completed" if len(done) == len(texts) else limit.reason
        looked_at = [score for score in scores if score is not None]
        given = self.public is not None
        rated = dict(zip(done, search.rated(looked_at, given=given), strict=True))
        return Containment(
            status=status,
            model=self.model.name,
            client=str(update.manifest.client),
            candidates=[Candidate(text=text, **rated.get(i, {})) for i, text in enumerate(texts)],
            references=len(search.null),
            public="given" if given else "wikitext",
            seconds=time.monotonic() - started,
            notes=[*update.manifest.provenance(), *_notes(given, len(done))],
        )

    def _search(self, update: Update, public: Sequence[Sequence[int]], budget: Budget, progress: Progress) -> _Search:
        """What looks at this update, with what was learnt before if it was learnt of the same."""
        search = _Search(update, self.model, self.seed, budget, progress)
        kind = (*search.kind, tuple(map(tuple, public)))
        if self._kept is not None and self._kept[0] == kind and search.at_start:
            search.take_over(self._kept[1])
        else:
            self._kept = None  # before the next is learnt: both together may be gigabytes
            search.learn(public, self.references)
            if search.at_start and not budget.late:  # what a short time cut is no use to others
                self._kept = (kind, search)
        search.compare()
        return search


def _notes(given: bool, looked: int) -> list[str]:
    if given:
        return []
    start = "False alarms were counted on WikiText-2"
    if looked < ENOUGH_CANDIDATES:
        return [
            f"{start}: text of another kind than WikiText-2 scores higher, in or not. Give --public of its own kind."
        ]
    return [f"{start}, moved to where most of the candidates lie; --public with text of their kind is more exact."]


def _public(
    model: TextModel,
    candidates: Sequence[Sequence[int]],
    given: Sequence[str] | None,
    count: int,
    seed: int,
    progress: Progress,
) -> list[list[int]]:
    """Public sentences as token rows, in a random order; none of them is a candidate, which may have been in."""
    if given is None:
        rows = public_rows(model, count, derive_seed(seed, "public"), progress=progress)
    else:
        rows = [model.tokenizer(text, verbose=False)["input_ids"] for text in dict.fromkeys(given)]
        rows = [row for row in rows if len(model.prefix) + len(model.suffix) < len(row) <= model.max_length]
        random.Random(derive_seed(seed, "public")).shuffle(rows)
    known = {tuple(row) for row in candidates}
    rows = [row for row in rows if tuple(row) not in known][:count]
    if len(rows) < 2 * LEAST:
        raise GradleakError(
            f"there are {len(rows)} public sentences that are no candidates; at least {2 * LEAST} are needed"
        )
    return rows


@dataclass
class _Rows:
    """Gradient rows of public sentences under every label, (sentences, labels, row), in half precision.

    They are stored with norm 1, beside the norm they had, and the weight that their sentence has in a mean.
    """

    rows: Tensor
    norms: Tensor
    sizes: Tensor
    weights: list[float]


class _Search:
    """One update looked at: what is learnt from public text, then candidates."""

    scorer: Scorer
    regression: Regression

    def __init__(self, update: Update, model: TextModel, seed: int, budget: Budget, progress: Progress) -> None:
        self.model, self.seed, self.budget, self.progress = model, seed, budget, progress
        self.rule = update.manifest.client
        self.size = client_size(self.rule, update.known.size)
        names = chosen_matrices(model, update.tensors)
        if not names:
            raise GradleakError(
                "the update holds no matrix of a layer that moved, so candidates cannot be told apart"
            )
        self.at_start = not (self.rule.local and self.rule.count_steps(self.size) > 1)
        local = model if self.at_start else at_the_middle(model, update)
        self.gradients = GradientRows(local, names)
        self.groups = ["lora_A" if ".lora_A." in name else "lora_B" if ".lora_B." in name else "" for name in names]
        before = self.gradients.of_update(model.parameters())
        self.moved = without_decay(self.gradients.of_update(update.tensors), before, self.rule, self.size).cpu()
        self.labels = _labels(model, update)

    @property
    def kind(self) -> tuple[object, ...]:
        """What decides the gradients of public text, beside that text and the weights they are taken at."""
        return tuple(self.gradients.shapes), tuple(self.labels or ())

    @property
    def _client(self) -> tuple[ClientRule, int]:
        """What is rehearsed."""
        return self.rule, self.size

    # --- public text ------------------------------------------------------------------------------

    def learn(self, public: Sequence[Sequence[int]], references: int) -> None:
        """Learn the whitening from some public sentences, and from others how members and the rest score."""
        split = max(LEAST, min(LEARNT_FROM, len(public) - references, len(public) // 2))
        self.moments = Moments(list(self.gradients.shapes.values()))
        self.first = self._collect(public[:split], LEARNING_SHARE, "learning from public text", learning=True)
        self.whitening = self.moments.whitening()
        self.held = self._collect(public[split:], COUNTING_SHARE, "counting false alarms")
        self._rehearse()

    def take_over(self, other: _Search) -> None:
        """What another search has learnt of public text, and of the client if it is of the same rule and size."""
        self.moments, self.whitening, self.first, self.held = other.moments, other.whitening, other.first, other.held
        if other._client == self._client:
            self.scorer, self.regression = other.scorer, other.regression
        else:
            self._rehearse()

    def compare(self) -> None:
        """Make the update a direction, and look how sentences score along it that were not in."""
        self.direction = self.scorer.direction(self.moved)
        (self.null_scores,) = self._best(self.held.rows, self.held.sizes, [self.direction])
        self.null = standardised(self.null_scores, self.null_scores) @ self.regression.weights

    def _collect(self, sentences: Sequence[Sequence[int]], share: float, what: str, learning: bool = False) -> _Rows:
        """Rows of public sentences; fewer if the time is short, though never too few."""
        part = self.budget.part(share)
        kept: list[Tensor] = []
        norms: list[Tensor] = []
        sizes: list[Tensor] = []
        self.progress.begin(what, len(sentences), "sentences")
        # In portions, so that those which the time leaves out are not the long ones.
        for first in range(0, len(sentences), 24):
            if part.late and len(kept) >= LEAST:
                break
            some = sentences[first : first + 24]
            rows, whitened = self._of_all_labels(some, whiten=not learning)
            own_norms = rows.flatten(1).norm(dim=1).clamp_min(1e-30)
            kept += list((rows / own_norms[:, None, None]).half())
            sizes += list(whitened / own_norms[:, None, None])
            norms += list(own_norms)
            if learning:
                chance = random.Random(derive_seed(self.seed, what, first))
                self.moments.add(torch.stack([own[chance.randrange(len(own))] for own in rows]))
            self.progress.advance(len(kept))
        self.progress.end()
        weights = [self._weight(len(row)) for row in sentences[: len(kept)]]
        return _Rows(torch.stack(kept), torch.stack(norms), torch.stack(sizes), weights)

    def _weight(self, tokens: int) -> float:
        return 1.0 if self.model.goal.one_per_text else float(tokens - 1)

    def _of_all_labels(self, sentences: Sequence[Sequence[int]], whiten: bool = True) -> tuple[Tensor, Tensor]:
        """Rows under every label, and the norms of the whitened ones, where they are asked for."""
        by_label, sizes = [], []
        every: list[int | None] = [None] if self.labels is None else [*self.labels]
        for label in every:
            own = None if label is None else [label] * len(sentences)
            found: dict[int, tuple[Tensor, Tensor]] = {}
            for some in self.gradients.of(sentences, own, self.budget):
                rows = some.rows.detach().float().cpu()
                whitened = (
                    sizes_of(some.factors, self.whitening, self.groups) if whiten else torch.zeros(len(rows), 1)
                )
                found |= dict(zip(some.which, zip(rows, whitened, strict=True), strict=True))
            by_label.append(torch.stack([found[i][0] for i in range(len(sentences))]))
            sizes.append(torch.stack([found[i][1] for i in range(len(sentences))]))
        return torch.stack(by_label, dim=1), torch.stack(sizes, dim=1)

    def _rehearse(self) -> None:
        """How members and others score after the client's rule, on public sentences that are known.

        The way that tells them apart best there is the one that the update is looked at in, each kind of matrix by
        itself.
        """
        together = self.rule.batch * self.rule.accumulate if self.rule.local else self.size
        typical = self.moments.typical_size(max(1, together)) if self.rule.adaptive else None
        self.scorer = scorer = Scorer(self.whitening, self.groups, typical)
        others = self.first
        own = list(range(len(self.held.rows)))
        rest = [len(own) + i for i in range(len(others.rows))]
        rule, size = shrunk(self.rule, self.size, len(own) // 2 + len(rest))
        ways, directions, members = scorer.possible, [], []
        self.progress.begin("rehearsing the client", REHEARSALS, "clients")
        for number in range(REHEARSALS):
            chosen = draw(own, rest, size, derive_seed(self.seed, "rehearsal", number))
            update = self._rehearsed(chosen, others, rule, number)
            within = torch.zeros(len(own), dtype=torch.bool)
            within[[i for i in chosen if i < len(own)]] = True
            directions += scorer.directions(update, [dict.fromkeys(scorer.kinds, way) for way in ways])
            members.append(within)
            self.progress.advance(number + 1)
            if self.budget.late:
                break
        self.progress.end()
        scores = self._best(self.held.rows, self.held.sizes, directions).unflatten(0, (len(members), len(ways)))
        every = {
            way: torch.cat([standardised(own[i], own[i][~w]) for own, w in zip(scores, members, strict=True)])
            for i, way in enumerate(ways)
        }
        inside = torch.cat(members)
        best = []
        for kind in range(len(scorer.kinds)):
            apart = {way: told_apart(own_scores[:, kind], inside) for way, own_scores in every.items()}
            best.append(max(apart, key=apart.__getitem__))
        scorer.ways = dict(zip(scorer.kinds, best, strict=True))
        self.regression = fitted(torch.stack([every[way][:, kind] for kind, way in enumerate(best)], dim=1), inside)

    def _rehearsed(self, chosen: Sequence[int], others: _Rows, rule: ClientRule, number: int) -> Tensor:
        chance = random.Random(derive_seed(self.seed, "labels", number))
        count = len(self.held.rows)
        places = [(self.held, i) if i < count else (others, i - count) for i in chosen]
        rows = torch.stack(
            [part.rows[i, chance.randrange(part.rows.shape[1])].float() * part.norms[i] for part, i in places]
        )
        return rehearsed(rows, [part.weights[i] for part, i in places], rule)

    # --- scores -----------------------------------------------------------------------------------

    def _best(self, rows: Tensor, sizes: Tensor, directions: Sequence[Tensor]) -> Tensor:
        """The scores of sentences under the label that fits best, (directions, sentences, kinds)."""
        flat = self.scorer.scores(rows.flatten(0, 1), sizes.flatten(0, 1), directions)
        return flat.view(len(directions), len(rows), rows.shape[1], -1).amax(dim=2)

    def score(self, candidates: Sequence[Sequence[int]]) -> list[Tensor | None]:
        """Every candidate's scores; None for those that there was no time for."""
        found: list[Tensor | None] = [None] * len(candidates)
        order = random.Random(derive_seed(self.seed, "order")).sample(range(len(candidates)), len(candidates))
        self.progress.begin("scoring candidates", len(candidates), "candidates")
        try:
            for first in range(0, len(order), 24):
                some = order[first : first + 24]
                (own,) = self._best(*self._of_all_labels([candidates[i] for i in some]), [self.direction])
                for i, score in zip(some, own, strict=True):
                    found[i] = score
                self.progress.advance(first + len(some))
        except Stopped:
            pass
        self.progress.end()
        return found

    def rated(self, scores: Sequence[Tensor], given: bool) -> list[dict[str, float]]:
        """Score, likelihood ratio and false-alarm rate of candidates."""
        if not scores:
            return []
        features = standardised(torch.stack(list(scores)), self.null_scores)
        combined = features @ self.regression.weights
        null = self.null if given else moved_up(self.null, combined)
        rates = false_alarm_rates(combined, null)
        # In the same units as in rehearsal: spreads of what was not in.
        scale = float(null.std() / self.null.std().clamp_min(1e-30)) or 1.0
        aligned = (combined - null.mean()) / scale + self.null.mean()
        ratios = self.regression.of_combined(aligned).exp()
        spread = null.std().clamp_min(1e-30)
        return [
            {"score": float((c - null.mean()) / spread), "likelihood_ratio": float(r), "false_alarm_rate": float(a)}
            for c, r, a in zip(combined, ratios, rates, strict=True)
        ]


def _labels(model: TextModel, update: Update) -> list[int] | None:
    if model.task not in WITH_CANDIDATES:
        raise GradleakError(
            f"contains compares a candidate under every label that it can have; those of {model.task} cannot be tried"
        )
    if not model.goal.labelled:
        return None
    known = update.known.classes
    return sorted(set(known)) if known else list(range(min(model.num_labels, MOST_LABELS)))
