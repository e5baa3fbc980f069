"""The search of gradient-matching attacks: optimise embeddings for many updates side by side.

An update has a single row, or several if its labels or lengths are guessed; then the rows race for some steps and
only the best goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.attacks.base import Keep, Reconstruction, Sentence, TracePoint
from gradleak.attacks.evidence.hints import Hints
from gradleak.attacks.evidence.knowledge import Knowledge
from gradleak.attacks.search.choose import Proposals, choose
from gradleak.attacks.search.empty_dummies import empty_dummies
from gradleak.attacks.search.explained import explained, guess_distances
from gradleak.attacks.search.initialise import best_initial
from gradleak.attacks.search.options import MatchingOptions
from gradleak.attacks.search.polish import SOLVED, polish
from gradleak.attacks.search.reorder import propose
from gradleak.attacks.search.schedule import learning_rate
from gradleak.attacks.search.vocabulary import Vocabulary
from gradleak.core.budget import Budget
from gradleak.core.progress import Progress
from gradleak.matching.engine import Engine
from gradleak.models.text import TextModel
from gradleak.priors.base import Prior

TRACE_POINTS = 100
SHOW_SECONDS = 0.5
SETTLE_EVERY = 10
# How often the best so far is written out, should the search be ended from outside: seconds, and how many times as
# long as it takes.
KEEP_SECONDS, KEEP_RARELY = 2.0, 30.0
# Steps of a search that starts from tokens. It is in vain if it brings them no closer than this, and after so many in
# vain there is no other. One after a search in vain starts off the tokens, by so much of their embeddings' mean norm.
AGAIN_STEPS, CLOSER, PATIENCE, SHAKEN = 100, 0.99, 3, 0.3
# Rows whose orders are tried between two looks at the budget.
ROWS_AT_ONCE = 16


class _Rarely:
    """When to do again what takes its time, so that it takes little of all."""

    def __init__(self) -> None:
        self._next = time.monotonic() + KEEP_SECONDS

    @property
    def due(self) -> bool:
        return time.monotonic() > self._next

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        now = time.monotonic()
        self._next = now + max(KEEP_SECONDS, KEEP_RARELY * (now - self._began))


class MatchingSearch:
    """Choose a start, then alternate gradient steps with tries of other token orders."""

    def __init__(
        self,
        *,
        options: MatchingOptions,
        model: TextModel,
        engine: Engine,
        prior: Prior | None,
        seeds: Sequence[int],
        guesses: Sequence[Sequence[Knowledge]],
        hints: Sequence[Hints | None],
    ) -> None:
        """`seeds`, `guesses` and `hints` have an entry per update; with a hint only its tokens are looked at."""
        self.options = options
        self.model = model
        self.engine = engine
        self.prior = prior
        self.knowledge = [guess for each in guesses for guess in each]
        self.owners = [update for update, each in enumerate(guesses) for _ in each]
        self.generators = [torch.Generator().manual_seed(seeds[owner]) for owner in self.owners]
        everything = Vocabulary.of(model)
        self.mean_norm = everything.mean_norm
        self.hints = [hints[owner] for owner in self.owners]
        self.vocabularies = [everything if hint is None else everything.only(hint.tokens) for hint in self.hints]
        self.dummies, self.fixed = empty_dummies(model, self.knowledge, self.owners)
        self.best = self.dummies.embeds.clone()
        self.best_loss = self.dummies.embeds.new_full((len(self.knowledge),), float("inf"))
        self.best_distance = self.best_loss.clone()
        self.guessing = [0.0] * len(guesses)
        self.traces: list[list[TracePoint]] = [[] for _ in self.knowledge]
        self.settled = torch.zeros_like(self.best_loss, dtype=torch.bool)
        self.changed_at = torch.zeros_like(self.best_loss, dtype=torch.long)
        self.answers = torch.zeros_like(self.fixed, dtype=torch.long)
        self.started = False
        # At the end of a search: the row of every update that went on, its tokens, and their distance.
        self.finalists: list[int] = []
        self.polished: Tensor | None = None
        self.tokens_distance = self.best_distance.clone()
        self.tokens_before = self.best_distance.clone()
        self.in_vain = [0] * len(self.knowledge)
        self.steps_before = 0

    def start(self, budget: Budget, progress: Progress) -> None:
        """Fill the free positions with the best of many random starts; see how far off random words are."""
        first = torch.tensor([self.owners.index(update) for update in range(len(self.guessing))])
        self.guessing = guess_distances(self.engine, self.model, self.dummies.take(first), self.fixed[first]).tolist()
        self.dummies = best_initial(
            self.engine,
            self.dummies,
            self.fixed,
            self.options,
            self.mean_norm,
            self.generators,
            [None if hint is None else self.model.embed(hint.places) for hint in self.hints],
            budget,
            progress,
        )
        self.best = self.dummies.embeds.clone()
        self.started = True

    def optimise(self, steps: int, budget: Budget, progress: Progress, keep: Keep) -> bool:
        """Take all steps; False if the budget ended them early. The best iterate is kept either way."""
        optimizer = self._optimizer()
        shown, keeping = 0.0, _Rarely()
        for step in range(steps + 1):
            if budget.tick():
                return False
            self._relabel()
            values, gradients = self._match()
            pull, pull_gradient = self._norm_pull()
            loss = values + pull
            self._remember(step, steps, loss, values)
            if time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                progress.advance(step, loss=float(loss[~self.settled].mean()), text=self._shown_text(step))
            if keeping.due:
                with keeping:
                    for number in dict.fromkeys(self.owners):
                        keep(number, self.answer(number))
            self._end_race(step)
            if step == steps or self._all_settled(step):
                break  # the pass after the last step only judges it
            self._step(optimizer, gradients + pull_gradient, step)
            if self.options.discrete == "alternate" and self._discrete_is_due(step, steps):
                self._discrete(budget)
        self.steps_before += steps
        if self.options.discrete == "end":
            self._reorder_answers(budget)
            return not budget.over
        return True

    def polish(self, rounds: int, budget: Budget, progress: Progress) -> None:
        """Move and replace the answers' tokens until nothing explains the updates better; zero rounds judge them."""
        if self.polished is None:
            self.finalists = [self._best_row(update) for update in dict.fromkeys(self.owners)]
            self.polished, rows = self._nearest(self.best), self.finalists
        else:
            rows = [row for row in self.finalists if not self.settled[row]]
        chosen = torch.tensor(rows)
        best = self.dummies.with_embeds(self.best).take(chosen)
        if self.model.goal.autoregressive:
            best.labels.copy_(torch.where(self.fixed[chosen], best.labels, self._nearest(best.embeds, chosen)))
        self.polished[chosen], self.tokens_distance[chosen] = polish(
            self.engine,
            self.model,
            best,
            self.fixed[chosen],
            [self.vocabularies[row] for row in rows],
            [self.hints[row] for row in rows],
            (self.polished[chosen], self.tokens_distance[chosen]),
            rounds=rounds,
            generators=[self.generators[row] for row in rows],
            budget=budget,
            progress=progress,
        )

    def again(self) -> bool:
        """Back to the tokens of the answers that do not explain their update; False if it is not worth it.

        From there embeddings are free once more: many tokens can change together, as they cannot in a polish.
        """
        assert self.polished is not None
        closer = (self.tokens_distance < CLOSER * self.tokens_before).tolist()
        self.in_vain = [0 if better else times + 1 for better, times in zip(closer, self.in_vain, strict=True)]
        rows = [row for row in self.finalists if self.in_vain[row] < PATIENCE and not self._explains(row)]
        self.settled[:] = True
        self.settled[rows] = False
        self.best_loss[rows] = float("inf")
        self.tokens_before = self.tokens_distance.clone()
        embeds = self.best.clone()
        for row in rows:
            own = self.model.embed(self.polished[row]).to(embeds)
            if self.in_vain[row]:
                size = SHAKEN * self.mean_norm / own.shape[-1] ** 0.5
                own = own + size * torch.randn(own.shape, generator=self.generators[row]).to(own)
            embeds[row] = torch.where(self.fixed[row][..., None], self.dummies.embeds.detach()[row], own)
        self.dummies = self.dummies.with_embeds(embeds)
        return bool(rows)

    def _explains(self, row: int) -> bool:
        return float(self.tokens_distance[row]) < SOLVED * max(1.0, self.guessing[self.owners[row]])

    def answer(self, update: int) -> Reconstruction:
        """The best iterate of an update's best row, as text; none if the search was ended before its start."""
        row = self._best_row(update)
        known = self.knowledge[row]
        if not self.started:
            return Reconstruction(labels=known.labels, lengths=known.lengths, found=known.found)
        tokens, cosines = self.vocabularies[row].nearest(self.best[row][~self.fixed[row]])
        bag: dict[str, float] = {}
        for token, cosine in zip(tokens.tolist(), cosines.tolist(), strict=True):
            name = str(self.model.tokenizer.convert_ids_to_tokens(token))
            bag[name] = max(bag.get(name, 0.0), round(cosine, 4))
        loss = float(self.best_loss[row])
        return Reconstruction(
            sentences=self._sentences(row),
            labels=known.labels,
            lengths=known.lengths,
            found=known.found,
            bag=bag,
            loss=loss if loss < float("inf") else None,
            trace=self.traces[row],
        )

    # --- the continuous part ----------------------------------------------------------------------

    def _optimizer(self) -> torch.optim.Optimizer:
        embeds = self.dummies.embeds.requires_grad_()
        if self.options.optimizer == "adam":
            return torch.optim.Adam([embeds], lr=self.options.lr)
        return torch.optim.AdamW([embeds], lr=self.options.lr, eps=1e-6, weight_decay=0.01)

    def _match(self) -> tuple[Tensor, Tensor]:
        """Distances and their derivatives of the rows still searched; a settled row has neither."""
        active = (~self.settled).nonzero()[:, 0]
        values = torch.full_like(self.best_loss, float("inf"))
        gradients = torch.zeros_like(self.dummies.embeds)
        values[active], gradients[active] = self.engine.values_and_gradients(self.dummies.take(active))
        return values, gradients

    def _all_settled(self, step: int) -> bool:
        """Settle the rows whose answer has not changed for long enough; True if none is left."""
        if self.options.patience == 0 or step % SETTLE_EVERY:
            return False
        answers = self._nearest(self.best)
        changed = ((answers != self.answers) & ~self.fixed).any(dim=2).any(dim=1)
        self.changed_at = torch.where(changed, step, self.changed_at)
        self.answers = answers
        self.settled |= step - self.changed_at >= self.options.patience
        return bool(self.settled.all())

    def _nearest(self, embeds: Tensor, rows: Tensor | None = None) -> Tensor:
        """The tokens nearest to the embeddings of these rows, each within its own vocabulary."""
        numbers = range(len(embeds)) if rows is None else rows.tolist()
        tokens = [self.vocabularies[row].nearest(own)[0] for row, own in zip(numbers, embeds, strict=True)]
        return torch.stack(tokens)

    def _best_row(self, update: int) -> int:
        if self.finalists:
            return self.finalists[update]
        rows = [row for row, owner in enumerate(self.owners) if owner == update]
        return min(rows, key=lambda row: float(self.best_loss[row]))

    def _end_race(self, step: int) -> None:
        """After some steps, of the rows with different guesses about an update only the best goes on."""
        if step == min(self.options.race, self.options.steps):
            for update in set(self.owners):
                winner = self._best_row(update)
                losers = [row for row, owner in enumerate(self.owners) if owner == update and row != winner]
                self.settled[losers] = True

    def _remember(self, step: int, steps: int, loss: Tensor, distance: Tensor) -> None:
        """Keep every row that is better than ever before, exactly as it was when it was judged."""
        better = loss < self.best_loss
        self.best[better] = self.dummies.embeds.detach()[better]
        self.best_loss = torch.where(better, loss, self.best_loss)
        self.best_distance = torch.where(better, distance, self.best_distance)
        if step % max(1, steps // TRACE_POINTS) == 0 or step == steps:
            for trace, value in zip(self.traces, loss.tolist(), strict=True):
                if math.isfinite(value):
                    trace.append(TracePoint(step=self.steps_before + step, loss=value))

    def _norm_pull(self) -> tuple[Tensor, Tensor]:
        """The regulariser, (mean embedding norm − the vocabulary's)², and its derivative."""
        embeds = self.dummies.embeds.detach().requires_grad_()
        real = self.dummies.mask
        means = (embeds.norm(dim=-1) * real).sum(dim=(1, 2)) / real.sum(dim=(1, 2))
        pull = self.options.regularization * (means - self.mean_norm).square()
        (gradient,) = torch.autograd.grad(pull.sum(), embeds)
        return pull.detach(), gradient

    def _step(self, optimizer: torch.optim.Optimizer, gradient: Tensor, step: int) -> None:
        embeds = self.dummies.embeds
        unmoved = (self.fixed | self.settled[:, None, None])[..., None]
        gradient = gradient.masked_fill(unmoved, 0.0)
        if self.options.clip is not None:
            sizes = gradient.flatten(1).norm(dim=1).clamp_min(self.options.clip)
            gradient = gradient * (self.options.clip / sizes)[:, None, None, None]
        embeds.grad = gradient
        optimizer.param_groups[0]["lr"] = learning_rate(self.options, step)
        before = embeds.detach().clone()
        optimizer.step()
        with torch.no_grad():  # weight decay must not move what is fixed
            embeds.copy_(torch.where(unmoved, before, embeds))

    def _relabel(self) -> None:
        """A language model's labels are its own input: let the dummy's nearest tokens be its labels."""
        if self.model.goal.autoregressive:
            tokens = self._nearest(self.dummies.embeds.detach())
            self.dummies.labels.copy_(torch.where(self.fixed, self.dummies.labels, tokens))

    # --- the discrete part ------------------------------------------------------------------------

    def _discrete_is_due(self, step: int, steps: int) -> bool:
        every = self.options.discrete_every
        return every > 0 and step > 0 and step % every == 0 and step >= self.options.discrete_after * steps

    def _reorder_answers(self, budget: Budget) -> None:
        """The ablation: as many discrete phases as there would have been, all after the last step."""
        self.settled = torch.tensor(
            [row != self._best_row(owner) for row, owner in enumerate(self.owners)], device=self.settled.device
        )
        with torch.no_grad():
            self.dummies.embeds.copy_(self.best)
        self._relabel()
        for step in range(self.options.steps):
            if self._discrete_is_due(step, self.options.steps):
                self._discrete(budget)
        self.best = self.dummies.embeds.detach().clone()

    def _discrete(self, budget: Budget) -> None:
        """Every sentence in turn takes the best of many orders; later sentences see the new orders of earlier."""
        for sentence in range(self.dummies.embeds.shape[1]):
            rows = (~self.settled).nonzero()[:, 0].tolist()
            for first in range(0, len(rows), ROWS_AT_ONCE):
                if budget.over:
                    return
                self._reorder(rows[first : first + ROWS_AT_ONCE], sentence)

    def _reorder(self, rows: Sequence[int], sentence: int) -> None:
        proposals = [self._proposals(row, sentence) for row in rows]
        chosen = choose(self.engine, proposals, self.options.prior_weight)
        with torch.no_grad():
            for row, proposal, winner in zip(rows, proposals, chosen, strict=True):
                self.dummies.embeds[row] = proposal.guesses.embeds[winner]

    def _proposals(self, row: int, sentence: int) -> Proposals:
        """Other orders of a sentence's tokens, with the prior's loss of each."""
        places = (~self.fixed[row, sentence]).nonzero()[:, 0]
        orders = propose(len(places), self.options.candidates, self.generators[row])
        moved = places[torch.tensor(orders, device=places.device)]
        current = self.dummies.row(row)
        guesses = current.repeat(len(orders))
        guesses.embeds[:, sentence, places] = current.embeds[0, sentence, moved]
        if self.model.goal.autoregressive:
            guesses.labels[:, sentence, places] = current.labels[0, sentence, moved]
        nll = torch.zeros(len(orders))
        if self.prior is not None:
            tokens, _ = self.vocabularies[row].nearest(current.embeds[0, sentence, places])
            nll = self.prior.nll([[int(tokens[i]) for i in order] for order in orders])
        return Proposals(guesses, nll.to(guesses.embeds))

    # --- as text -----------------------------------------------------------------------------------

    def _shown_text(self, step: int) -> str:
        row = step % len(self.dummies)
        return " / ".join(sentence.text for sentence in self._sentences(row))

    def _sentences(self, row: int) -> list[Sentence]:
        """The best iterate as text.

        What is explained holds for the embeddings, so it counts as far as they are those of tokens: free ones explain
        an update that their nearest tokens do not. A search that came to its end has judged the tokens themselves.
        """
        ended = self.polished is not None
        distance = self.tokens_distance if ended else self.best_distance
        share = explained(float(distance[row]), self.guessing[self.owners[row]])
        sentences = []
        for number, (embeds, fixed) in enumerate(zip(self.best[row], self.fixed[row], strict=True)):
            tokens, cosines = self.vocabularies[row].nearest(embeds[~fixed])
            near = float(cosines.mean().clamp(0, 1)) if len(cosines) else 0.0
            if self.polished is not None:
                tokens, near = self.polished[row, number][~fixed], 1.0
            text = self.model.decode(tokens.tolist())
            confidence = share * near
            sentences.append(Sentence(text=text, tokens=tokens.tolist(), confidence=confidence))
        return sentences
