"""Every supported family at a size that runs in milliseconds, with a tokenizer made from the built-in corpus."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from vocabularies import byte_pairs, wordpiece

from gradleak import Client, TextModel, load_model
from gradleak.core.secret import Secret
from gradleak.data.texts import read_data
from gradleak.models.families import FAMILIES
from gradleak.models.tasks import text_task
from gradleak.updates.update import Update

HEADS, POSITIONS = 2, 64
# Classes of the tasks that do not have two.
CLASSES = {"token-classification": 3, "multi-label": 3, "regression": 1}

# What the published attacks are told.
ALL_KNOWN = ("batch_size", "labels", "lengths")

TEXTS = ["Rosa moved to ward six.", "The loan was refused.", "Your flight leaves at noon on Friday."]


# Decoders whose tokenizers put nothing before a text.
UNFRAMED = ("gpt2", "gpt_neo", "gpt_neox", "phi3", "qwen2", "qwen3", "smollm3")


def tiny_tokenizer(family: str, task: str = "classification") -> Any:
    """Encoders: words framed by [CLS] and [SEP]. GPT-2: bytes, no frame. Llama: bytes behind a first token."""
    decoder = FAMILIES.get(family).kind == "decoder"
    words = "words with masks" if task == "masked-lm" else "words"
    return _tokenizer(words if not decoder else "gpt2" if family in UNFRAMED else "llama")


@functools.cache
def _tokenizer(kind: str) -> Any:
    texts = [row.text for row in read_data()]
    if kind in ("gpt2", "llama"):
        special = ["<s>", "</s>"]
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        splitter: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
        vocabulary, merges = byte_pairs(_words(texts, splitter), special, splitter.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
        tokenizer.decoder = decoders.ByteLevel()
    else:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        names |= {"mask_token": "[MASK]"} if kind == "words with masks" else {}
        splitter, normalizer = pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True)
        words = _words([normalizer.normalize_str(text) for text in texts], splitter)
        tokenizer = Tokenizer(models.WordPiece(vocab=wordpiece(words, special), unk_token="[UNK]"))
        tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.WordPiece()
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_special_tokens(special)
    if kind == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    elif kind != "gpt2":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
        )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def _words(texts: list[str], splitter: Any) -> Counter[str]:
    return Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))


def tiny_model(family: str, task: str, layers: int = 2, width: int = 16, seed: int = 0) -> TextModel:
    """A random model of a family, loaded the way a user's own model object is."""
    tokenizer = tiny_tokenizer(family, task)
    module = tiny_module(family, task, len(tokenizer), layers, width, seed)
    return load_model(module, tokenizer=tokenizer, task=task)  # type: ignore[arg-type]


def wide_model(family: str, task: str) -> TextModel:
    """Wide enough for exact recovery of three sentences: the rank limit is the width.

    A classifier's last layer looks at a single token and shows less, so there must be some before it.
    """
    return tiny_model(family, task, layers=4, width=128)


def adapted_model(layers: int, width: int, rank: int) -> TextModel:
    """A Llama with LoRA on queries and values whose B is not zero any more; needs peft."""
    below = tiny_model("llama", "causal-lm", layers=layers, width=width)
    lora = f"r={rank},targets=query+value,b=0.2"
    return load_model(below.module, tokenizer=below.tokenizer, task="causal-lm", lora=lora)


def bare_update(model: TextModel, texts: list[str], labels: list[int] | None = None) -> Update:
    """What a client sends of which the attacker knows nothing but the tensors; classes are drawn in turn."""
    classes = [label % 2 for label in labels or range(len(texts))] if model.task == "classification" else None
    return Client(model, known=()).update(texts, classes)


def tiny_module(family: str, task: str, vocabulary: int, layers: int, width: int, seed: int) -> Any:
    return made_module(CONFIGS[family](vocabulary, layers, width), task, seed)


def made_module(config: Any, task: str, seed: int) -> Any:
    # the usual 0.02 makes models this small nearly linear and blind
    config.initializer_range = 0.8 / config.hidden_size**0.5
    goal = text_task(task)  # type: ignore[arg-type]
    config.problem_type = goal.problem_type
    config.num_labels = CLASSES.get(task, config.num_labels)
    torch.manual_seed(seed)
    return getattr(transformers, goal.auto_class).from_config(config, attn_implementation="eager")


