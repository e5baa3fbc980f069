"""A package of somebody else's adds a family, a metric, a defence, an attack and an image attack, as pip installs it.

Everything goes through the entry points of its metadata; no file of gradleak knows its name.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
import transformers
from tiny import made_module, tiny_tokenizer, usual_sizes

from gradleak import AuditSpec, Client
from gradleak.audits.run import load_target

PACKAGE = """
import torch
from gradleak import Attack, AttackOptions, Defense, Family, Metric, Reconstruction, Sentence
from gradleak.attacks.images.base import ImageAttack
from gradleak.models.families.llama import LLAMA
from dataclasses import replace

# Built like Llama, with norms of its own class.
SEED_OSS = replace(LLAMA, name="seed_oss", rules={"SeedOssRMSNorm": "gradleak.matching.rules:rms_norm"})

vowels = Metric(
    name="acme_vowels", label="Vowels", counts="vowels of the guess", low=0, high=100, higher_is_closer=True,
    modality="text", function=lambda pair: float(min(100, sum(c in "aeiou" for c in pair.guess.text))), optional=True,
)

class Halved(Defense):
    summary, reveals = "every coordinate is halved", "the factor"
    random, coordinatewise, lossy = False, True, False
    factor: float = 0.5
    def apply(self, tensors, model, generator):
        return {name: self.factor * tensor for name, tensor in tensors.items()}

class EchoOptions(AttackOptions):
    word: str = "aeiou"

class Echo(Attack):
    summary = "says one word, whatever the update"
    Options = EchoOptions
    def run(self, updates, model, context):
        ids = model.tokenizer(self.options.word, add_special_tokens=False)["input_ids"]
        sentence = Sentence(text=self.options.word, tokens=ids, confidence=0.1)
        return [Reconstruction(sentences=[sentence]) for _ in updates]

class Black(ImageAttack):
    summary = "a black image"
    def run(self, updates, model, context):
        from gradleak.attacks.images.answers import image_uris
        images = image_uris(torch.zeros(1, *model.shape))
        return [Reconstruction(images=images) for _ in updates]
"""

ENTRY_POINTS = """
[gradleak.families]
seed_oss = acme_leak:SEED_OSS
[gradleak.metrics]
acme_vowels = acme_leak:vowels
[gradleak.defenses]
acme-halved = acme_leak:Halved
[gradleak.attacks]
acme-echo = acme_leak:Echo
[gradleak.image_attacks]
acme-black = acme_leak:Black
"""

USED = """
import json
import numpy as np
import gradleak.attacks.control as control
from gradleak import *
from gradleak.attacks import ATTACKS
from tiny import tiny_tokenizer
import torch, transformers

control.load_prior = lambda *_: type("Prior", (), {"sample": lambda self, length, generator: [7] * length})()
tokenizer = tiny_tokenizer("llama")
sizes = dict(vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, intermediate_size=256, max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
             initializer_range=0.07, head_dim=64)
torch.manual_seed(0)
config = transformers.SeedOssConfig(**sizes)
module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
model = load_model(module, tokenizer=tokenizer)
text = audit(model, attack="acme-echo", options={"word": "aei"}, defenses=["acme-halved:factor=0.25"],
             metrics=["acme_vowels"], trials=2, max_tokens=40)
page = write_report(text, "text").read_text()
exact = audit(model, attack="exact", trials=1, max_tokens=30)

images = Pictures(np.random.default_rng(0).integers(0, 255, (4, 3, 16, 16), dtype=np.uint8), (0, 1, 2, 3))
shown = audit("lenet:size=16,classes=4", data=images, attack="acme-black", trials=2)
image_page = write_report(shown, "images").read_text()
print(json.dumps({
    "family": text.scenario.family, "defenses": text.scenario.defenses, "attack": text.attack.model_dump(),
    "vowels": text.summary["acme_vowels"].mean,
    "on page": [word in page for word in ("acme-echo", "acme-halved", "Vowels")],
    "certified": [s.certified for s in exact.trials[0].reconstruction.sentences],
    "image attack": shown.attack.name, "on image page": "acme-black" in image_page,
    "listed": "acme-echo" in ATTACKS.names(),
}))
"""


@pytest.fixture
def installed(tmp_path):
    """A folder on the path that looks as pip leaves it."""
    site = tmp_path / "site"
    info = site / "acme_leak-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_leak.py").write_text(PACKAGE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-leak\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def run(site, *command, cwd):
    paths = [str(site), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True)


def test_all_of_it_is_used_in_audits_and_shown_in_reports(installed, tmp_path):
    done = run(installed, "-c", USED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    used = json.loads(done.stdout.splitlines()[-1])
    assert used["family"] == "seed_oss"
    assert used["defenses"] == ["acme-halved:factor=0.25"]
    assert used["attack"] == {"name": "acme-echo", "options": {"word": "aei"}}
    assert used["vowels"] == 3
    assert used["on page"] == [True, True, True]
    assert used["certified"] == [True]  # the engine and exact recovery know the family's layers
    assert used["image attack"] == "acme-black"
    assert used["on image page"]
    assert used["listed"]


DECLARED = """
from dataclasses import replace
from gradleak.models.families.llama import LLAMA

ROLES = {"doorway" if role == "ffn_gate" else role: path for role, path in LLAMA.roles.items()}
MINE = replace(LLAMA, name="seed_oss", rules={"SeedOssRMSNorm": "gradleak.matching.rules:rms_norm"}, roles=ROLES)
SWAPPED = replace(MINE, roles={**MINE.roles, "query": "self_attn.v_proj", "value": "self_attn.q_proj"})
NOWHERE = replace(MINE, roles={**MINE.roles, "ffn_out": "mlp.nowhere"})
"""


def test_a_declaration_of_ones_own_by_its_path(tmp_path, monkeypatch):
    """`--family module:NAME`, for a type that no list has: used, and refused in a line where it is not true."""
    (tmp_path / "declared_here.py").write_text(DECLARED)
    sizes = usual_sizes(len(tiny_tokenizer("llama")), 2, 16)
    config = transformers.SeedOssConfig(**sizes, num_key_value_heads=1, head_dim=8)
    made_module(config, "causal-lm", 0).save_pretrained(tmp_path / "model")
    tiny_tokenizer("llama").save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = AuditSpec(model="model", family="declared_here:MINE", observe="layer:1.doorway")
    update = Client(load_target(spec), observe=spec.observe).update(["Rosa moved."])
    assert list(update.tensors) == ["model.layers.0.mlp.gate_proj.weight"]
    assert update.manifest.family == "seed_oss"
    for name, said in (
        ("SWAPPED", "which computes what value is to be"),
        ("NOWHERE", "ffn_out: a SeedOssDecoderLayer has no mlp.nowhere"),
        ("NOBODY", "family 'declared_here:NOBODY' cannot be loaded"),
    ):
        refused = command_line.run("models", "inspect", "model", "--family", f"declared_here:{name}")
        assert refused.refused
        assert said in refused.err


def test_the_command_line_knows_it_too(installed, tmp_path):
    both = "from gradleak.cli import app\nfor name in ('attacks', 'models'): app([name], standalone_mode=False)"
    said = run(installed, "-c", both, cwd=tmp_path).stdout
    assert "acme-echo" in said
    assert "seed_oss" in said
