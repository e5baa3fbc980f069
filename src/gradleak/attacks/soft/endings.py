"""Where a grown sentence ends, and with which token: the last is predicted, but no state of it is in the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradleak.attacks.film.attribution import Attribution
from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.coefficients import Coefficients, Match
from gradleak.attacks.soft.judge import Judge
from gradleak.attacks.soft.rehearsal import labels_along
from gradleak.attacks.soft.search import Written
from gradleak.models.text import TextModel

# Places around the end of the evidence at which the end is looked for, and last tokens tried at each; other places
# that are tried, likeliest ends first.
SOONER, LATER, LAST, ELSEWHERE = 2, 1, 3, 8
# Sentences none of whose beginnings is more alike than this are wrong as a whole; those more alike than the second
# are worth a closer look.
ALIKE, NEARLY = 0.45, 0.6
# Tokens that are tried before the last where the evidence stops a token too soon.
FURTHER = 8
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
        self._closing = torch.tensor([token in allowed for token in self._tokens.tolist()], device=bag.device)
        self._attribution, self._judge, self._first = attribution, judge, list(first)[:FIRST]

    def likeliest(self, sentence: Written) -> tuple[int, ...]:
        """The sentence with the last token that is likeliest after where its evidence ends."""
        prefix = sentence.best.tokens
        return self._completed(prefix, self._values(prefix)[-1], 1)[0]

    def proved(self, sentence: Written, coefficients: Coefficients) -> Attempt:
        """The sentence with the end that the coefficients prove, or the one most like it of those tried."""
        likeliest = self.likeliest(sentence)
        rough = likeliest, coefficients.match(likeliest)
        if rough[1].proved or rough[1].beginning < ALIKE:
            return rough
        return self._best(self._ends(sentence), coefficients, rough)

    def repaired(self, sentence: Written, best: Attempt, coefficients: Coefficients) -> Attempt:
        """The same for a sentence that is nearly right: other ends, a token more or twice, another first.

        What is nearly right looks nearly like it, so that each of these can be chosen by likeness.
        """
        best = self._best(self._anywhere(sentence), coefficients, best)
        if not best[1].proved:
            best = self._best(self._longer(sentence), coefficients, best)
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
        seen = {best[0]}
        for tokens in sentences:
            if tokens in seen:
                continue
            seen.add(tokens)
            match = coefficients.match(tokens)
            if match.proved:
                return tokens, match
            if match.likeness > best[1].likeness:
                best = tokens, match
        return best

    def _ends(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with every end that is tried: where ends are likely, then around where the evidence ends.

        Evidence goes on past a sentence's end if another sentence of the batch could follow there.
        """
        end, whole = len(sentence.best.tokens), sentence.tokens
        values = self._values(whole)
        closing = values.masked_fill(~self._closing, float("-inf")).max(dim=1).values
        for place in (closing.argsort(descending=True) + 1).tolist()[:ELSEWHERE]:
            if place >= SHORTEST:
                yield from self._completed(whole[:place], values[place - 1], 1)
        for place in (end, *(end - n for n in range(1, SOONER + 1)), *(end + n for n in range(1, LATER + 1))):
            if 2 <= place <= len(whole):
                yield from self._completed(whole[:place], values[place - 1], LAST)

    def _anywhere(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with the likeliest token as its last, at every place."""
        values = self._values(sentence.tokens)
        for place in range(SHORTEST, len(sentence.tokens) + 1):
            yield from self._completed(sentence.tokens[:place], values[place - 1], 1)

    def _longer(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with a token more behind its evidence, or in the place of its last, and then its end."""
        end = len(sentence.best.tokens)
        for place in (end, end - 1):
            prefix = sentence.tokens[:place]
            for longer in self._completed(prefix, self._values(prefix)[-1], FURTHER):
                yield from self._completed(longer, self._values(longer)[-1], 1)

    def _values(self, row: Sequence[int]) -> Tensor:
        """How likely each token is to be the last after each place of a row, (places, tokens)."""
        return self._judge.without_states(*labels_along(self._attribution, row, self._tokens))

    def _completed(self, prefix: Sequence[int], values: Tensor, count: int) -> list[tuple[int, ...]]:
        best = values.topk(min(count, len(values))).indices.tolist()
        return [(*prefix, int(self._tokens[column])) for column in best]


def _doubled(tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The sentence with each of its tokens twice in a row, one at a time: the search leaves those out."""
    for place in range(1, len(tokens) - 1):
        yield (*tokens[: place + 1], *tokens[place:])
