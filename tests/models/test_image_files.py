"""Image classifiers of transformers: as folders and as objects they compute what the library computes."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
import transformers
from blobs import blobs
from pictured import CLASSES, CONFIGS, MEAN, MODULES, SIDE, STD, image_model, library_module
from safetensors.torch import load_file, save_file
from transformers.image_processing_base import ImageProcessingMixin

from gradleak import GradleakError, ImageClient, load_model, load_update
from gradleak.models.image_files import PROCESSOR
from gradleak.models.load import modality_of_source

PREPARED = {"do_normalize": True, "image_mean": MEAN, "image_std": STD, "size": SIDE}


def saved(module, folder, processor=PREPARED):
    module.save_pretrained(folder)
    if processor is not None:
        (folder / PROCESSOR).write_text(json.dumps(processor))
    return folder


@pytest.fixture(scope="module")
def vit_folder(tmp_path_factory):
    return saved(library_module("vit"), tmp_path_factory.mktemp("vit"))


@pytest.fixture
def vit(vit_folder, tmp_path):
    return shutil.copytree(vit_folder, tmp_path / "vit")


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_sends_the_gradient_that_the_library_computes(kind, tmp_path):
    """Against the library's own processing of pixels, its own loss and its own backward pass."""
    module = library_module(kind)
    folder = saved(module, tmp_path / kind)
    assert modality_of_source(str(folder)) == "images"
    model = load_model(str(folder))
    assert (model.family, model.shape, model.num_labels, model.notes) == (kind, (3, SIDE, SIDE), CLASSES, ())
    pictures = blobs(3)
    update = ImageClient(model).update(pictures)
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (MEAN, STD))
    inputs = (torch.from_numpy(pictures.pixels).float() / 255 - mean) / std
    module.zero_grad()
    module(pixel_values=inputs, labels=torch.tensor(pictures.labels)).loss.backward()
    wanted = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    assert set(update.tensors) == set(wanted)
    for name, gradient in wanted.items():
        assert torch.allclose(update.tensors[name], gradient, atol=1e-6, rtol=1e-4), name


@pytest.mark.parametrize("kind", [*CONFIGS, *MODULES])
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_client_trains_as_a_plain_loop(kind, mode):
    """Two local steps against torch alone: batch norms use running statistics, or those of each mini-batch."""
    model, pictures = image_model(kind), blobs(4)
    for part in model.module.modules():
        for drops in {"p", "drop_prob"} & vars(part).keys():  # what a client drops is its own
            setattr(part, drops, 0.0)
    plain = model.copied().module.train(mode == "train")
    buffers = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    moved = ImageClient(model, client=f"fedavg:batch=2,lr=0.01,mode={mode}").update(pictures).tensors
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01)
    for part in (slice(0, 2), slice(2, 4)):
        optimiser.zero_grad()
        given = plain(pictures.values()[part])
        F.cross_entropy(getattr(given, "logits", given), torch.tensor(pictures.labels[part])).backward()
        optimiser.step()
    for name, weight in plain.named_parameters():
        if name in moved:
            assert torch.allclose(moved[name], before[name] - weight, atol=1e-6), name
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.module.named_buffers())
    assert not model.module.training


def test_an_update_of_a_vit_is_written_and_read(vit, tmp_path):
    """Autograd gives the class token a part of the position embedding's gradient, and files hold no shared memory."""
    model = load_model(vit)
    update = ImageClient(model).update(blobs(1))
    again = load_update(update.save(tmp_path / "update"), model)
    assert all(torch.equal(tensor, again.tensors[name]) for name, tensor in update.tensors.items())


def test_objects_and_folders_are_the_same_model(vit):
    module = library_module("vit")
    as_folder = load_model(vit)
    processor = ImageProcessingMixin(**PREPARED)
    as_object = load_model(module, processor=processor)
    assert as_object.fingerprint == as_folder.fingerprint
    bare = load_model(module)
    assert bare.fingerprint != as_folder.fingerprint
    assert "Nothing says how its images are normalised" in bare.notes[0]
    came_from = transformers.AutoModelForImageClassification.from_pretrained(vit)
    assert load_model(came_from).fingerprint == as_folder.fingerprint
    assert came_from.config._attn_implementation == "eager"


def test_a_new_head_is_drawn_from_its_seed(vit):
    first, again, other = (load_model(vit, num_labels=7, head_seed=seed) for seed in (1, 1, 2))
    assert first.num_labels == 7
    (note,) = first.notes
    assert note.startswith("The head is new: classifier.bias and classifier.weight are not in the checkpoint")
    assert note.endswith("drawn from seed 1.")
    assert first.fingerprint == again.fingerprint != other.fingerprint
    body = {name: p for name, p in load_model(vit).module.named_parameters() if "classifier" not in name}
    assert all(torch.equal(p, first.module.get_parameter(name)) for name, p in body.items())


