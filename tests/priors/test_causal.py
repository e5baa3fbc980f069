"""A causal language model as prior: its total loss is the model's own, spread over the target's tokens."""

import pytest
import torch
from tiny import TEXTS, tiny_model, tiny_tokenizer

from gradleak.priors.base import load_prior
from gradleak.priors.causal import CausalPrior


@pytest.fixture
def prior(tiny_bert):
    return CausalPrior(tiny_model("gpt2", "causal-lm"), tiny_bert)


def test_nll_is_the_language_models_loss_a_target_token(prior, tiny_bert):
    lm = tiny_model("gpt2", "causal-lm")
    ids = [tiny_bert.content(row) for row in tiny_bert.encode(TEXTS).sentences()]
    scores = prior.nll(ids)
    for sentence, got in zip(ids, scores, strict=True):
        row = [lm.tokenizer.bos_token_id, *lm.tokenizer(tiny_bert.decode(sentence))["input_ids"]]
        tensor = torch.tensor([row])
        loss = lm.module(input_ids=tensor, labels=tensor).loss.detach()
        assert float(got) == pytest.approx(float(loss) * (len(row) - 1) / len(sentence), rel=1e-4)


def test_sampling_gives_the_length_asked_for(prior):
    first = prior.sample(6, torch.Generator().manual_seed(1))
    assert len(first) == 6
    assert prior.sample(6, torch.Generator().manual_seed(1)) == first


def test_loaded_from_a_folder(tmp_path, tiny_bert):
    tiny_model("llama", "causal-lm").module.save_pretrained(tmp_path)
    tiny_tokenizer("llama").save_pretrained(tmp_path)
    prior = load_prior(str(tmp_path), tiny_bert)
    assert torch.isfinite(prior.nll([[10, 11, 12], []])).all()
