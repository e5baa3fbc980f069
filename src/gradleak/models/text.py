"""The model under audit, as both sides use it: the honest client with real tokens, the attacker with dummies."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.errors import GradleakError
from gradleak.core.identity import digest
from gradleak.core.privacy import private
from gradleak.models.adapter import Adapter
from gradleak.models.adapter_settings import adapter_settings
from gradleak.models.base import Target
from gradleak.models.batch import Batch
from gradleak.models.families import Task, family_of
from gradleak.models.float64 import in_float64, keep_rows
from gradleak.models.origin import Origin
from gradleak.models.stored import computing_in, weight_as_saved
from gradleak.models.tasks import text_task

if TYPE_CHECKING:
    from gradleak.updates.manifest import Known

# Vocabulary entries that no text produces; tokenizers reserve them under such names.
_RESERVED = re.compile(r"^[\[<]/?(unused|extra_id_|reserved|madeupword)[^\s]*[\]>]$|^madeupword\d+$", re.I)
# Entries of a model's configuration about how it was saved, not about what it computes.
_ABOUT_FILES = ("transformers_version", "torch_dtype", "dtype", "architectures", "name_or_path")

_AS_SAVED = Origin()


class TextModel(Target):
    """A Hugging Face model with its tokenizer, its task and the adapter of its family.

    `goal` is the task itself, `task` its name.

    Made by `gradleak.load_model`. The module is in eval mode and uses plain ("eager") attention, which has
    the second derivatives that matching attacks need.
    """

    task: Task
    modality = "text"
    examples = "sentences"
    all_layers = "transformer"

    def __init__(self, module: Any, tokenizer: Any, task: Task, name: str, origin: Origin = _AS_SAVED) -> None:
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.task = task
        self.goal = text_task(task)
        self.name = name
        self.origin = origin
        self.adapter = Adapter(module, origin.family or family_of(module.config.model_type), task)
        self.prefix, self.suffix = _frame(tokenizer)

    def copied(self, frozen: bool = True) -> TextModel:
        copied = TextModel(self._copied_module(frozen), self.tokenizer, self.task, self.name, self.origin)
        copied.module.train(self.module.training)
        return copied

    def identity(self) -> str:
        settings = {
            name: value
            for name, value in self.module.config.to_dict().items()
            if not name.startswith("_") and name not in _ABOUT_FILES
        }
        tokenizer = json.loads(self.tokenizer.backend_tokenizer.to_str())
        parts = {name: value for name, value in tokenizer.items() if name not in ("padding", "truncation")}
        whole = {"weights": self.fingerprint, "task": self.task, "config": settings, "tokenizer": parts}
        if template := getattr(self.tokenizer, "chat_template", None):  # it makes the texts of conversations
            whole["chat_template"] = template
        if scales := _adapters(self.module):
            whole["adapters"] = scales
        return digest(whole)[:32]

    def to_bfloat16(self) -> TextModel:
        """A copy that computes in bf16."""
        module = computing_in(copy.deepcopy(self.module), torch.bfloat16)
        return TextModel(module, self.tokenizer, self.task, self.name, self.origin)

    def to_float64(self, trained: Collection[str] | None = None, rows: Tensor | None = None) -> TextModel:
        """A copy that computes in float64, of which these parameters can have gradients, by default all.

        With `rows` that of the token embedding is of these rows alone, if they can stand alone.
        """
        table = self.adapter.parameter_of(self.adapter.token_embedding)
        names = set(self.parameters() if trained is None else trained) - ({table} if rows is not None else set())
        exact = TextModel(in_float64(self.module, names), self.tokenizer, self.task, self.name, self.origin)
        if rows is not None:
            keep_rows(exact.adapter.token_embedding, rows)
        return exact

    @property
    def notes(self) -> tuple[str, ...]:
        return self.origin.notes

    @property
    def fresh_lora(self) -> str | None:
        return None if self.origin.lora is None else str(self.origin.lora)

    @property
    def adapters(self) -> str | None:
        return self.fresh_lora or adapter_settings(self.module, self.adapter.parts)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def family(self) -> str:
        return self.adapter.family.name

    @property
    def layers(self) -> list[nn.Module]:
        return self.adapter.layers

    @property
    def sections(self) -> dict[str, list[nn.Module]]:
        adapter = self.adapter
        return {"transformer": adapter.layers, "head": adapter.head, "embeddings": adapter.embeddings}

    def layer_tensors(self, number: int) -> dict[str, list[str]]:
        """Weight matrices, or LoRA's factors in their place."""
        return {role: part.tensor_names for role, part in self.adapter.parts[number - 1].items()}

    @property
    def reads_last(self) -> bool:
        """Whether a sentence's last token is read; a language model only predicts it, so it leaves no trace."""
        return not self.goal.autoregressive

    @property
    def has_adapters(self) -> bool:
        """Whether LoRA's factors are what is trained."""
        return any(".lora_A." in name for name in self.parameters())

    @property
    def device(self) -> torch.device:
        return weight_as_saved(self.adapter.token_embedding).device

    @property
    def num_labels(self) -> int:
        return int(self.module.config.num_labels)

    @property
    def max_length(self) -> int:
        """The longest token sequence the model takes."""
        table = self.adapter.positions
        rows = getattr(self.module.config, "max_position_embeddings", 1 << 30) if table is None else len(table.weight)
        limit = int(rows) - self.adapter.family.first_position
        claimed = int(getattr(self.tokenizer, "model_max_length", 1 << 30) or 1 << 30)
        return min(limit, claimed)

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the token embedding has rows for."""
        return len(weight_as_saved(self.adapter.token_embedding))

    @property
    def width(self) -> int:
        """How many numbers a row of the token embedding has."""
        return int(weight_as_saved(self.adapter.token_embedding).shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.adapter.dtype

    @property
    def token_embedding(self) -> Tensor:
        """The weight of the token embedding, (vocabulary, width)."""
        return self.adapter.token_embedding.weight.detach()

    @functools.cached_property
    def token_listing(self) -> str:
        """All tokens with their numbers, which tell tokenizers apart."""
        return json.dumps(sorted(self.tokenizer.get_vocab().items()))

    @functools.cached_property
    def text_tokens(self) -> Tensor:
        """A mask over the vocabulary: True for tokens that can stand in a text (not special, not reserved)."""
        size = self.vocabulary_size
        allowed = torch.zeros(size, dtype=torch.bool)
        for token, index in self.tokenizer.get_vocab().items():
            if index < size and not _RESERVED.match(token):
                allowed[index] = True
        allowed[[i for i in self.tokenizer.all_special_ids if i < size]] = False
        return allowed.to(self.device)

    # --- text and tokens --------------------------------------------------------------------------

    def encode(self, texts: Sequence[str]) -> Batch:
        """Tokens of the texts, padded on the right. A text the model cannot take whole is an error."""
        rows = self.tokenize(texts)
        for number, row in enumerate(rows, start=1):
            if len(row) > self.max_length:
                raise GradleakError(
                    f"text {number} has {len(row)} tokens; {self.name} takes at most {self.max_length} "
                    f"(it begins {private(repr(texts[number - 1][:40]))})"
                )
        return self.pad(rows)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of the texts, however many. A text that is none to the model is an error."""
        # verbose=False: the tokenizer would warn of long ones
        rows = [list(self.tokenizer(text, verbose=False)["input_ids"]) for text in texts]
        for number, row in enumerate(rows, start=1):
            if len(row) <= len(self.prefix) + len(self.suffix):
                raise GradleakError(f"text {number} is empty for {self.name}'s tokenizer")
            if max(row) >= self.vocabulary_size:
                raise GradleakError(
                    f"text {number} has the token {max(row)}, and {self.name} knows "
                    f"{self.vocabulary_size} tokens; "
                    "is the tokenizer another model's?"
                )
        return rows

    def pad(self, rows: Sequence[Sequence[int]]) -> Batch:
        """Token rows of unequal length as one batch."""
        width = max(len(row) for row in rows)
        known = self.tokenizer.pad_token_id or 0
        filler = known if known < self.vocabulary_size else 0  # whatever it is, no token sees it
        ids = torch.full((len(rows), width), filler, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[i, : len(row)] = True
        return Batch(ids.to(self.device), mask.to(self.device))

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Text of the tokens, special ones left out or, with `special`, under their names."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=not special)).strip()

    def content(self, ids: Sequence[int]) -> list[int]:
        """The tokens without special ones: what was written, as the model sees it."""
        special = set(self.tokenizer.all_special_ids)
        return [i for i in ids if i not in special]

    def inner(self, ids: Sequence[int]) -> list[int]:
        """The tokens of the text itself, without those that the tokenizer puts before and after every text."""
        first = len(self.prefix) if list(ids[: len(self.prefix)]) == self.prefix else 0
        end = len(ids) - len(self.suffix)
        last = end if end >= first and list(ids[end:]) == self.suffix else len(ids)
        return list(ids[first:last])

    def lost(self, ids: Sequence[int]) -> int:
        """How many tokens of the text say nothing of what was written: unknown and other special ones."""
        inner = [token for token in self.inner(ids) if token not in self.separators]
        return len(inner) - len(self.content(inner))

    @functools.cached_property
    def separators(self) -> frozenset[int]:
        """Special tokens between texts and turns: a decoder's first and end tokens, and its chat template's own."""
        if self.adapter.family.kind != "decoder":
            return frozenset()
        tokenizer = self.tokenizer
        held = getattr(tokenizer, "chat_template", None)
        template = held if isinstance(held, str) else ""
        written = {number for number in tokenizer.all_special_ids if str(tokenizer.decode([number])) in template}
        return frozenset({tokenizer.bos_token_id, tokenizer.eos_token_id, *written} - {None})

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings of token ids: the form in which attackers hold their dummies.

        They are what the model goes on with, which is a multiple of the table's rows in some families.
        """
        with torch.no_grad():
            embeds: Tensor = self.adapter.token_embedding(ids)
        return embeds

    def run(self, **inputs: Any) -> Any:
        """What the model makes of its inputs before the head: the library's own output."""
        return self.module.base_model(**inputs)

    # --- loss -------------------------------------------------------------------------------------

    def logits(
        self,
        *,
        ids: Tensor | None = None,
        embeds: Tensor | None = None,
        mask: Tensor,
        positions: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Logits of a right-padded batch given as tokens or as token embeddings.

        They are (batch, classes) where there is one prediction a sentence, else (batch, positions, classes or
        vocabulary). `positions` are rows of the position table, if they are not to be counted by the model itself,
        `targets` what is to be predicted, where a model reads that too.
        """
        inputs = {"input_ids": ids} if ids is not None else {"inputs_embeds": embeds}
        if positions is not None:
            inputs["position_ids"] = positions
        inputs |= self.goal.inputs(self, targets, len(mask))
        attention = mask.long()
        if self.goal.one_per_text and self.adapter.family.kind == "decoder":
            # The library finds the last token from token ids, which dummies do not have; we use the mask.
            hidden = self.module.base_model(**inputs, attention_mask=attention, use_cache=False)[0]
            last = attention.sum(dim=1) - 1
            return self.module.score(hidden[torch.arange(len(last), device=last.device), last])
        extra = {} if self.adapter.family.kind == "encoder" else {"use_cache": False}
        return self.module(**inputs, attention_mask=attention, **extra).logits

    def output_logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """What a language model makes of its last hidden states: the logits of all tokens, or of some."""
        head = self.module.get_output_embeddings()
        if tokens is None:
            logits: Tensor = head(states)
        else:
            logits = F.linear(states, head.weight[tokens], None if head.bias is None else head.bias[tokens])
        cap, scale = self.adapter.logit_cap, self.adapter.logit_scale
        logits = logits if scale == 1.0 else scale * logits
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def logit_slopes(self, logits: Tensor) -> Tensor:
        """How fast each logit of a language model moves with what the output layer makes of a state."""
        cap, slopes = self.adapter.logit_cap, torch.full_like(logits, self.adapter.logit_scale)
        return slopes if cap is None else slopes * (1 - (logits / cap).square())

    def loss(
        self, targets: Tensor, *, ids: Tensor | None = None, embeds: Tensor | None = None, mask: Tensor
    ) -> Tensor:
        """The mean loss of the batch, as a client trains with it; `targets` are what the task makes of labels."""
        return self.goal.loss(self.logits(ids=ids, embeds=embeds, mask=mask, targets=targets), targets, mask)

    def batch_loss(self, batch: Batch, targets: Tensor) -> Tensor:
        batch, targets = batch.apart(targets)
        return self.loss(targets, ids=batch.ids, mask=batch.mask)

    def activation_bytes(self, batch: Batch) -> int:
        """Of every layer the states around its modules, and what attends to what; of the head the logits."""
        config, (sentences, length) = self.module.config, batch.ids.shape
        inner = int(getattr(config, "intermediate_size", 4 * self.width) or 4 * self.width)
        heads = int(getattr(config, "num_attention_heads", 1))
        layer = 12 * self.width + 4 * inner + 3 * heads * length
        logits = 4 * self.goal.outputs(self)
        return 4 * sentences * length * (self.adapter.depth * layer + logits)

    def predictions(self, batch: Batch, targets: Tensor) -> int:
        """Over how many losses `batch_loss` is the mean: sentences, or tokens."""
        batch, targets = batch.apart(targets)
        return self.goal.predictions(targets, batch.mask)

    def example_losses(self, batch: Batch, targets: Tensor) -> Tensor:
        """The loss of every sentence, (batch,): where tokens are predicted the mean over these."""
        if len(batch.apart(targets)[0]) != len(batch):
            raise GradleakError(
                "the losses of single texts are not to be had where steps take packed rows of several"
            )
        positions = None
        if self.adapter.positions is not None:  # one row per sentence, so that Opacus can separate the sentences
            counted = self.adapter.position_ids(batch.ids.shape[1]).to(batch.ids.device)
            positions = counted.expand(batch.ids.shape).contiguous()
        logits = self.logits(ids=batch.ids, mask=batch.mask, positions=positions, targets=targets)
        return self.goal.example_losses(logits, targets, batch.mask)

    def check_known(self, known: Known) -> None:
        for label in known.labels or ():
            self.goal.check_label(self, label)
        frame = len(self.prefix) + len(self.suffix)
        if any(not frame < n <= self.max_length for n in known.lengths or ()):
            raise GradleakError(f"the manifest gives a length outside {frame + 1} to {self.max_length}")


def text_target(model: Target, what: str) -> TextModel:
    """The model as one of text; what works on the parts of a Transformer is refused for any other."""
    if not isinstance(model, TextModel):
        raise GradleakError(f"{what} is for text models; {model.name} reads {model.examples}")
    return model


def refuse_pairs(model: TextModel, what: str) -> None:
    """Refuse a model that reads pairs of texts, for what looks for one text an example."""
    if model.goal.paired:
        raise GradleakError(
            f"{what} looks for one text an example, those of {model.name} are pairs; exact, bag and auto read both"
        )


def _adapters(module: nn.Module) -> dict[str, Any]:
    """What LoRA's layers do beside what their weights say: how much the factors count, and dropout."""
    return {
        name: [dict(part.scaling), repr(part.lora_dropout)]
        for name, part in module.named_modules()
        if hasattr(part, "lora_A") and hasattr(part, "scaling")
    }


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens the tokenizer puts before and after every text."""
    inner = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return whole[:start], whole[start + len(inner) :]
    raise GradleakError("this tokenizer changes a text's tokens when it adds special ones; it is not supported")