def test_a_backbone_gets_a_head(tmp_path):
    saved(library_module("resnet").resnet, tmp_path / "bare")
    model = load_model(str(tmp_path / "bare"), num_labels=3)
    assert (model.num_labels, model.head) == (3, "classifier.1")
    assert "drawn from seed 0" in model.notes[0]


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        ({"image_mean": 0.5, "image_std": 0.25}, ((0.5,) * 3, (0.25,) * 3)),
        ({"do_normalize": False}, ((0.0,) * 3, (1.0,) * 3)),
        ({"do_normalize": False, "do_rescale": False}, ((0.0,) * 3, (1 / 255,) * 3)),
        ({"image_mean": MEAN, "image_std": STD, "rescale_factor": 2 / 255}, (
            tuple(m / 2 for m in MEAN), tuple(s / 2 for s in STD))),
        ({}, None),
        (None, None),
    ],
)  # fmt: skip
def test_what_becomes_of_pixels(vit, processor, wanted):
    (vit / PROCESSOR).unlink()
    if processor is not None:
        (vit / PROCESSOR).write_text(json.dumps(processor))
    model = load_model(vit)
    if wanted is None:
        assert model.normalisation is None
        assert "Nothing says" in model.notes[0]
    else:
        assert model.normalisation.mean == pytest.approx(wanted[0])
        assert model.normalisation.std == pytest.approx(wanted[1])


def test_images_are_as_large_as_the_files_say(tmp_path):
    """A ResNet takes any size: that of its image processor, else 224."""
    module = library_module("resnet")
    for size, wanted in (
        (40, (40, 40)), ({"height": 24, "width": 32}, (24, 32)), ({"shortest_edge": 48}, (48, 48)), (None, (224, 224))
    ):  # fmt: skip
        folder = saved(module, tmp_path / "resnet", {**PREPARED, "size": size})
        assert load_model(folder).shape == (3, *wanted)
    assert load_model(folder, shape=(3, 20, 20)).shape == (3, 20, 20)
    cropped = {**PREPARED, "size": {"shortest_edge": 64}, "crop_size": 48, "do_center_crop": True}
    assert load_model(saved(module, tmp_path / "resnet", cropped)).shape == (3, 48, 48)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"num_hidden_layers": 10**9}, "a model cannot have|numbers of layers"),
        ("config.json", {"num_hidden_layers": 900_000}, "its weight files hold"),
        ("config.json", {"num_labels": 10**9}, "2 to 100,000 classes"),
        ("config.json", {"hidden_size": 1 << 20}, "describes a model of"),
        ("config.json", {"image_size": 10**6}, "describes a model of|cannot load|not audited"),
        ("config.json", {"image_size": 32}, "position_embeddings"),
        ("config.json", {"patch_size": 0}, "cannot load"),
        ("config.json", {"num_labels": 3}, "classifier"),
        ("config.json", {"quantization_config": {"bits": 4}}, "quantised"),
        ("config.json", {"model_type": ["vit"]}, "model_type"),
        (PROCESSOR, {"image_std": [0, 1, 1]}, "divided by"),
        (PROCESSOR, {"image_mean": [0.5]}, "a number for each of 3 channels"),
        (PROCESSOR, {"image_mean": "grey"}, "image_mean"),
        (PROCESSOR, {"image_std": float("nan")}, "NaN|finite|image_std"),
        (PROCESSOR, {"do_flip_channel_order": True}, "do_flip_channel_order"),
    ],
)  # fmt: skip
def test_hostile_files_are_refused_in_a_line(vit, file, changes, message):
    edit(vit / file, **changes)
    with pytest.raises(GradleakError, match=message) as refused:
        load_model(vit)
    assert "\n" not in str(refused.value)


def test_weights_that_are_not_the_models_are_refused(vit):
    weights = load_file(vit / "model.safetensors")
    save_file({**weights, "vit.embeddings.further": torch.ones(2)}, vit / "model.safetensors")
    with pytest.raises(GradleakError, match="has no place for"):
        load_model(vit)
    lacking = {name: t for name, t in weights.items() if "cls_token" not in name}
    save_file(lacking, vit / "model.safetensors")
    with pytest.raises(GradleakError, match="cls_token"):
        load_model(vit)
    save_file({name: t * float("nan") for name, t in weights.items()}, vit / "model.safetensors")
    with pytest.raises(GradleakError, match=r"not finite|NaN"):
        load_model(vit)


def test_settings_that_mean_nothing_are_refused(vit):
    for settings, message in (
        ({"task": "classification"}, "'task' is for text models"),
        ({"lora": "r=4"}, "'lora' is for text models"),
        ({"tokenizer": object()}, "'tokenizer' is for text models"),
    ):
        with pytest.raises(GradleakError, match=message):
            load_model(vit, **settings)
    with pytest.raises(GradleakError, match="classes of its own"):
        load_model(library_module("vit"), num_labels=3)
    with pytest.raises(GradleakError, match="gives no classes"):
        load_model(library_module("vit").vit)
