"""Update folders from real Flower runs: what is written is what was sent, and attacks read it."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("flwr")

from flower_run import LABELS, TEXTS, LocalGrid, client_app, old_client_app
from flwr.app import ArrayRecord, Context, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import FedAvg
from tiny import tiny_model

from gradleak import Client, GradleakError, attack, load_model, load_update
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.integrations.flower import GRID, UNEQUAL, record_on_client, record_on_server

RULE = ClientRule.parse("fedavg:epochs=2,batch=1,lr=0.01")
GRADIENT = ClientRule()


@pytest.fixture(scope="module")
def target():
    return tiny_model("bert", "classification", layers=3, width=64)


def run(target, out, rule=RULE, *, mods=(), rounds=1, grid=None, **settings):
    """One Flower run with a recorded server; the folders of its first round by name."""
    strategy = record_on_server(
        FedAvg(fraction_evaluate=0.0), out, target.module, target.tokenizer, client=rule, **settings
    )
    grid = grid or LocalGrid(client_app(target, rule, mods))
    result = strategy.start(grid, ArrayRecord(target.module.state_dict()), num_rounds=rounds)
    return {place.name: place for place in sorted((out / "round-0001").iterdir())}, result


@pytest.mark.parametrize("rule", [RULE, GRADIENT], ids=["fedavg", "fedsgd"])
def test_updates_are_those_of_our_own_client(target, tmp_path, rule):
    places, _ = run(target, tmp_path, rule)
    assert list(places) == ["client-100", "client-101", "client-102", "model"]
    model = load_model(places["model"])
    for number in range(3):
        update = load_update(places[f"client-{100 + number}"], model)
        ours = Client(target, client=rule).update(TEXTS[number], LABELS)
        assert update.manifest.client == rule
        assert update.manifest.known == ours.manifest.known
        assert update.manifest.model_fingerprint == target.fingerprint == model.fingerprint
        assert update.manifest.clients == 1
        for name, tensor in ours.tensors.items():
            if name in update.tensors:
                assert torch.allclose(update.tensors[name], tensor, atol=1e-6), name
            else:  # it did not move, up to rounding
                assert float(tensor.abs().max()) < 1e-6


def test_auto_reads_what_a_client_sent(target, tmp_path):
    places, _ = run(target, tmp_path, GRADIENT)
    model = load_model(places["model"])
    (found,) = attack(load_update(places["client-101"], model), model)
    wanted = {model.decode(model.content(row)) for row in model.encode(TEXTS[1]).sentences()}
    assert {sentence.text for sentence in found.sentences} == wanted
    assert all(sentence.certified for sentence in found.sentences)


@pytest.mark.parametrize("rule", [RULE, GRADIENT], ids=["fedavg", "fedsgd"])
def test_secure_aggregation_leaves_the_mean_and_says_so(target, tmp_path, rule):
    places, _ = run(target, tmp_path / "seen", rule)
    only, _ = run(target, tmp_path / "secure", rule, secure_aggregation=True)
    assert list(only) == ["aggregate", "model"]
    aggregate = load_update(only["aggregate"], load_model(only["model"]))
    assert aggregate.manifest.clients == 3
    assert aggregate.known.batch_size == 6
    assert aggregate.local_steps == (4 if rule is RULE else 1)
    single = [load_update(place).tensors for name, place in places.items() if name.startswith("client")]
    for name, tensor in aggregate.tensors.items():
        mean = sum(each.get(name, torch.zeros(())) for each in single) / 3
        assert torch.allclose(tensor, mean, atol=1e-6), name


def test_the_aggregate_of_gradients_is_the_gradient_of_all_sentences(target, tmp_path):
    places, _ = run(target, tmp_path, GRADIENT, secure_aggregation=True)
    whole = Client(target).update([text for texts in TEXTS for text in texts], LABELS * 3)
    aggregate = load_update(places["aggregate"], target)
    assert all(torch.allclose(aggregate.tensors[name], t, atol=1e-6) for name, t in whole.tensors.items())


def test_unequal_clients_are_noted(target, tmp_path):
    texts = [TEXTS[0], TEXTS[1][:1], TEXTS[2]]
    grid = LocalGrid(client_app(target, RULE, texts=texts))
    places, _ = run(target, tmp_path, grid=grid, secure_aggregation=True)
    manifest = load_update(places["aggregate"]).manifest
    assert manifest.notes == (UNEQUAL,)
    assert manifest.known.batch_size == 5


def test_recording_changes_nothing(target, tmp_path):
    random.seed(0)  # which client comes first decides how sums are rounded
    _, recorded = run(target, tmp_path)
    random.seed(0)
    plain = FedAvg(fraction_evaluate=0.0).start(
        LocalGrid(client_app(target, RULE)), ArrayRecord(target.module.state_dict()), num_rounds=1
    )
    ours, theirs = (each.arrays.to_torch_state_dict() for each in (recorded, plain))
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_later_rounds_have_their_own_model(target, tmp_path):
    run(target, tmp_path / "a", rounds=2)
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["round-0001"]
    strategy = record_on_server(
        FedAvg(fraction_evaluate=0.0), tmp_path / "b", target.module, target.tokenizer, client=RULE, rounds=(2,)
    )
    strategy.start(LocalGrid(client_app(target, RULE)), ArrayRecord(target.module.state_dict()), num_rounds=3)
    assert [each.name for each in (tmp_path / "b").iterdir()] == ["round-0002"]
    model = load_model(tmp_path / "b" / "round-0002" / "model")
    assert model.fingerprint != target.fingerprint
    load_update(tmp_path / "b" / "round-0002" / "client-100", model)
    with pytest.raises(GradleakError, match="other weights"):
        load_update(tmp_path / "b" / "round-0002" / "client-100", target)


def test_a_mod_sees_what_leaves_the_client(target, tmp_path):
    torch.manual_seed(0)
    noise = LocalDpMod(clipping_norm=1.0, sensitivity=0.01, epsilon=10.0, delta=1e-5)
    outside, inside = (record_on_client(tmp_path / name, target.module, client=RULE) for name in ("out", "in"))
    places, _ = run(target, tmp_path / "server", mods=[outside, noise, inside])
    for node in ("client-100", "client-101", "client-102"):
        sent, left, own = (
            load_update(place, target)
            for place in (places[node], tmp_path / "out" / "round-0001" / node, tmp_path / "in" / "round-0001" / node)
        )
        assert left.manifest == sent.manifest == own.manifest
        assert all(torch.equal(sent.tensors[name], tensor) for name, tensor in left.tensors.items())
        assert any(not torch.equal(sent.tensors[name], tensor) for name, tensor in own.tensors.items())


def test_tied_weights_are_there_once(tmp_path):
    target = tiny_model("gpt2", "causal-lm")
    assert "lm_head.weight" in target.module.state_dict()
    places, _ = run(target, tmp_path)
    update = load_update(places["client-100"], load_model(places["model"]))
    ours = Client(target, client=RULE).update(TEXTS[0])
    assert update.tensors.keys() <= ours.tensors.keys()
    assert "lm_head.weight" not in update.tensors
    assert all(torch.allclose(tensor, ours.tensors[name], atol=1e-6) for name, tensor in update.tensors.items())


def test_a_client_that_diverged_does_not_end_the_run(target, tmp_path, caplog):
    grid = LocalGrid(client_app(target, RULE, spoil=1))
    places, _ = run(target, tmp_path, grid=grid)
    assert list(places) == ["client-100", "client-102", "model"]
    assert "client-101 was not recorded" in caplog.text
    assert "NaN" in caplog.text


def test_another_model_is_refused_before_training(target, tmp_path):
    other = tiny_model("bert", "classification", layers=2, width=16)
    strategy = record_on_server(FedAvg(fraction_evaluate=0.0), tmp_path, other.module, other.tokenizer, client=RULE)
    with pytest.raises(GradleakError, match="the model's has"):
        strategy.start(LocalGrid(client_app(target, RULE)), ArrayRecord(target.module.state_dict()), num_rounds=1)


def test_what_is_no_strategy_and_what_cannot_be_granted(target, tmp_path):
    with pytest.raises(GradleakError, match="not a Flower strategy"):
        record_on_server(object(), tmp_path, target.module, target.tokenizer, client=RULE)
    with pytest.raises(GradleakError, match="has no 'labels'"):
        record_on_client(tmp_path, target.module, client=RULE, known=("labels",))


def test_the_real_secagg_protocol_of_older_strategies(target, tmp_path):
    """SecAgg+ with keys, masks and shares: the server holds only the mean, rounded to a grid."""
    from flwr.client.mod import secaggplus_mod
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg as OldFedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    rule = ClientRule.parse("fedavg:epochs=1,batch=2,lr=0.5")
    start = ndarrays_to_parameters([tensor.numpy() for tensor in target.module.state_dict().values()])
    strategy = OldFedAvg(fraction_evaluate=0.0, initial_parameters=start)
    record_on_server(strategy, tmp_path / "server", target.module, target.tokenizer, client=rule)
    own = record_on_client(tmp_path / "own", target.module, client=rule)
    grid = LocalGrid(old_client_app(target, rule, [secaggplus_mod, own]))
    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), run_config={}), config=ServerConfig(num_rounds=1), strategy=strategy
    )
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=2.0)
    DefaultWorkflow(fit_workflow=secure)(grid, context)

    assert sorted(each.name for each in (tmp_path / "server" / "round-0001").iterdir()) == ["aggregate", "model"]
    aggregate = load_update(tmp_path / "server" / "round-0001" / "aggregate", target)
    assert (aggregate.manifest.clients, aggregate.known.batch_size) == (3, 6)
    assert GRID in aggregate.manifest.notes
    clients = [load_update(place, target).tensors for place in sorted((tmp_path / "own" / "round-0001").iterdir())]
    assert len(clients) == 3
    for name, tensor in aggregate.tensors.items():
        mean = sum(each.get(name, torch.zeros(())) for each in clients) / 3
        assert torch.allclose(tensor, mean, atol=2e-5), name  # the grid's step is some 16 / 2^22
