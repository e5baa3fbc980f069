"""Any Hugging Face causal language model as a prior, whatever its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradleak.core.progress import SILENT, Progress
from gradleak.models.load import load_text_model
from gradleak.models.text import TextModel

SENTENCES_AT_ONCE = 64
# Texts whose score is kept: candidates come back round after round.
REMEMBERED = 100_000


class CausalPrior:
    """Scores the decoded text with the language model and spreads the loss over the target's tokens.

    The total log-likelihood of a text is the model's own; dividing it by the number of the target's tokens
    makes candidates comparable whatever the two tokenizers do.
    """

    def __init__(self, language_model: TextModel, target: TextModel) -> None:
        self.name = language_model.name
        self._lm = language_model
        self._target = target
        tokenizer = language_model.tokenizer
        starts = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        self._start = next((token for token in starts if token is not None), None)
        self._totals: dict[str, float] = {}

    @classmethod
    def load(cls, source: str, target: TextModel, progress: Progress = SILENT) -> CausalPrior:
        """Load the language model by folder or hub id."""
        device = str(target.device)
        language_model = load_text_model(source, task="causal-lm", device=device, progress=progress)
        if _has_bfloat16(device):  # rankings do not depend on it
            language_model.module.bfloat16()
        return cls(language_model, target)

    @torch.no_grad()
    def nll(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Negative log-likelihood of the text per target token, in nats."""
        texts = [self._target.decode(sentence) for sentence in sentences]
        if len(self._totals) > REMEMBERED:
            self._totals.clear()
        new = [text for text in dict.fromkeys(texts) if text not in self._totals]
        for first in range(0, len(new), SENTENCES_AT_ONCE):
            some = new[first : first + SENTENCES_AT_ONCE]
            self._totals.update(zip(some, self._losses(some), strict=True))
        return torch.tensor([self._totals[t] / max(1, len(s)) for t, s in zip(texts, sentences, strict=True)])

    def _losses(self, texts: Sequence[str]) -> list[float]:
        """The whole negative log-likelihood of every text."""
        batch = self._lm.pad([self._tokens(text) for text in texts])
        logits = self._lm.logits(ids=batch.ids, mask=batch.mask)[:, :-1].float()
        picked = logits.gather(-1, batch.ids[:, 1:, None])[..., 0] - logits.logsumexp(dim=-1)
        return [float(total) for total in -(picked * batch.mask[:, 1:]).sum(dim=1)]

    def _tokens(self, text: str) -> list[int]:
        tokens = self._lm.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        framed = ([] if self._start is None else [self._start]) + list(tokens)
        return framed[: self._lm.max_length] or [0]

    @torch.no_grad()
    def sample(self, length: int, generator: torch.Generator) -> list[int]:
        """Draw text until it is long enough in the target's tokens."""
        drawn = [self._start or 0]
        tokens: list[int] = []
        while len(tokens) < length and len(drawn) < min(4 * length + 8, self._lm.max_length):
            batch = self._lm.pad([drawn])
            weights = self._lm.logits(ids=batch.ids, mask=batch.mask)[0, -1].float().softmax(dim=-1).cpu()
            weights[self._lm.tokenizer.all_special_ids] = 0
            drawn.append(int(torch.multinomial(weights, 1, generator=generator)))
            text = self._lm.decode(drawn[1:])
            tokens = self._target.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(tokens[:length])


def _has_bfloat16(device: str) -> bool:
    """Whether bf16 is faster than fp32: twice where the hardware has it, and six times slower where it does not."""
    if device != "cpu":
        return True
    known = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in known)
