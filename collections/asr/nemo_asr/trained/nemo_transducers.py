"""further_arguments: what the configuration of a transducer of NVIDIA's says outside the sections of its modules.

Durations and big blanks are in the sections of the loss and of decoding, and a joint network here has them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any

from torch import Tensor

from nemo_asr.decoding.transducer import TransducerSearch
from nemo_asr.models.losses import AuxiliaryCTCLoss
from nemo_asr.models.transducer.joint import RNNTJoint
from nemo_asr.models.transducer.loss import RNNTLoss
from nemo_asr.run.search.transducer import MAX_SYMBOLS
from nemo_lite.base.config import Config, raise_if, shown
from nemo_lite.base.errors import CheckpointError

_GRAPH_LOSSES = ("graph_rnnt", "graph_w_transducer")
_TDT, _MULTI_BLANK = "durations", "big_blank_durations"
# By the names of losses and of kinds of decoding: what a model has beside labels and blank.
_KINDS = {
    **dict.fromkeys(("tdt", "tdt_pytorch"), _TDT),
    **dict.fromkeys(("multiblank", "multiblank_rnnt", "multiblank_rnnt_pytorch"), _MULTI_BLANK),
}


def further_arguments(config: Config, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Arguments of modules here by their class: of the joint network, the search and the losses.

    Args:
        config: of a whole model.
        problems: to which a line is added for what is not read here.
    """
    joint, loss, decoding = (_section(config, key) for key in ("joint", "loss", "decoding"))
    if joint.get("masking_prob") not in (None, 0, -1):
        problem = f"joint.masking_prob is {shown(joint['masking_prob'])}: HAINAN models are not read, wanted -1"
        problems.append(f"{joint.place('masking_prob')}: {problem}")
    loss_name = str(loss.get("loss_name", "default"))
    if loss_name in _GRAPH_LOSSES:
        wanted = "wanted the loss of RNN-T, TDT or multi-blank"
        problems.append(f"{loss.place('loss_name')}: loss.loss_name is {shown(loss_name)}, a loss of graphs; {wanted}")
    arguments: dict[str, dict[str, Any]] = {}
    key = _KINDS.get(loss_name) or _KINDS.get(str(decoding.get("model_type")))
    if key is not None:
        durations = _durations(config, loss, loss_name, decoding, key)
        problems += _contradictions(config, joint, durations)
        if not durations:
            wanted = f"decoding.{key}, a list of frames"
            problems.append(f"{config.place()}: the model's {key} are missing, wanted {wanted}")
        else:
            arguments[RNNTJoint.__name__] = {key: next(iter(durations.values()))}
    if of_loss := _loss_arguments(config, loss, loss_name):
        arguments[RNNTLoss.__name__] = of_loss
    greedy = _section(decoding, "greedy")
    most = greedy.get("max_symbols") or greedy.get("max_symbols_per_step") or MAX_SYMBOLS
    if most != MAX_SYMBOLS:
        arguments[TransducerSearch.__name__] = {"max_symbols": most}
    auxiliary = _section(config, "aux_ctc")
    if "ctc_loss_weight" in auxiliary:
        arguments[AuxiliaryCTCLoss.__name__] = {"weight": auxiliary["ctc_loss_weight"]}
    return arguments


def _loss_arguments(config: Config, loss: Config, loss_name: str) -> dict[str, Any]:
    """Those that are not the defaults. The arguments of a loss are in a section with its name."""
    given = _section(loss, f"{'warprnnt_numba' if loss_name == 'default' else loss_name}_kwargs")
    values = {"reduction": config.get("rnnt_reduction")}
    values |= {name: given.get(name) for name in ("sigma", "omega", "fastemit_lambda", "clamp")}
    defaults = {name: parameter.default for name, parameter in signature(RNNTLoss).parameters.items()}
    return {name: value for name, value in values.items() if value not in (None, defaults[name])}


def _durations(
    config: Config, loss: Config, loss_name: str, decoding: Config, key: str
) -> dict[tuple[str, ...], list[int]]:
    """By where a file says them: of the loss, with which a model was trained, then as it is decoded.

    Those among the defaults count where neither of the two says them.
    """
    defaults, kwargs = _section(config, "model_defaults"), f"{loss_name}_kwargs"
    default = f"tdt_{key}" if f"tdt_{key}" in defaults else key
    said = {
        ("loss", kwargs, key): _section(loss, kwargs).get(key),
        ("decoding", key): decoding.get(key),
        ("model_defaults", default): defaults.get(default),
    }
    lists = {
        place: list(value)
        for place, value in said.items()
        if isinstance(value, Sequence) and not isinstance(value, str) and value
    }
    stated = {place: value for place, value in lists.items() if place[0] != "model_defaults"}
    return stated or lists


def _contradictions(config: Config, joint: Config, durations: Mapping[tuple[str, ...], list[int]]) -> list[str]:
    """A line if sections say different durations, or the joint network has another number of them."""
    said: dict[tuple[str, ...], Any] = dict(durations)
    number = joint.get("num_extra_outputs")
    differ = len({tuple(value) for value in durations.values()}) > 1
    if type(number) is int and any(len(value) != number for value in durations.values()):
        said["joint", "num_extra_outputs"], differ = number, True
    if not differ:
        return []
    places = ", ".join(f"{'.'.join(place)} {shown(value)}" for place, value in said.items())
    wanted = "wanted the same in each; change the file's model_config.yaml to those it was trained with"
    place = config.place(*next(iter(durations)))
    return [f"{place}: the model's durations contradict each other: got {places}; {wanted}"]


def prompt_arguments(config: Config, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Of the module that takes the language: the sizes follow from its weights.

    Raises:
        ConfigError: the configuration names no languages, or one of the weights is missing.
    """
    defaults = _section(config, "model_defaults")
    languages = _section(defaults, "prompt_dictionary").plain()
    if not languages:
        raise_if([f"{config.place()}: the languages are missing, wanted model_defaults.prompt_dictionary"])
    first, last = (state.get(f"prompt_kernel.{layer}.weight") for layer in (0, 2))
    if first is None or last is None:
        raise_if([f"{config.place()}: the weights lack prompt_kernel.0.weight or prompt_kernel.2.weight"])
        return {}
    return {
        "num_prompts": first.shape[1] - len(last),
        "prompt_hidden": len(first),
        "prompt_dictionary": languages,
    }


def _section(config: Config, key: str) -> Config:
    """A section; an empty one where there is none."""
    section = config.get(key)
    return section if isinstance(section, Config) else config.without(*config)


def refuse_adapters(names: Iterable[str], place: str) -> None:
    """See that a model has no adapters.

    Args:
        names: of its tensors.
        place: the file.

    Raises:
        CheckpointError: it has some.
    """
    adapter = next((name for name in names if ".adapter_layer." in name), None)
    if adapter is not None:
        wanted = "a model without adapters"
        raise CheckpointError("its modules have adapters, which are not read", place=place, got=adapter, wanted=wanted)
