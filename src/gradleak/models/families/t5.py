"""T5 in both versions, the second with gated feed-forward blocks as in Flan-T5; positions are relative."""

from __future__ import annotations

from gradleak.models.families.base import Family

_SELF = {
    "query": "layer.0.SelfAttention.q",
    "key": "layer.0.SelfAttention.k",
    "value": "layer.0.SelfAttention.v",
    "attention_out": "layer.0.SelfAttention.o",
}
_CROSS = {
    "cross_query": "layer.1.EncDecAttention.q",
    "cross_key": "layer.1.EncDecAttention.k",
    "cross_value": "layer.1.EncDecAttention.v",
    "cross_attention_out": "layer.1.EncDecAttention.o",
}


def _side(kind: str, block: str, attention: dict[str, str]) -> Family:
    """The encoder or the decoder, whose feed-forward block has a place of its own in a layer."""
    plain = {"ffn_in": f"{block}.DenseReluDense.wi", "ffn_out": f"{block}.DenseReluDense.wo"}
    gated = {"ffn_in": f"{block}.DenseReluDense.wi_1", "ffn_gate": f"{block}.DenseReluDense.wi_0"}
    return Family(
        name="t5",
        kind="encoder" if kind == "encoder" else "decoder",
        token_embedding="shared",
        layers=f"{kind}.block",
        roles={**attention, **plain},
        variant=("is_gated_act", gated),
        head={"seq2seq": ("lm_head",)},
        base=kind,
        layers_alone=None if kind == "encoder" else 1,  # further layers see what the encoder made of the source
        position_bias="layer.0.SelfAttention",
    )


_ENCODER = _side("encoder", "layer.1", _SELF)
_DECODER = _side("decoder", "layer.2", {**_SELF, **_CROSS})

T5 = Family(
    name="t5",
    kind="encoder-decoder",
    token_embedding="shared",
    layers="",
    roles=_DECODER.roles,
    sides=(_ENCODER, _DECODER),
    head={"seq2seq": ("lm_head",)},
    rules={"T5LayerNorm": "gradleak.matching.rules:rms_norm"},
)
