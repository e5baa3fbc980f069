"""Where a grown sentence ends, and with which token: the last is predicted, but no state of it is in the batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradleak.attacks.film.sentence_bounds import end_tokens
from gradleak.attacks.soft.coefficients import Coefficients, Match
from gradleak.attacks.soft.judge import Judge
from gradleak.attacks.soft.predictions import Predictions, labels_after, labels_along
from gradleak.attacks.soft.search import Written
from gradleak.models.text import TextModel

# Places around where the evidence ends, or the coefficients do, at which the end is looked for.
SOONER, LATER = 2, 5
# Last tokens that are tried at the place that looks best beside those that close a sentence, and last tokens of the
# whole vocabulary for a sentence that is nearly right.
LAST, ANY_LAST = 6, 48
# Other places that are tried, likeliest ends first.
ELSEWHERE = 8
# Sentences that are compared together.
TOGETHER = 8
# Sentences none of whose beginnings is more alike than this are wrong as a whole; those more alike than the second
# are worth a closer look.
ALIKE, NEARLY = 0.45, 0.6
# Sentences less alike than this are wrong in more than their last token.
NEARLY_WHOLE = 0.7
# Tokens that are tried before the last where the evidence stops a token too soon.
FURTHER = 8
# How often a sentence is edited, at how many places, and with how many tokens at each.
EDITS, SUSPECTED, SWAPPED = 3, 5, 4
# Tokens of the shortest beginning that is taken for a whole sentence.
SHORTEST = 4
# First tokens that are tried in the place of the first: first states look all alike.
FIRST = 48

# A sentence that was tried, and how it compares.
Attempt = tuple[tuple[int, ...], Match]


class Endings:
    """Completes sentences, and proves them where the first layer's coefficients are known."""

    def __init__(
        self, model: TextModel, predictions: Predictions, judge: Judge, bag: Tensor, first: Mapping[int, float]
    ) -> None:
        allowed = [token for token in end_tokens(model) if bool(model.text_tokens[token])]
        self._tokens = torch.tensor(sorted({*bag.tolist(), *allowed}), device=bag.device)
        self._closing = torch.tensor([token in allowed for token in self._tokens.tolist()], device=bag.device)
        self._vocabulary = model.text_tokens.nonzero()[:, 0]
        self._predictions, self._judge, self._first = predictions, judge, list(first)[:FIRST]

    def likeliest(self, sentence: Written) -> tuple[int, ...]:
        """The sentence with the last token that is likeliest after where it seems to end."""
        prefix = sentence.tokens[: sentence.end]
        return self._completed(prefix, self._values(prefix)[-1], 1)[0]

    def proved(self, sentence: Written, coefficients: Coefficients) -> Attempt:
        """The sentence with the end that the coefficients prove, or the one most like it of those tried.

        Around where the evidence ends first, and with other last tokens at the place that looks best.
        """
        likeliest = self.likeliest(sentence)
        best = likeliest, coefficients.match(likeliest)
        if best[1].proved or best[1].beginning < ALIKE:
            return best
        values = self._values(sentence.tokens)
        around = [self._completed(sentence.tokens[:place], values[place - 1], 1)[0] for place in _around(sentence)]
        compared = list(zip(around, coefficients.matches(around), strict=True))
        ranked = sorted(compared, key=lambda attempt: attempt[1].rank, reverse=True)
        if ranked and ranked[0][1].rank > best[1].rank:
            best = ranked[0]
        if best[1].proved or best[1].likeness < NEARLY_WHOLE:
            return best
        # A right beginning looks most alike with all its tokens but the last, so one more may be missing.
        others = (each for prefix in (best[0], best[0][:-1]) for each in self._closed(prefix))
        best = self._best((each for each in others if each not in around), coefficients, best)
        return best if best[1].proved else self._best(self._likely_ends(sentence, values), coefficients, best)

    def repaired(self, sentence: Written, best: Attempt, coefficients: Coefficients) -> Attempt:
        """The same for a sentence that is nearly right: another first token, end, or token inside.

        What is nearly right looks nearly like it, so that each of these can be chosen by its support.
        """
        first = sentence.tokens[0]
        best = self._best(((token, *best[0][1:]) for token in self._first), coefficients, best)
        if best[0][0] != first and not best[1].proved:
            # With the right first token the end can be another.
            sentence = replace(sentence, tokens=(best[0][0], *sentence.tokens[1:]))
            best = max(best, self.proved(sentence, coefficients), key=lambda attempt: attempt[1].rank)
        best = self._best(self._anywhere(sentence), coefficients, best)
        for _ in range(EDITS):
            before = best
            for change in (self._edited, self._any_last, self._longer):
                if best[1].proved:
                    return best
                best = self._best(change(best), coefficients, best)
            if best == before or best[1].likeness < NEARLY_WHOLE:
                break
        return best

    def _best(self, sentences: Iterator[tuple[int, ...]], coefficients: Coefficients, best: Attempt) -> Attempt:
        """The first that is proved, or of them and the best before the one with most support."""
        waiting = (tokens for tokens in dict.fromkeys(sentences) if tokens != best[0])
        while some := list(itertools.islice(waiting, TOGETHER)):
            for tokens, match in zip(some, coefficients.matches(some), strict=True):
                if match.proved:
                    return tokens, match
                if match.support > best[1].support:
                    best = tokens, match
        return best

    def _likely_ends(self, sentence: Written, values: Tensor) -> Iterator[tuple[int, ...]]:
        """The sentence cut where ends are likely, anywhere.

        Evidence goes on past a sentence's end if another sentence of the batch could follow there.
        """
        closing = values.masked_fill(~self._closing, float("-inf")).max(dim=1).values
        for place in (closing.argsort(descending=True) + 1).tolist()[:ELSEWHERE]:
            if place >= SHORTEST:
                yield from self._completed(sentence.tokens[:place], values[place - 1], 1)

    def _closed(self, prefix: Sequence[int]) -> list[tuple[int, ...]]:
        """A beginning with the tokens that are likeliest to be the last, and with all that close a sentence."""
        closing = [(*prefix, int(token)) for token in self._tokens[self._closing]]
        return list(dict.fromkeys([*self._completed(prefix, self._values(prefix)[-1], LAST), *closing]))

    def _any_last(self, attempt: Attempt) -> Iterator[tuple[int, ...]]:
        """The sentence with any token of the vocabulary behind it, or in the place of its last, likeliest first."""
        for prefix in (attempt[0], attempt[0][:-1]):
            labels = labels_after(self._predictions, prefix, self._vocabulary)
            best = self._judge.without_states(*labels)[0].topk(min(ANY_LAST, len(self._vocabulary))).indices
            yield from ((*prefix, int(self._vocabulary[column])) for column in best)

    def _anywhere(self, sentence: Written) -> Iterator[tuple[int, ...]]:
        """The sentence with the likeliest token as its last, at every place."""
        values = self._values(sentence.tokens)
        for place in range(SHORTEST, len(sentence.tokens) + 1):
            yield from self._completed(sentence.tokens[:place], values[place - 1], 1)

    def _longer(self, attempt: Attempt) -> Iterator[tuple[int, ...]]:
        """The sentence with a token more behind it, or in the place of its last, and then another end."""
        for prefix in (attempt[0], attempt[0][:-1]):
            for longer in self._completed(prefix, self._values(prefix)[-1], FURTHER):
                yield from self._completed(longer, self._values(longer)[-1], 1)

    def _edited(self, attempt: Attempt) -> Iterator[tuple[int, ...]]:
        """The sentence with a token twice; with another token, none, or one more where its tokens are least alike."""
        tokens, match = attempt
        # The search takes a token twice in a row only where the language model expects it.
        yield from ((*tokens[: place + 1], *tokens[place:]) for place in range(1, len(tokens) - 1))
        places = [len(tokens) - 2 - lag for lag in match.lags]
        worst = sorted(zip(match.cosines, places, strict=True))[:SUSPECTED]
        values = self._values(tokens)
        for place in sorted({place for _, place in worst if place > 0}):
            before, own, after = tokens[:place], tokens[place], tokens[place + 1 :]
            likely = [each[-1] for each in self._completed(before, values[place - 1], SWAPPED)]
            yield (*before, *after)
            yield from ((*before, token, *after) for token in likely if token != own)
            yield from ((*before, token, own, *after) for token in likely if token != own)

    def _values(self, row: Sequence[int]) -> Tensor:
        """How likely each token is to be the last after each place of a row, (places, tokens)."""
        return self._judge.without_states(*labels_along(self._predictions, row, self._tokens))

    def _completed(self, prefix: Sequence[int], values: Tensor, count: int) -> list[tuple[int, ...]]:
        best = values.topk(min(count, len(values))).indices.tolist()
        return [(*prefix, int(self._tokens[column])) for column in best]


def _around(sentence: Written) -> list[int]:
    """Places where the sentence may end: around where its evidence ends, and where its coefficients do."""
    ends = {len(sentence.best.tokens), sentence.end}
    return sorted(
        {
            place
            for end in ends
            for place in range(end - SOONER, end + LATER + 1)
            if SHORTEST <= place <= len(sentence.tokens)
        }
    )
