"""BART: an encoder and a decoder with learned positions, which begin at row 2 of their tables."""

from __future__ import annotations

from gradleak.models.families.base import Family

_LAYER = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.out_proj",
    "ffn_in": "fc1",
    "ffn_out": "fc2",
}
_CROSS = {
    "cross_query": "encoder_attn.q_proj",
    "cross_key": "encoder_attn.k_proj",
    "cross_value": "encoder_attn.v_proj",
    "cross_attention_out": "encoder_attn.out_proj",
}


def _side(kind: str, roles: dict[str, str]) -> Family:
    return Family(
        name="bart",
        kind="encoder" if kind == "encoder" else "decoder",
        token_embedding="shared",
        positions=f"{kind}.embed_positions",
        first_position=2,
        embedding_norm=f"{kind}.layernorm_embedding",
        layers=f"{kind}.layers",
        roles=roles,
        head={"seq2seq": ("lm_head",)},
        base=kind,
        layers_alone=None if kind == "encoder" else 1,  # further layers see what the encoder made of the source
        position_counter=f"{kind}.embed_positions",
    )


_ENCODER, _DECODER = _side("encoder", _LAYER), _side("decoder", {**_LAYER, **_CROSS})

BART = Family(
    name="bart",
    kind="encoder-decoder",
    token_embedding="shared",
    layers="",
    roles=_DECODER.roles,
    sides=(_ENCODER, _DECODER),
    head={"seq2seq": ("lm_head",)},
)
