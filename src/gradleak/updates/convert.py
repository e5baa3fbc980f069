"""Update folders out of files that other training left: weights before and after, or a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.core.errors import GradleakError
from gradleak.core.files import beside
from gradleak.core.foreign import read_foreign
from gradleak.core.progress import SILENT, Progress
from gradleak.core.reading import read_json_table
from gradleak.models.checkpoint import MAX_CONFIG
from gradleak.models.lora import CONFIG, adapted
from gradleak.models.lora_saving import adapter_of
from gradleak.models.text import TextModel
from gradleak.updates.client_rule import ClientRule
from gradleak.updates.found_settings import settings_beside
from gradleak.updates.integrations.form import Form, difference
from gradleak.updates.integrations.recording import Recorder, save_with
from gradleak.updates.plausible import check_plausible, moved_like_adam, precision_of
from gradleak.updates.rule_options import BuiltRule, RuleOptions
from gradleak.updates.weights import Weights, read_weights

# The settings of adapters that must be the same before and after: with others the same weights compute another model.
SAME = ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")


@dataclass(frozen=True)
class Converted:
    """What was written: the update, and a model if the weights before are not the given one's."""

    update: Path
    model: Path | None
    rule: ClientRule
    read: tuple[str, ...]
    dropout: bool  # whether the model has any, which the rule may say was on
    like_adam: bool  # whether the weights moved as Adam moves them, though the rule says SGD


def convert_weights(
    model: TextModel,
    before: Path | None,
    after: Path,
    out: Path,
    options: RuleOptions,
    *,
    progress: Progress = SILENT,
) -> Converted:
    """An update folder from weights before and after local training; and a model folder, if one had to be written.

    Both may be files, folders of models, or folders of adapters, for which `model` is the base or has some already.
    Without `before` the training began with the weights of `model`. If those of `before` are other ones, a model that
    has them is written beside the update, as `<out>.model`: an attack needs the weights that the training began with.
    """
    place = beside(out, ".model")
    start, end = read_weights(before, progress) if before is not None else None, read_weights(after, progress)
    found = settings_beside(end.folder) if options.asks_for_files else []
    model, own = _with_adapters(model, start, end)
    form = Form.of(model.module)
    weights = {name: weight.detach().cpu() for name, weight in model.module.named_parameters()}
    first = _named(form, start) if start is not None else {}
    last = _named(form, end)
    dropout = has_dropout(model)
    built = _in_precision(options.rule(found, dropout=dropout), {**weights, **first}, last)
    moved = difference({**weights, **first}, last)
    if built.exact:
        check_plausible(moved, {**weights, **first}, built.rule, options.sentences or built.rule.batch)
    recorder = Recorder(out, form, built.rule, notes=built.notes)
    folder = recorder.write(out, {**weights, **first}, last, sentences=options.sentences)
    same = all(bool((weights[name] == weight).all()) for name, weight in first.items())
    new = None if same and own else save_with(model.module, first, model.tokenizer, place)
    like_adam = built.exact and moved_like_adam(moved, built.rule, options.sentences)
    return Converted(folder, new, built.rule, built.read, dropout, like_adam)


def has_dropout(model: TextModel) -> bool:
    return any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in model.module.modules())


def convert_gradient(
    model: TextModel,
    gradient: Path,
    out: Path,
    *,
    rule: ClientRule | None = None,
    batch_size: int | None = None,
    progress: Progress = SILENT,
) -> Path:
    """An update folder from a gradient of the mean loss, made with the weights of this model."""
    form = Form.of(model.module)
    recorder = Recorder(out, form, rule or ClientRule())
    weights: Mapping[str, Tensor] = dict(model.module.named_parameters())
    (tensors,) = read_foreign([gradient], progress)
    return recorder.write(out, weights, _fitting(form, gradient, tensors), sentences=batch_size)


def _in_precision(built: BuiltRule, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> BuiltRule:
    """The rule with the precision that the numbers have, where it was not said."""
    coarse = precision_of(after)
    if coarse == "fp32" or not built.rule.wire == built.rule.precision == "fp32":
        return built
    kept = precision_of({name: before[name] for name in after})
    return replace(built, rule=built.rule.model_copy(update={"wire": coarse, "precision": kept}))


def _with_adapters(model: TextModel, start: Weights | None, end: Weights) -> tuple[TextModel, bool]:
    """The model with the adapters that were trained, and whether it had them already."""
    if start is not None and start.has_settings:
        _check_same(str(start.path), _settings(start), end)
    if hasattr(model.module, "peft_config"):
        _check_same(model.name, vars(model.module.peft_config[adapter_of(model.module)]), end)
        return model, True
    if not (end.is_adapter or (start is not None and start.is_adapter)):
        return model, True
    if start is None:
        raise GradleakError(
            "adapters begin with random factors: give those before as --before, or the adapter folder that holds "
            "them as --model"
        )
    for one, other in ((start, end), (end, start)):
        if not one.is_adapter:
            raise GradleakError(f"{other.path} holds adapters and {one.path} does not; are both of one training?")
    place = next((each.folder for each in (start, end) if each.has_settings), None)
    if place is None:
        raise GradleakError(f"there is no {CONFIG} beside {start.path}; the adapters' scale is known from it alone")
    return adapted(model, place, start.sets[0]), False


def _check_same(place: str, settings: Mapping[str, Any], end: Weights) -> None:
    """Refuse adapters after training whose settings are not those before."""
    if not end.has_settings:
        return
    after = _settings(end)
    for name in SAME:
        first, last = settings.get(name), after.get(name)
        if (first or None) != (last or None):
            raise GradleakError(
                f"{place} and {end.path} are not of one training: {name} is {_short(first)} in the first and "
                f"{_short(last)} in the second"
            )


def _settings(weights: Weights) -> dict[str, Any]:
    return read_json_table(weights.folder / CONFIG, MAX_CONFIG)


def _short(value: Any) -> str:
    return repr(value)[:60]


def _named(form: Form, weights: Weights) -> dict[str, Tensor]:
    """The parameters by name; if a folder holds several sets of them, all must be the same."""
    sets = [_fitting(form, file, each) for file, each in zip(weights.files, weights.sets, strict=True)]
    for file, other in zip(weights.files[1:], sets[1:], strict=True):
        if other.keys() != sets[0].keys() or not all(torch.equal(sets[0][name], other[name]) for name in other):
            raise GradleakError(
                f"{weights.path} holds {weights.files[0].name} and {file.name}, which disagree; name the one you mean"
            )
    return sets[0]


def _fitting(form: Form, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    try:
        return form.named(tensors)
    except GradleakError as error:
        raise GradleakError(f"{path}: {error}") from error
