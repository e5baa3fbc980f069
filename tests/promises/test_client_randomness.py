"""What a client draws comes from a secret: no number that an attacker or a reader sees replays noise or dropout."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import TEXTS, tiny_model, tiny_tokenizer

from gradleak import (
    AuditSpec,
    Client,
    GradleakError,
    ImageClient,
    Pictures,
    TextModel,
    audit,
    load_model,
    load_update,
)
from gradleak.audits.files import capture_update
from gradleak.audits.modality import Truth
from gradleak.audits.redact import redact
from gradleak.audits.run import call_secret
from gradleak.core.assets import cache_folder
from gradleak.core.secret import Secret, generator, read_secret, user_secret
from gradleak.core.seeds import derive_seed

SIGMA = 0.5
NOISE = f"noise:sigma={SIGMA}"
LABELS = [0, 1, 1]
# What the source, which is public, derives seeds under.
PATHS = [(), ("client",), ("defences",), ("trial", 0), ("trial", 0, "client"), ("client", 0, 0), (0,)]


def use_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without a key that holds all else that the usual one does."""
    place.mkdir()
    usual = cache_folder()
    for entry in usual.iterdir() if usual.is_dir() else ():
        if entry.is_dir():
            (place / entry.name).symlink_to(entry)
    monkeypatch.setenv("GRADLEAK_CACHE", str(place))
    return place


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model("bert", "classification").module.save_pretrained(place)
    tiny_tokenizer("bert").save_pretrained(place)
    return place


def visible_seeds(*texts: str) -> set[int]:
    """Every whole number in what can be seen, the usual ones, and what is derived from them."""
    written = [int(found) for text in texts for found in re.findall(r"(?<![\d.])\d{1,15}(?![\d.])", text)]
    numbers = {*written, *range(20)}
    single = {derive_seed(number, *path) for number in numbers for path in PATHS}
    return numbers | single | {derive_seed(number, *path) for number in single for path in PATHS}


def replays(noise: dict[str, torch.Tensor], seed: int) -> bool:
    """Whether the seed draws the noise of the first tensor."""
    first = next(iter(noise.values()))
    drawn = torch.randn(first.shape, generator=torch.Generator().manual_seed(seed))
    return bool(torch.nn.functional.cosine_similarity(drawn.flatten(), first.flatten(), dim=0).abs() > 0.5)


def noise_of(noisy: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: (noisy[name] - tensor) / SIGMA for name, tensor in plain.items()}


@pytest.mark.parametrize("rule", ["fedsgd", "fedsgd:mode=train"])
def test_no_visible_number_replays_the_noise_of_a_captured_update(folder: Path, tmp_path: Path, rule: str) -> None:
    spec = AuditSpec(model=str(folder), batch_size=2, seed=7, client=rule, defenses=(NOISE,))
    place, truth = capture_update(spec, tmp_path / "update")
    model = load_model(str(folder))
    kept = json.loads(truth.read_text())
    secret = kept.pop("secret", None)
    plain = Client(model).update(kept["texts"], kept["labels"]).tensors
    noise = noise_of(load_update(place, model).tensors, plain)
    seen = [path.read_text() for path in place.glob("*.json")]
    assert not [s for s in visible_seeds(*seen, json.dumps(kept), spec.model_dump_json()) if replays(noise, s)]
    everything = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert secret is not None
    assert secret.encode() not in everything


def test_two_updates_of_one_client_differ(tiny_bert: TextModel) -> None:
    for rule, defense in (("fedsgd", NOISE), ("fedsgd", "mask:ratio=0.5"), ("fedsgd", "dpsgd:noise=1"),
                          ("fedsgd:mode=train", "quantize")):  # fmt: skip
        client = Client(tiny_bert, client=rule, defenses=[defense])
        first, second = (client.update(TEXTS, LABELS).tensors for _ in range(2))
        assert any(not torch.equal(first[name], second[name]) for name in first), (rule, defense)


def test_two_updates_of_an_image_client_differ() -> None:
    client = ImageClient(load_model("lenet"), defenses=[NOISE])
    pictures = Pictures(np.zeros((1, 3, 32, 32), dtype=np.uint8), labels=(4,))
    first, second = (client.update(pictures).tensors for _ in range(2))
    assert not torch.equal(first["head.bias"], second["head.bias"])


