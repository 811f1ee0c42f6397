"""read_nemo_decoder: the decoder of Canary in `.nemo` files: arguments, names of weights, prompt, tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from nemo_asr.decoding.attention import AttentionSearch
from nemo_asr.run.text.sentencepiece_file import ModelFile, decode, encode
from nemo_asr.run.text.subwords import Subwords, SubwordsByLanguage
from nemo_asr.trained.foreign import renamed
from nemo_asr.trained.nemo_config import resolved, section_at
from nemo_asr.trained.prompted_models import DECODER, Vocabulary, languages_in, published_sections, vocabulary_of
from nemo_lite.base.config import Config, raise_if, shown
from nemo_lite.base.errors import CheckpointError

# Any: values of YAML.

# Names of NVIDIA's files and ours, of a decoder.
_NAMES = (
    (r"^transf_decoder\._embedding\.", "layers.embed."),
    (r"^transf_decoder\._decoder\.final_layer_norm\.", "layers.after_norm."),
    (r"^transf_decoder\._decoder\.layers\.", "layers.decoders."),
    (r"^(layers\.decoders\.\d+\.)layer_norm_([123])\.", r"\1norm\2."),
    (r"^(layers\.decoders\.\d+\.)first_sub_layer\.", r"\1self_attn."),
    (r"^(layers\.decoders\.\d+\.)second_sub_layer\.", r"\1src_attn."),
    (r"^(layers\.decoders\.\d+\.)third_sub_layer\.dense_in\.", r"\1feed_forward.w_1."),
    (r"^(layers\.decoders\.\d+\.)third_sub_layer\.dense_out\.", r"\1feed_forward.w_2."),
    (r"_attn\.query_net\.", "_attn.linear_q."),
    (r"_attn\.key_net\.", "_attn.linear_k."),
    (r"_attn\.value_net\.", "_attn.linear_v."),
    (r"_attn\.out_projection\.", "_attn.linear_out."),
    (r"^log_softmax\.mlp\.layer0\.", "layers.output_layer."),
    (r"^encoder_decoder_proj\.", "projection."),
)
_SPECIAL_TOKENIZER = "spl_tokens"
# Settings of a decoder that may only have one value.
_FIXED = {"pre_ln": True, "pre_ln_final_layer_norm": True}


class NemoDecoder(NamedTuple):
    """What a file of NVIDIA's says of a decoder.

    Attributes:
        sections: of a recipe, by the names of classes.
        weights: by the names that they have here.
        tokenizer: of the labels of texts.
    """

    sections: dict[str, dict[str, Any]]
    weights: dict[str, Tensor]
    tokenizer: Subwords


def read_nemo_decoder(config: Config, tokenizer: Subwords, state: Mapping[str, Tensor], place: str) -> NemoDecoder:
    """The decoder of a ``.nemo`` file.

    Args:
        config: of the whole model.
        tokenizer: of all its outputs.
        state: its weights that are not the encoder's.
        place: the file, for messages.

    Raises:
        ConfigError: its configuration has settings that are not known here: all at once.
        CheckpointError: its weights are of another kind of model, or do not fit the tokenizer.
    """
    problems: list[str] = []
    arguments = _arguments(config, problems)
    weights: dict[str, Tensor] = {}
    for original, tensor in state.items():
        name = renamed(original, _NAMES)
        if not name.startswith(("layers.", "projection.")):
            wanted = "encoder.*, transf_decoder.*, log_softmax.*, encoder_decoder_proj.*"
            raise CheckpointError("its weights are of another kind of model", place=place, got=original, wanted=wanted)
        if not original.endswith(".pos_enc"):  # is computed
            weights[name] = tensor
    outputs = len(weights.get("layers.output_layer.bias", ()))
    if outputs < len(tokenizer):
        got, wanted = f"{len(tokenizer)} pieces", f"at most {outputs}, the outputs of the decoder"
        raise CheckpointError("its tokenizer does not fit its decoder", place=place, got=got, wanted=wanted)
    languages = tokenizer.languages if isinstance(tokenizer, SubwordsByLanguage) else None
    num_special = None if languages is None else len(languages.get(_SPECIAL_TOKENIZER, ()))
    vocabulary = vocabulary_of(dict(enumerate(tokenizer)), place, num_special)
    special = [tokenizer[number] for number in vocabulary.special]
    known = languages_in(special, None if languages is None else [*languages])
    arguments |= {"special_labels": special, "languages": known}
    arguments |= _prompt(config, languages is None, problems)
    raise_if(problems)
    if "projection.weight" in weights:
        arguments["d_model"] = len(weights["projection.weight"])
    if more := outputs - len(tokenizer):
        arguments["num_extra_outputs"] = more
    smoothing = _value_at(config, "loss.label_smoothing")
    sections = {DECODER: arguments, **published_sections(smoothing if isinstance(smoothing, float) else 0.0)}
    beam_size = _value_at(config, "decoding.beam.beam_size")
    if isinstance(beam_size, int) and beam_size > 1:
        sections[AttentionSearch.__name__] = {"beam_size": beam_size}
    return NemoDecoder(sections, vocabulary.in_order(weights), _of_texts(tokenizer, vocabulary, place))


def _of_texts(tokenizer: Subwords, vocabulary: Vocabulary, place: str) -> Subwords:
    """A tokenizer without its special pieces."""
    if isinstance(tokenizer, SubwordsByLanguage):
        own = {name: each for name, each in tokenizer.languages.items() if name != _SPECIAL_TOKENIZER}
        return SubwordsByLanguage.joined(own)
    whole = decode(tokenizer.model, place)
    return Subwords(encode(ModelFile(whole.algorithm, tuple(whole.pieces[i] for i in vocabulary.labels))), place)


def _value_at(config: Config, path: str) -> Any:
    section, _, key = path.rpartition(".")
    holder = section_at(config, section)
    return None if holder is None else resolved(config, holder.get(key))


def _arguments(config: Config, problems: list[str]) -> dict[str, Any]:
    """The arguments of a decoder; ``problems`` takes a line for what is not known here."""
    if _value_at(config, "transf_encoder.num_layers"):
        place = config.place("transf_encoder")
        problems.append(f"{place}: transf_encoder has layers, which are not read here, wanted num_layers 0")
    section = section_at(config, "transf_decoder.config_dict")
    if section is None:
        problems.append(f"{config.place()}: transf_decoder.config_dict is missing")
        return {}
    names = {
        "num_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "inner_size": "inner_size",
        "hidden_act": "activation",
        "max_sequence_length": "max_positions",
        "ffn_dropout": "dropout",
        "attn_score_dropout": "dropout_att",
    }
    arguments: dict[str, Any] = {}
    for key, value in section.items():
        value = resolved(config, value)
        if key in names:
            arguments[names[key]] = value
        elif key == "learn_positional_encodings":
            arguments["positions"] = "learned" if value else "sines"
        elif key in _FIXED and value != _FIXED[key]:
            wanted = shown(_FIXED[key])
            problems.append(f"{section.place(key)}: {section.path_of(key)} is {shown(value)}, wanted {wanted}")
    # Without them NVIDIA's class has no norms in front.
    missing = {"num_layers", "num_attention_heads", "inner_size"} - {*section}
    problems += [f"{section.place()}: {section.path_of(key)} is missing" for key in sorted(missing)]
    if not section.get("pre_ln", False):
        problems.append(f"{section.place()}: transf_decoder.config_dict.pre_ln is false, wanted true")
    return arguments


def _prompt(config: Config, is_single: bool, problems: list[str]) -> dict[str, Any]:
    """The form of the prompt, and its defaults.

    Args:
        config: of the whole model.
        is_single: one tokenizer cuts prompts and texts, and a space stands before the prompt.
        problems: takes a line for a form that is not known here.
    """
    name = str(config.get("prompt_format"))
    if name != "canary2" and (name != "canary" or is_single):
        wanted = "wanted canary2, or canary with a tokenizer for special labels"
        problems.append(f"{config.place('prompt_format')}: prompt_format is {shown(name)}; {wanted}")
    arguments: dict[str, Any] = {"prompt": "cohere" if is_single else name}
    for turn in config.get("prompt_defaults") or ():
        slots = turn.get("slots") if isinstance(turn, Config) and turn.get("role") == "user" else None
        for key, argument in (("source_lang", "language"), ("target_lang", "target_language")):
            if isinstance(slots, Config) and isinstance(value := slots.get(key), str):
                arguments[argument] = value.removeprefix("<|").removesuffix("|>")
        if isinstance(slots, Config) and str(slots.get("pnc")).lower() in ("no", "false", "0", "nopnc", "<|nopnc|>"):
            arguments["punctuation"] = False
    return arguments
