"""The keys and values of WeNet's recipes for AISHELL-1, train_conformer.yaml and train_u2++_conformer.yaml."""

from __future__ import annotations

from typing import Any

RATES = {"dropout_rate": 0.1, "positional_dropout_rate": 0.1}


def conformer(**others: Any) -> dict[str, Any]:
    """That of the Conformer."""
    return {
        "encoder": "conformer",
        "encoder_conf": {
            "output_size": 256, "attention_heads": 4, "linear_units": 2048, "num_blocks": 12, **RATES,
            "attention_dropout_rate": 0.0, "input_layer": "conv2d", "normalize_before": True, "cnn_module_kernel": 15,
            "use_cnn_module": True, "activation_type": "swish", "pos_enc_layer_type": "rel_pos",
            "selfattention_layer_type": "rel_selfattn",
        },
        "decoder": "transformer",
        "decoder_conf": {
            "attention_heads": 4, "linear_units": 2048, "num_blocks": 6, **RATES,
            "self_attention_dropout_rate": 0.0, "src_attention_dropout_rate": 0.0,
        },
        "tokenizer": "char",
        "tokenizer_conf": {
            "symbol_table_path": "data/dict/lang_char.txt", "split_with_space": False, "bpe_path": None,
            "non_lang_syms_path": None, "is_multilingual": False, "num_languages": 1,
            "special_tokens": {"<blank>": 0, "<unk>": 1, "<sos>": 2, "<eos>": 2},
        },
        "ctc": "ctc", "ctc_conf": {"ctc_blank_id": 0},
        "cmvn": "global_cmvn", "cmvn_conf": {"cmvn_file": "data/train/global_cmvn", "is_json_cmvn": True},
        "model": "asr_model", "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": False},
        "dataset": "asr",
        "dataset_conf": {
            "filter_conf": {
                "max_length": 40960, "min_length": 0, "token_max_length": 200, "token_min_length": 1,
            },
            "resample_conf": {"resample_rate": 16000}, "speed_perturb": True,
            "fbank_conf": {"num_mel_bins": 80, "frame_shift": 10, "frame_length": 25, "dither": 0.1},
            "spec_aug": True, "spec_aug_conf": {"num_t_mask": 2, "num_f_mask": 2, "max_t": 50, "max_f": 10},
            "shuffle": True, "shuffle_conf": {"shuffle_size": 1500}, "sort": True, "sort_conf": {"sort_size": 500},
            "batch_conf": {"batch_type": "static", "batch_size": 16},
        },
        "grad_clip": 5, "accum_grad": 4, "max_epoch": 240, "log_interval": 100,
        "optim": "adam", "optim_conf": {"lr": 0.002},
        "scheduler": "warmuplr", "scheduler_conf": {"warmup_steps": 25000}, **others,
    }  # fmt: skip


def u2pp() -> dict[str, Any]:
    """That of U2++, by its differences."""
    recipe = conformer(decoder="bitransformer", accum_grad=1, max_epoch=360, optim_conf={"lr": 0.001})
    recipe["encoder_conf"] |= {
        "attention_dropout_rate": 0.1, "cnn_module_kernel": 8, "causal": True, "use_dynamic_chunk": True,
        "cnn_module_norm": "layer_norm", "use_dynamic_left_chunk": False,
    }  # fmt: skip
    recipe["decoder_conf"] |= {
        "num_blocks": 3, "r_num_blocks": 3, "self_attention_dropout_rate": 0.1, "src_attention_dropout_rate": 0.1
    }  # fmt: skip
    recipe["model_conf"]["reverse_weight"] = 0.3
    recipe["dataset_conf"]["fbank_conf"]["dither"] = 1.0
    recipe["dataset_conf"] |= {
        "spec_sub": True, "spec_sub_conf": {"num_t_sub": 3, "max_t": 30},
        "spec_trim": False, "spec_trim_conf": {"max_t": 50},
    }  # fmt: skip
    return recipe


def small(recipe: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A recipe in a size that trains in a test."""
    recipe["encoder_conf"] |= {"output_size": 16, "linear_units": 32, "num_blocks": 1, "attention_heads": 2}
    recipe["decoder_conf"] |= {"linear_units": 32, "num_blocks": 1, "attention_heads": 2}
    recipe["dataset_conf"]["speed_perturb"] = False
    return {**recipe, **others}