def test_what_draws_nothing_gives_the_same_with_every_secret(tiny_bert: TextModel) -> None:
    for rule, defenses in (("fedsgd", []), ("fedavg:epochs=2,lr=0.1", []), ("fedsgd", ["sign"])):
        client = Client(tiny_bert, client=rule, defenses=defenses)
        first, second = (client.update(TEXTS, LABELS).tensors for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("rule", ["fedsgd:mode=train", "fedavg:epochs=2,lr=0.1,mode=train"])
def test_the_truth_file_repeats_the_update_bit_for_bit(folder: Path, tmp_path: Path, rule: str) -> None:
    spec = AuditSpec(model=str(folder), batch_size=2, client=rule, defenses=(NOISE, "mask:ratio=0.5"))
    first, truth = capture_update(spec, tmp_path / "first")
    second, other = capture_update(spec, tmp_path / "second")
    again, same = capture_update(spec.with_(secret=str(truth)), tmp_path / "again")
    tensors = [(place / "update.safetensors").read_bytes() for place in (first, second, again)]
    assert tensors[0] == tensors[2] != tensors[1]
    assert truth.read_text() == same.read_text() != other.read_text()


def test_an_audit_repeats_by_its_seed_here_and_by_its_results_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = AuditSpec(model=str(folder), trials=2, attack="bag", client="fedsgd:mode=train", defenses=(NOISE,))
    first, again, other = (audit(usual.with_(seed=seed)) for seed in (3, 3, 4))
    assert first.secret == again.secret != other.secret
    distances = [[trial.truth_distance for trial in each.trials] for each in (first, again)]
    assert distances[0] == distances[1]
    assert len(set(distances[0])) == 2
    first.save(tmp_path)
    use_cache(tmp_path / "elsewhere", monkeypatch)
    moved = audit(usual.with_(seed=3))
    assert [trial.truth_distance for trial in moved.trials] != distances[0]
    repeated = audit(usual.with_(seed=3, secret=str(tmp_path / "results.json")))
    assert [trial.truth_distance for trial in repeated.trials] == distances[0]


def test_no_number_of_the_results_replays_the_noise(folder: Path) -> None:
    model = load_model(str(folder))
    found = audit(model, trials=1, attack="bag", defenses=[NOISE], seed=5)
    assert found.secret is not None
    text = redact(found).model_dump_json()
    assert found.secret not in text
    trial = found.trials[0]
    client = Client(model, defenses=[NOISE])
    truth = Truth(texts=trial.truth, labels=trial.labels)
    own = call_secret(Secret.parse(found.secret), 5, 0, client, truth)
    noisy = client.update(trial.truth, trial.labels, own).tensors
    assert found.trials[0].signal == pytest.approx(
        float(sum(t.square().sum() for t in Client(model).update(trial.truth, trial.labels).tensors.values())) ** 0.5
    )
    noise = noise_of(noisy, Client(model).update(trial.truth, trial.labels).tensors)
    assert not [seed for seed in visible_seeds(text) if replays(noise, seed)]


def test_every_place_that_draws_has_a_stream_of_its_own(tiny_bert: TextModel) -> None:
    """Trials, batches, models, client rules, strengths and repeated defences: no two share noise."""
    secret, other_model = Secret.draw(), tiny_model("bert", "classification", seed=1)
    truths = [Truth(texts=[text], labels=[0]) for text in TEXTS[:2]]
    clients = [Client(tiny_bert), Client(other_model), Client(tiny_bert, client="fedavg")]
    calls = [call_secret(secret, seed, i, client, truth)
             for seed, i, client, truth in itertools.product((0, 1), (0, 1), clients, truths)]  # fmt: skip
    assert len({call.hex for call in calls}) == len(calls)
    # The same noise twice would add up to twice its size.
    plain = Client(tiny_bert).update(TEXTS, LABELS).tensors
    noisy = Client(tiny_bert, defenses=[NOISE, NOISE]).update(TEXTS, LABELS, secret).tensors
    spread = torch.cat([(noisy[name] - plain[name]).flatten() for name in plain]).std()
    assert float(spread) == pytest.approx(SIGMA * 2**0.5, rel=0.02)
    weak, strong = (
        noise_of(Client(tiny_bert, defenses=[d]).update(TEXTS, LABELS, secret).tensors, plain)["classifier.weight"]
        for d in (NOISE, "noise:sigma=2")
    )
    assert float(torch.nn.functional.cosine_similarity(weak.flatten(), strong.flatten(), dim=0).abs()) < 0.9


def test_all_of_a_secret_counts() -> None:
    """torch's CPU generator takes 32 bits of a seed; they could all be tried."""
    low, high = bytes(31) + b"\1", b"\1" + bytes(31)
    drawn = [torch.randn(100, generator=generator(Secret(key))) for key in (low, high, low)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    many = torch.randn(200_000, generator=generator(Secret(low)))
    assert abs(float(many.mean())) < 0.01
    assert float(many.std()) == pytest.approx(1, rel=0.01)
    state = generator(Secret(low)).get_state()
    seeded = torch.Generator().manual_seed(int.from_bytes(state[:8].numpy().tobytes(), "little"))
    assert not torch.equal(torch.randn(100, generator=seeded), drawn[0])


def test_a_secret_is_never_shown() -> None:
    secret = Secret.draw()
    assert secret.hex not in repr(secret) + str(secret)
    assert str(secret.key) not in repr(secret) + str(secret)


@pytest.mark.parametrize(
    "content", ["", "xyz", "ab" * 31, "{}", '{"secret": null}', '{"secret": "12"}', "[1]", "\0" * 99]
)
def test_a_file_without_a_secret_is_refused_in_one_line(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(GradleakError, match="no secret") as error:
        audit(AuditSpec(model=str(folder), trials=1, secret=str(tmp_path / "key")))
    assert "\n" not in str(error.value)


def test_the_key_of_a_user_is_made_once_and_private(cache: Path) -> None:
    first, again = user_secret(), user_secret()
    (file,) = (path for path in cache.iterdir() if path.is_file())
    assert first == again == read_secret(file)
    assert file.stat().st_mode & 0o777 == 0o600


def test_where_no_key_can_be_kept_one_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADLEAK_CACHE", str(tmp_path / "file"))
    assert user_secret() == user_secret()


def test_a_key_that_was_spoilt_is_an_error_and_not_replaced(cache: Path) -> None:
    (cache / "client.key").write_text("spoilt")
    with pytest.raises(GradleakError, match=r"client\.key holds no secret"):
        user_secret()
    assert (cache / "client.key").read_text() == "spoilt"
