"""A server that has candidates: the true sentences of a trial and others of the same data, in one shuffled list.

The attack is given the update, the list and public text. Which of the list were in is put beside its answer here,
after it has ended.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gradleak.attacks.contains.run import LEARNT_FROM, REFERENCES, contains
from gradleak.audits.spec import AuditSpec
from gradleak.core.budget import Budget, Stopped
from gradleak.core.errors import GradleakError
from gradleak.core.progress import Progress
from gradleak.core.seeds import derive_seed
from gradleak.core.supervision import supervised
from gradleak.data.texts import Row
from gradleak.data.windows import cut_rows
from gradleak.models.text import TextModel
from gradleak.scoring.membership import KnownCandidate, TrialCandidates
from gradleak.updates.update import Update

# Rows that are left of the data from which on they are the server's public text; with fewer it has WikiText-2.
ENOUGH_PUBLIC = 90
# The share of public text that false alarms are counted on, where there is not enough of it for all.
COUNTED_ON = 2 / 3


class CandidateLists:
    """Makes the list of every trial from the rows of the data, and asks the server about it."""

    def __init__(self, spec: AuditSpec, rows: Sequence[Row], model: TextModel) -> None:
        assert spec.candidates is not None
        self.model, self.others, self.max_tokens = model, spec.candidates, spec.max_tokens
        self._rows = rows if spec.window is None else cut_rows(rows, model, spec.window)

    def ask(
        self, update: Update, truth: Sequence[str], seed: int, budget: Budget, progress: Progress
    ) -> TrialCandidates | None:
        """What the server makes of the list of one trial; None if there is no time for it."""
        if budget.late:
            return None
        members = list(dict.fromkeys(truth))
        others, public = self.draw(members, seed)
        listed = members + others
        random.Random(derive_seed(seed, "candidates", "order")).shuffle(listed)
        references = REFERENCES if public is None else min(REFERENCES, int(COUNTED_ON * len(public)))
        try:
            found = supervised(
                lambda: contains(
                    update, self.model, listed, public=public, references=references,
                    seed=derive_seed(seed, "candidates", "attack"), budget=budget, progress=progress,
                ),
                budget,
            )  # fmt: skip
        except Stopped:
            return None
        except GradleakError as error:  # such as an update without any matrix; the audit has more to tell
            return TrialCandidates(seed=seed, status="completed", problem=str(error), candidates=[])
        true = set(members)
        return TrialCandidates(
            seed=seed,
            status=found.status,
            public="wikitext" if public is None else "same data",
            references=found.references,
            candidates=[KnownCandidate(**each.model_dump(), member=each.text in true) for each in found.candidates],
            seconds=round(found.seconds, 3),
        )

    def draw(self, members: Sequence[str], seed: int) -> tuple[list[str], list[str] | None]:
        """Others for the list, and public text that is neither; None if what is left of the data is too little.

        Rows that are the same tokens as another are passed over: what was in cannot stand for what was not.
        """
        taken = {self._tokens(text) for text in members}
        drawn: list[str] = []
        order = random.Random(derive_seed(seed, "candidates")).sample(range(len(self._rows)), len(self._rows))
        for number in order:
            if len(drawn) == self.others + LEARNT_FROM + REFERENCES:
                break
            tokens = self._tokens(self._rows[number].text)
            if tokens not in taken and self._readable(tokens):
                taken.add(tokens)
                drawn.append(self._rows[number].text)
        others, public = drawn[: self.others], drawn[self.others :]
        return others, public if len(public) >= ENOUGH_PUBLIC else None

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.model.tokenizer(text, verbose=False)["input_ids"])

    def _readable(self, tokens: Sequence[int]) -> bool:
        """Whether an audit could have drawn it, and the model can read it."""
        most = self.model.max_length if self.max_tokens is None else min(self.max_tokens, self.model.max_length)
        return len(self.model.prefix) + len(self.model.suffix) < len(tokens) <= most