def usual_sizes(vocabulary: int, layers: int, width: int) -> dict[str, int]:
    """Sizes under the names that most configurations give them."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 2 * width,
        "max_position_embeddings": POSITIONS,
    }


# A family's configuration from the size of the vocabulary, the number of layers and their width.
CONFIGS: dict[str, Callable[[int, int, int], Any]] = {
    "bert": lambda *sizes: transformers.BertConfig(**usual_sizes(*sizes)),
    "roberta": lambda *sizes: transformers.RobertaConfig(**usual_sizes(*sizes), pad_token_id=1),
    "mpnet": lambda *sizes: transformers.MPNetConfig(**usual_sizes(*sizes), pad_token_id=1),
    "distilbert": lambda vocabulary, layers, width: transformers.DistilBertConfig(
        vocab_size=vocabulary, dim=width, n_layers=layers, n_heads=HEADS, hidden_dim=2 * width,
        max_position_embeddings=POSITIONS,
    ),
    "gpt2": lambda vocabulary, layers, width: transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=HEADS, n_positions=POSITIONS,
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    ),
    "llama": lambda *sizes: transformers.LlamaConfig(
        **usual_sizes(*sizes), num_key_value_heads=1, bos_token_id=0, eos_token_id=1, pad_token_id=1
    ),
}  # fmt: skip
# The families that all tests run through.
OLD_TASKS = ("classification", "causal-lm")
CASES = [(name, task) for name in CONFIGS for task in OLD_TASKS if task in FAMILIES.get(name).tasks]


def _like_llama(kind: str, **further: Any) -> Callable[[int, int, int], Any]:
    """The configuration of a family whose entries are Llama's; keys and values have fewer heads than queries."""
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "num_key_value_heads": 1}
    return lambda *sizes: getattr(transformers, kind)(**{**usual_sizes(*sizes), **special, **further})


# Windows are shorter than the texts, so that what lies beyond them matters.
WINDOW = 8
CONFIGS |= {
    "qwen2": _like_llama("Qwen2Config"),
    "qwen3": _like_llama("Qwen3Config", head_dim=12),
    "mistral": _like_llama("MistralConfig", sliding_window=WINDOW),
    "gemma": _like_llama("GemmaConfig", head_dim=12),
    "gemma2": _like_llama(
        "Gemma2Config", head_dim=12, query_pre_attn_scalar=12, sliding_window=WINDOW,
        attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    ),
    "gemma3_text": _like_llama(
        "Gemma3TextConfig", head_dim=12, query_pre_attn_scalar=12, sliding_window=WINDOW, sliding_window_pattern=2
    ),
    "phi3": _like_llama("Phi3Config"),
    "smollm3": _like_llama("SmolLM3Config", no_rope_layer_interval=2),
    "opt": lambda vocabulary, layers, width: transformers.OPTConfig(
        vocab_size=vocabulary, hidden_size=width, word_embed_proj_dim=width, num_hidden_layers=layers,
        num_attention_heads=HEADS, ffn_dim=2 * width, max_position_embeddings=POSITIONS, activation_function="gelu",
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    ),
    "gpt_neox": lambda *sizes: transformers.GPTNeoXConfig(
        **usual_sizes(*sizes), bos_token_id=0, eos_token_id=1, pad_token_id=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    ),
    "gpt_neo": lambda vocabulary, layers, width: transformers.GPTNeoConfig(
        vocab_size=vocabulary, hidden_size=width, num_layers=layers, num_heads=HEADS, intermediate_size=2 * width,
        max_position_embeddings=POSITIONS, window_size=WINDOW,
        attention_types=[[["global", "local"][number % 2 : number % 2 + 1], 1] for number in range(layers)],
        bos_token_id=0, eos_token_id=1, pad_token_id=1,
    ),
    "xlm-roberta": lambda *sizes: transformers.XLMRobertaConfig(**usual_sizes(*sizes), pad_token_id=1),
    "camembert": lambda *sizes: transformers.CamembertConfig(**usual_sizes(*sizes), pad_token_id=1),
    "electra": lambda *sizes: transformers.ElectraConfig(**usual_sizes(*sizes), embedding_size=3 * sizes[2] // 4),
    "albert": lambda *sizes: transformers.AlbertConfig(**usual_sizes(*sizes), embedding_size=3 * sizes[2] // 4),
    "deberta-v2": lambda *sizes: transformers.DebertaV2Config(  # as version 3 has them
        **usual_sizes(*sizes), relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm",
        share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0,
    ),
    "modernbert": lambda *sizes: transformers.ModernBertConfig(
        **usual_sizes(*sizes), pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3,
        local_attention=WINDOW, global_attn_every_n_layers=2,
    ),
}  # fmt: skip


def _like_t5(kind: str, **further: Any) -> Callable[[int, int, int], Any]:
    """T5's configuration; the start token is padding, and the end that of the tokenizer."""
    return lambda vocabulary, layers, width: getattr(transformers, kind)(
        vocab_size=vocabulary, d_model=width, d_kv=width // HEADS, d_ff=2 * width, num_layers=layers,
        num_heads=HEADS, pad_token_id=0, decoder_start_token_id=0, eos_token_id=3, **further,
    )  # fmt: skip


CONFIGS |= {
    "t5": _like_t5("T5Config"),
    "mt5": _like_t5("MT5Config", feed_forward_proj="gated-gelu"),
    "umt5": _like_t5("UMT5Config", feed_forward_proj="gated-gelu"),
    "bart": lambda vocabulary, layers, width: transformers.BartConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width, max_position_embeddings=POSITIONS, init_std=0.8 / width**0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, scale_embedding=True,
    ),
}  # fmt: skip
# Those that read two texts; tests of their own run through them.
PAIR_CASES = [name for name in CONFIGS if FAMILIES.get(name).kind == "encoder-decoder"]
TARGETS = ["Ward six.", "No loan.", "You leave on Friday."]
# Those that tests/models, the comparison of engines and a test of their own run through.
NEW_CASES = [
    (name, task)
    for name in CONFIGS
    for task in OLD_TASKS
    if task in FAMILIES.get(name).tasks and (name, task) not in CASES
]
ALL_CASES = [*CASES, *NEW_CASES]
# The other tasks, each on the families that have a head of its own for it.
TASK_CASES = [
    (name, task)
    for name in CONFIGS
    for task in ("masked-lm", "token-classification")
    if task in FAMILIES.get(name).tasks
] + [(name, task) for name in ("bert", "gpt2") for task in ("multi-label", "regression")]


_DECODER = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}


