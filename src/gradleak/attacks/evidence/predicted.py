"""Which tokens a masked language model was trained to predict, read off its output layer."""

from __future__ import annotations

from torch import Tensor

from gradleak.attacks.evidence.rows import predicted_rows
from gradleak.models.text import TextModel
from gradleak.updates.update import Update


def predicted_tokens(update: Update, model: TextModel) -> list[int]:
    """The tokens that were predicted somewhere, as far as the output layer shows them; empty if it was not sent.

    The gradient of its bias is the sum of all predicted probabilities less one for every token that stood there, so
    nothing but such a token can make an entry negative.
    """
    if not model.goal.predicts_tokens:
        return []
    names = {id(parameter): name for name, parameter in model.parameters().items()}
    output = model.adapter.output_layer
    own, table = (update.tensors.get(names.get(id(each), "")) for each in (output.bias, output.weight))
    if own is not None:
        return _below_zero(own)
    return [] if table is None else predicted_rows(table).nonzero()[:, 0].tolist()


def _below_zero(bias: Tensor) -> list[int]:
    found: list[int] = (bias < -1e-6 * bias.abs().max()).nonzero()[:, 0].tolist()
    return found
