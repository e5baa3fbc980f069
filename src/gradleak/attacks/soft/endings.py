"""Where a grown sentence ends, and with which token: the last is predicted, but no state of it is in the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.coefficients import Coefficients, Match
from gradleak.attacks.soft.judge import Judge
from gradleak.attacks.soft.rehearsal import reader_of
from gradleak.attacks.soft.search import Written
from gradleak.models.text import TextModel

# Places around the end of the evidence at which the end is looked for, and last tokens tried at each.
SOONER, LATER, LAST = 2, 1, 3
# Sentences that are less alike than this are wrong as a whole, or not worth a closer look.
ALIKE, NEARLY = 0.45, 0.6
# Tokens of the shortest beginning that is taken for a whole sentence.
SHORTEST = 4
# First tokens that are tried in the place of the first.
FIRST = 6

# A sentence that was tried, and how it compares.
Attempt = tuple[tuple[int, ...], Match]


class Endings:
    """Completes sentences, and proves them where the first layer's coefficients are known."""

    def __init__(
        self, model: TextModel, attribution: Attribution, judge: Judge, bag: Tensor, first: Mapping[int, float]
    ) -> None:
        allowed = [token for token in end_tokens(model) if bool(model.text_tokens[token])]
        self._tokens = torch.tensor(sorted({*bag.tolist(), *allowed}), device=bag.device)
        self._reader = reader_of(attribution, self._tokens)
        self._judge, self._first = judge, list(first)[:FIRST]

    def likeliest(self, sentence: Written) -> tuple[int, ...]:
        """The sentence with the last token that is likeliest after where its evidence ends."""
        return next(self._completed(sentence.best.tokens))

    def proved(self, sentence: Written, coefficients: Coefficients) -> Attempt:
        """The sentence with the end that the coefficients prove, or the one most like it of those tried."""
        likeliest = self.likeliest(sentence)
        rough = likeliest, coefficients.match(likeliest)
        if rough[1].proved or rough[1].likeness < ALIKE:
            return rough
        return self._best(self._ends(sentence), coefficients, rough)

    def repaired(self, sentence: Written, best: Attempt, coefficients: Coefficients) -> Attempt:
        """The same for a sentence that is nearly right: other ends, a token that stood twice, other first tokens.

        What is nearly right looks nearly like it, so that each of these can be chosen by likeness.
        """
        best = self._best(self._anywhere(sentence), coefficients, best)
        if not best[1].proved:
            best = self._best(_doubled(best[0]), coefficients, best)
        if best[1].proved:
            return best
        first = best[0][0]
        best = self._best(((token, *best[0][1:]) for token in self._first if token != first), coefficients, best)
        if best[1].proved or best[0][0] == first:
            return best
        # With the right first token the end can be another.
        changed = Written((best[0][0], *sentence.tokens[1:]), sentence.values)
        return self._best(self._ends(changed), coefficients, best)

    def _best(self, sentences: Iterator[tuple[int, ...]], coefficients: Coefficients, best: Attempt) -> Attempt:
        """The first that is proved, or the most alike of them and the best before."""
        for tokens in sentences:
            match = coefficients.match(tokens)
            if match.proved:
                return tokens, match
            if match.likeness > best[1].likeness:
                best = tokens, match
        return best

    def _ends(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with every end that is tried, likeliest places first."""
        end, whole = len(sentence.best.tokens), sentence.tokens
        places = [end, *(end - n for n in range(1, SOONER + 1)), *(end + n for n in range(1, LATER + 1))]
        for place in places:
            if 2 <= place <= len(whole):
                yield from self._completed(whole[:place])

    def _anywhere(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with likely ends at every other place: what follows a right one can look right as well."""
        end, whole = len(sentence.best.tokens), sentence.tokens
        for place in range(SHORTEST, len(whole) + 1):
            if not end - SOONER <= place <= end + LATER:
                yield from self._completed(whole[:place], 1)

    def _completed(self, prefix: Sequence[int], count: int = LAST) -> Iterator[tuple[int, ...]]:
        labels = self._reader.first(torch.tensor([prefix], device=self._tokens.device))
        values = self._judge.without_states(*labels)[0]
        for column in values.topk(min(count, len(values))).indices.tolist():
            yield (*prefix, int(self._tokens[column]))


def _doubled(tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The sentence with each of its tokens twice in a row, one at a time: the search leaves those out."""
    for place in range(1, len(tokens) - 1):
        yield (*tokens[: place + 1], *tokens[place:])