def _by_parts(kind: str, **further: Any) -> Callable[[int, int, int], Any]:
    """The configuration of a type whose entries are called as GPT-2's are."""

    def config(vocabulary: int, layers: int, width: int) -> Any:
        sizes = {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": HEADS}
        return getattr(transformers, kind)(**{**sizes, "n_positions": POSITIONS, **_DECODER, **further})

    return config


# Types of models that are not listed: their parts are found by structure.
UNLISTED: dict[str, Callable[[int, int, int], Any]] = {
    "stablelm": _like_llama("StableLmConfig", use_parallel_residual=True, use_qkv_bias=True),
    "starcoder2": _like_llama("Starcoder2Config", sliding_window=WINDOW),
    "olmo2": _like_llama("Olmo2Config"),
    "cohere": _like_llama("CohereConfig", logit_scale=0.5),
    "granite": _like_llama("GraniteConfig", embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5),
    "falcon": _like_llama("FalconConfig", new_decoder_architecture=True, num_kv_heads=1, num_key_value_heads=None),
    "phi": _like_llama("PhiConfig"),
    "persimmon": _like_llama("PersimmonConfig"),
    "biogpt": lambda *sizes: transformers.BioGptConfig(**usual_sizes(*sizes), **_DECODER),
    "gptj": _by_parts("GPTJConfig", rotary_dim=4),
    "gpt_bigcode": _by_parts("GPTBigCodeConfig", multi_query=True),
    "ernie": lambda *sizes: transformers.ErnieConfig(**usual_sizes(*sizes)),
    "roformer": lambda *sizes: transformers.RoFormerConfig(**usual_sizes(*sizes), embedding_size=sizes[2]),
    "nomic_bert": lambda *sizes: transformers.NomicBertConfig(**usual_sizes(*sizes)),
    "deberta": lambda *sizes: transformers.DebertaConfig(
        **usual_sizes(*sizes), relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0
    ),
}  # fmt: skip


def unlisted_model(kind: str, task: str, layers: int = 2, width: int = 16, seed: int = 0) -> TextModel:
    """A random model of an unlisted type, loaded the way a user's own model object is."""
    encoder = kind in ("ernie", "roformer", "nomic_bert", "deberta")
    tokenizer = _tokenizer("words" if encoder else "llama")
    module = made_module(UNLISTED[kind](len(tokenizer), layers, width), task, seed)
    return load_model(module, tokenizer=tokenizer, task=task)  # type: ignore[arg-type]


def secret_of(number: int) -> Secret:
    """A client's secret that tests can give twice."""
    return Secret(bytes(32)).child(number)
