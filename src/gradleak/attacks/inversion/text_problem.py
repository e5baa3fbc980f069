"""Text inverters learn from auxiliary sequences and the gradients these give, defended as the victims' are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradleak.attacks.inversion.auxiliary import Auxiliary
from gradleak.attacks.inversion.defended import check_learnable, defend
from gradleak.attacks.inversion.features import Guess, Hashed
from gradleak.attacks.inversion.networks import IGNORED, NetworkSettings, TokenInverter
from gradleak.attacks.inversion.sample_gradients import SampleGradients
from gradleak.attacks.inversion.text_reader import features_for, inverter_for, read_tokens
from gradleak.attacks.inversion.training import Example, Problem
from gradleak.core.errors import GradleakError
from gradleak.core.seeds import derive_seed
from gradleak.defenses.base import Defense
from gradleak.defenses.noise import GaussianNoise
from gradleak.models.batch import Batch
from gradleak.models.text import TextModel

# Examples from which features' typical sizes are taken.
FIRST_LOOK = 64
# The share of examples that are read for the first time, and of tokens taken as known that are wrong.
FIRST_READ, WRONG = 0.4, 0.1
# Examples checked at once.
CHECKED = 64
# Floats of features that are kept: two gigabytes.
KEPT = 1 << 29


class TextProblem(Problem):
    """Gradients of single auxiliary sequences, defended as the victims' are; the network must find the tokens."""

    network: TokenInverter

    def __init__(
        self,
        model: TextModel,
        auxiliary: Auxiliary,
        defenses: Sequence[Defense],
        settings: NetworkSettings,
        seed: int = 0,
    ) -> None:
        check_learnable(defenses)
        self.model, self.auxiliary, self.settings, self.seed = model, auxiliary, settings, seed
        trained = list(model.parameters())
        for defense in defenses:
            trained = defense.trained(trained, model)
        self.shapes = self._sent(trained, defenses)
        self.features = features_for(settings, model, self.shapes)
        missing = [name for name in self.features.names if name not in self.shapes]
        if missing:
            raise GradleakError(f"structured features need {missing[0]}, which is not sent; use features=hashed")
        # Noise on every coordinate is noise on the bins, so it can come after hashing, on what was kept.
        last = defenses[-1] if defenses else None
        self._noise = last.sigma if settings.features == "hashed" and isinstance(last, GaussianNoise) else None
        self._chain = list(defenses)
        self._defenses = list(defenses[:-1] if self._noise is not None else defenses)
        alone = all(defense.coordinatewise for defense in self._defenses)
        needed = self.features.names if alone else trained
        self._gradients = SampleGradients(model, needed)
        self._kept = self._memory()
        self.network = inverter_for(settings, self.features, model, seed)
        self.network.start_from(auxiliary.counts)
        self.network.body.fit(self.draw(0, FIRST_LOOK)[0])
        decides = (model.fingerprint, settings.model_dump_json(), *map(str, defenses), auxiliary.identity, seed)
        self.identity = " ".join(map(str, decides))

    def draw(self, step: int, count: int) -> Example:
        ids = self.auxiliary.draw(step, count)
        if self._kept is None:
            features = self._read(ids, step)
        else:
            numbers = self.auxiliary.numbers(step, count)
            missing = numbers[~self._known[numbers]].unique()
            if len(missing):
                # Not from the step: after a stop another step may be the first to read a sequence.
                classes = self._classes(len(self._kept), "kept")[missing]
                self._kept[missing] = self._read(self.auxiliary.sequences[missing], step, classes)
                self._known[missing] = True
            features = self._kept[numbers]
        return self._noised(features, step), self._wanted(ids)

    def held_out(self) -> list[Example]:
        pieces = self.auxiliary.held_out().split(CHECKED)
        return [(self._noised(self._read(ids, -1 - i), -1 - i), self._wanted(ids)) for i, ids in enumerate(pieces)]

    def loss(self, outputs: Tensor, wanted: Tensor) -> Tensor:
        return self.network.loss(outputs, wanted)

    def accuracy(self, passes: int) -> float:
        """The share of the held-out tokens that the network reads right."""
        right = count = 0
        for number, ids in enumerate(self.auxiliary.held_out().split(CHECKED)):
            tokens = [
                read_tokens(self.network, self.features, tensors, self.model.text_tokens, passes)[0]
                for tensors in self._updates(ids, -1 - number, self._chain)
            ]
            wanted = self._wanted(ids)
            right += int((torch.cat(tokens) == wanted).sum())
            count += int((wanted != IGNORED).sum())
        return right / count

    def _read(self, ids: Tensor, step: int, classes: Tensor | None = None) -> Tensor:
        """The features of each sequence's defended gradient; classes of a classifier are drawn if none are given."""
        guesses = self._guess(ids, step)
        features, first = [], 0
        for tensors in self._updates(ids, step, self._defenses, classes):
            some = slice(first, first + len(next(iter(tensors.values()))))
            features.append(self.features.of(tensors, Guess(guesses.tokens[some], guesses.known[some])))
            first = some.stop
        return torch.cat(features)

    def _guess(self, ids: Tensor, step: int) -> Guess:
        """What may be known of sequences when they are read: nothing of some, much of others, not all of it right."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "guess", step))
        count, length = ids.shape
        shares = torch.rand(count, 1, generator=generator) * (torch.rand(count, 1, generator=generator) > FIRST_READ)
        known = torch.rand(count, length, generator=generator) < shares
        strange = torch.multinomial(self.auxiliary.counts, count * length, replacement=True, generator=generator)
        wrong = torch.rand(count, length, generator=generator) < torch.where(known, WRONG, 1 - shares)
        return Guess(torch.where(wrong, strange.view(count, length), ids), known)

    def _classes(self, count: int, *what: object) -> Tensor:
        """Drawn at random: the class of a victim's text is not known."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "classes", *what))
        return torch.randint(self.model.num_labels, (count,), generator=generator)

    def _updates(
        self, ids: Tensor, step: int, defenses: Sequence[Defense], classes: Tensor | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """What clients with a single sequence each send, some at a time."""
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "read", step))
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool))
        targets = ids
        if self.model.goal.labelled:
            targets = self._classes(len(ids), step) if classes is None else classes
        for some in self._gradients.parts(batch, targets):
            yield defend(some, defenses, self.model, generator)

    def _noised(self, features: Tensor, step: int) -> Tensor:
        if self._noise is None or not isinstance(self.features, Hashed):
            return features
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "noise", step))
        return features + self.features.hashing.noise(len(features), self._noise, generator)

    def _wanted(self, ids: Tensor) -> Tensor:
        wanted = ids.clone()
        wanted[:, : len(self.model.prefix)] = IGNORED
        wanted[:, ids.shape[1] - len(self.model.suffix) :] = IGNORED
        return wanted

    def _sent(self, trained: Sequence[str], defenses: Sequence[Defense]) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a client sends, from a single update."""
        ids = self.auxiliary.sequences[:1]
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool))
        targets = self.model.goal.no_targets(ids.shape, self.model.num_labels)
        gradients = SampleGradients(self.model, trained).of(batch, targets)
        sent = defend(gradients, defenses, self.model, torch.Generator().manual_seed(0))
        return {name: tuple(tensor.shape[1:]) for name, tensor in sent.items()}

    def _memory(self) -> Tensor | None:
        """Room for all sequences' features where they are the same each time: hashed, and no random defence."""
        count, size = len(self.auxiliary.sequences), self.features.size
        random = self.auxiliary.pseudo or any(defense.random for defense in self._defenses)
        if self.settings.features != "hashed" or random or count * size > KEPT:
            return None
        self._known = torch.zeros(count, dtype=torch.bool)
        return torch.empty(count, size)
