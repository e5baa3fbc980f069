"""The language model of the Learning To Invert paper, with weights drawn from a seed.

It is a Transformer of three layers, 96 wide, with a frozen token embedding that serves as the output layer too. Its
vocabulary is that of a real tokenizer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from gradleak.core import assets
from gradleak.core.errors import GradleakError
from gradleak.core.progress import SILENT, Progress
from gradleak.models.checkpoint import check_files
from gradleak.models.loading import BuiltIn, Loading
from gradleak.models.text import TextModel

# Of the embeddings. The loss of an untrained model then already depends on which tokens stand where.
TOKEN_SPREAD, POSITION_SPREAD = 0.2, 0.1


class LtiOptions(BaseModel):
    """What a text such as `lti:seed=1` can set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokenizer: str = Field("minilm", description="minilm, or a folder with a tokenizer, such as GPT-2's")
    seed: int = 0
    tokens: int = Field(16, ge=2, le=1024, description="the longest sequence")
    layers: int = Field(3, ge=1, le=48)
    width: int = Field(96, ge=8, le=4096)


def load_lti(name: str, settings: LtiOptions, how: Loading) -> TextModel:
    """The model of a text such as `lti` or `lti:tokenizer=gpt2_tokenizer,seed=1`."""
    if how.task not in (None, "causal-lm"):
        raise GradleakError(f"lti is a language model: it is audited on causal-lm, not {how.task}")
    tokenizer = bare_tokenizer(settings.tokenizer, how.progress)
    return TextModel(_module(settings, tokenizer).to(how.device), tokenizer, "causal-lm", name)


LTI = BuiltIn(
    "causal-lm",
    "a language model of 3 layers, 96 wide, for 16 tokens, weights drawn from a seed, token embedding frozen; "
    "lti:tokenizer=FOLDER,seed=0",
    LtiOptions,
    load_lti,
)


def bare_tokenizer(source: str, progress: Progress = SILENT) -> Any:
    """A tokenizer that puts no special tokens around texts."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer, GPT2TokenizerFast

    folder = assets.pull("minilm", progress) if source == "minilm" else Path(source)
    if not folder.is_dir():
        raise GradleakError(f"{source} holds no tokenizer: it is not a folder")
    check_files(folder)
    bare_files = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    try:
        # A folder of GPT-2's two files alone does not name their model.
        kind = AutoTokenizer if (folder / "tokenizer_config.json").is_file() or not bare_files else GPT2TokenizerFast
        tokenizer: Any = kind.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # whatever the library finds wrong with the files
        raise GradleakError(f"{source} holds no tokenizer that can be read") from error
    if tokenizer("a")["input_ids"] != tokenizer("a", add_special_tokens=False)["input_ids"]:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return tokenizer


def _module(settings: LtiOptions, tokenizer: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=settings.width, n_layer=settings.layers, n_head=8,
        n_inner=16 * settings.width, n_positions=settings.tokens, activation_function="relu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=None, eos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config._attn_implementation = "eager"  # the fused one has no second derivative
    module = GPT2LMHeadModel(config)
    _draw(module, settings.seed)
    module.transformer.wte.weight.requires_grad_(False)
    return module.float()


def _draw(module: Any, seed: int) -> None:
    """All weights, one parameter after the other by name, the same on every machine and with every version."""
    generator = torch.Generator().manual_seed(seed)
    tables = {id(module.transformer.wte.weight): TOKEN_SPREAD, id(module.transformer.wpe.weight): POSITION_SPREAD}
    inputs = {id(p): len(owner.weight) for owner in module.modules() if type(owner).__name__ == "Conv1D"
              for p in (owner.weight, owner.bias)}  # fmt: skip
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            if id(parameter) in tables:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * tables[id(parameter)])
            elif id(parameter) in inputs:  # as linear layers usually begin
                bound = 1 / math.sqrt(inputs[id(parameter)])
                parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * bound)
