"""The honest side: a client that trains on private texts and shares an update."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from gradleak.defenses import parse_defenses
from gradleak.defenses.base import Defense, Gradient
from gradleak.errors import GradleakError
from gradleak.models.selection import ALL, selected
from gradleak.models.target import TargetModel
from gradleak.scenario.training import local_training, plain_gradient
from gradleak.update import GRANTS, ClientRule, Known, Manifest, Update

# What an attacker is told unless the audit says otherwise.
DEFAULT_GRANTS = ("batch_size",)


class Client:
    """A federated client: trains on its texts by its rule, defends the result, and sends it.

    >>> from gradleak import Client, load_model
    >>> client = Client(load_model("minilm"), known=("batch_size", "labels"))
    >>> update = client.update(["Her biopsy came back clear."], labels=[0])
    >>> update.known.labels, round(float(update.tensors["classifier.bias"].abs().sum()), 3) > 0
    ((0,), True)
    """

    def __init__(
        self,
        model: TargetModel,
        known: Collection[str] = DEFAULT_GRANTS,
        rule: ClientRule | str = "fedsgd",
        defenses: Sequence[Defense | str] = (),
        observe: str = ALL,
    ) -> None:
        """`known` is what the attacker is told; `rule` and `defenses` may be texts, as on the command line.

        `observe` is the part of the model whose tensors the update holds, such as `layer:6.query`; all is trained
        and defended as before, the rest does not reach the attacker.
        """
        strange = set(known) - set(GRANTS)
        if strange:
            raise GradleakError(f"unknown grant {sorted(strange)[0]!r}; known: {', '.join(GRANTS)}")
        self.model = model
        self.known = tuple(name for name in GRANTS if name in known)
        self.rule = ClientRule.parse(rule) if isinstance(rule, str) else rule
        self.defenses = [parse_defenses([d])[0] if isinstance(d, str) else d for d in defenses]
        self.observe = observe
        self.observed = set(selected(observe, model))

    def update(self, texts: Sequence[str], labels: Sequence[int | str] | None = None, seed: int = 0) -> Update:
        """Train on the texts and return what would be sent; `seed` fixes dropout and noise.

        Classification needs a label a text: a class number, or a class name the model's config knows.
        """
        if not texts:
            raise GradleakError("a client needs at least one text")
        batch = self.model.encode(texts)
        classes = self._classes(texts, labels)
        targets = batch.ids if classes is None else torch.tensor(classes, device=self.model.device)
        generator = torch.Generator().manual_seed(seed)
        names = list(self.model.parameters())
        for defense in self.defenses:
            names = defense.trained(names, self.model)
        gradient = chain_gradient(self.defenses, generator)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            tensors = local_training(self.model, batch, targets, self.rule, names, gradient)
        for defense in self.defenses:
            tensors = defense.apply(tensors, self.model, generator)
        tensors = {name: tensor for name, tensor in tensors.items() if name in self.observed}
        if not tensors:
            raise GradleakError(f"nothing of {self.observe!r} is left once the defences have acted")
        known = Known(
            batch_size=len(texts) if "batch_size" in self.known else None,
            labels=tuple(classes) if "labels" in self.known and classes is not None else None,
            lengths=tuple(batch.lengths) if "lengths" in self.known else None,
        )
        manifest = Manifest(
            task=self.model.task,
            family=self.model.adapter.family.name,
            model_fingerprint=self.model.fingerprint,
            client=self.rule,
            defenses=tuple(str(defense) for defense in self.defenses),
            known=known,
        )
        return Update(tensors, manifest)

    def _classes(self, texts: Sequence[str], labels: Sequence[int | str] | None) -> list[int] | None:
        if self.model.task == "causal-lm":
            return None
        if labels is None or len(labels) != len(texts):
            raise GradleakError(
                f"classification needs one label a text: {len(texts)} texts, {len(labels or ())} labels"
            )
        return [class_number(self.model, label) for label in labels]


def chain_gradient(defenses: Sequence[Defense], generator: torch.Generator) -> Gradient:
    """How a chain of defences computes a local step's gradient; at most one may have a way of its own."""
    own = [(number, way) for number, way in enumerate(d.gradient(generator) for d in defenses) if way is not None]
    if not own:
        return plain_gradient
    number, way = own[0]
    if len(own) > 1 or any(type(d).apply is not Defense.apply for d in defenses[:number]):
        raise GradleakError(
            f"{defenses[own[-1][0]].name} works on single sentences' gradients, so it comes before all that changes "
            "the update, and once"
        )
    return way


def class_number(model: TargetModel, label: int | str) -> int:
    """The class a label means: its number, or its name in the model's config."""
    if isinstance(label, str):
        names = {str(k).lower(): int(v) for k, v in (model.module.config.label2id or {}).items()}
        if label.lower() not in names:
            raise GradleakError(f"label {label!r} is not a class of {model.name}; it has {', '.join(names)}")
        return names[label.lower()]
    if not 0 <= label < model.num_labels:
        raise GradleakError(
            f"label {label} is out of range: {model.name} has classes 0 to {model.num_labels - 1} "
            "(a new head can have more: --num-labels)"
        )
    return label
