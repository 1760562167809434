"""Hugging Face's ``config.json`` and our configurations, each field by name.

A field is used, or must have the one value that we support, or is known to change nothing in the computation; any other
is refused by its name, since a model that is computed wrongly says nothing.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from numtrans.errors import CheckpointError, ConfigError
from numtrans.models.configs import BERTConfig, GPTConfig, LlamaConfig, T5Config, ViTConfig

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "linear": "identity",
}  # fmt: skip
T5_NETWORKS = {
    "relu": "relu", "gelu": "gelu", "gated-gelu": "geglu_tanh", "gated-relu": "reglu", "gated-silu": "swiglu",
}  # fmt: skip

# What says nothing about the computation: names, versions, dtypes, initialization, special ids, output options,
# generation defaults, and shares of units that are dropped in training only.
IGNORED = frozenset({
    "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
    "_commit_hash", "initializer_range", "initializer_factor", "gradient_checkpointing", "bos_token_id",
    "eos_token_id", "sep_token_id", "pad_token_id", "decoder_start_token_id", "cls_token_id", "mask_token_id",
    "id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "task_specific_params",
    "classifier_dropout", "directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", "tokenizer_class", "prefix", "use_cache", "output_attentions",
    "output_hidden_states", "output_past", "return_dict", "return_dict_in_generate", "torchscript", "use_bfloat16",
    "chunk_size_feed_forward", "pretraining_tp", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
    "embd_pdrop", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "num_beams", "num_beam_groups", "diversity_penalty", "early_stopping",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "begin_suppress_tokens", "suppress_tokens",
    "exponential_decay_length_penalty", "tf_legacy_loss", "attn_implementation", "_attn_implementation_autoset",
})  # fmt: skip


@dataclass(frozen=True)
class Fields:
    """How the fields of one kind of model correspond.

    Parameters
    ----------
    config : type
        Our configuration.
    used : dict
        Their field -> ours.
    values : dict
        Their field -> (their value -> ours), for fields of `used` whose values have other names.
    fixed : dict
        Their field -> the values that we support.
    ignored : frozenset
        Their fields that change nothing, besides ``IGNORED``.
    constant : dict
        Our field -> the only value that their model can have.
    """

    config: type
    used: dict
    values: dict = field(default_factory=dict)
    fixed: dict = field(default_factory=dict)
    ignored: frozenset = frozenset()
    constant: dict = field(default_factory=dict)


_PLAIN = dict(is_decoder=(False,), add_cross_attention=(False,), is_encoder_decoder=(False,), pruned_heads=({},))
_SIZES = dict(hidden_size="d_model", num_attention_heads="num_heads", num_hidden_layers="num_layers",
              intermediate_size="d_ff")  # fmt: skip

FIELDS = {
    "bert": Fields(
        BERTConfig,
        dict(_SIZES, vocab_size="vocab_size", max_position_embeddings="max_len", type_vocab_size="token_types",
             hidden_dropout_prob="dropout", layer_norm_eps="norm_eps", hidden_act="feedforward", pad_token_id="pad_id"),
        values=dict(hidden_act=ACTIVATIONS),
        fixed=dict(_PLAIN, position_embedding_type=("absolute",), tie_word_embeddings=(True,)),
    ),
    "gpt2": Fields(
        GPTConfig,
        dict(vocab_size="vocab_size", n_positions="max_len", n_embd="d_model", n_head="num_heads",
             n_layer="num_layers", n_inner="d_ff", activation_function="feedforward", resid_pdrop="dropout",
             tie_word_embeddings="tie_output"),
        values=dict(activation_function=ACTIVATIONS),
        fixed=dict(_PLAIN, layer_norm_epsilon=(1e-5,), scale_attn_weights=(True,),
                   scale_attn_by_inverse_layer_idx=(False,)),
        ignored=frozenset({
            "n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
            "summary_proj_to_labels", "summary_type", "summary_use_proj",
        }),
        constant=dict(num_kv_heads=None, norm_placement="pre", norm="layer", position="learned", bias=True),
    ),
    "t5": Fields(
        T5Config,
        dict(vocab_size="vocab_size", d_model="d_model", d_kv="d_kv", num_heads="num_heads", d_ff="d_ff",
             num_layers="num_encoder_layers", num_decoder_layers="num_decoder_layers",
             relative_attention_num_buckets="num_buckets", relative_attention_max_distance="max_distance",
             dropout_rate="dropout", layer_norm_epsilon="norm_eps", feed_forward_proj="feedforward",
             tie_word_embeddings="tie_output", pad_token_id="pad_id"),
        values=dict(feed_forward_proj=T5_NETWORKS),
        fixed=dict(_PLAIN, is_encoder_decoder=(True,)),
        ignored=frozenset({"n_positions", "dense_act_fn", "is_gated_act", "scale_decoder_outputs"}),
    ),
    "llama": Fields(
        LlamaConfig,
        dict(_SIZES, vocab_size="vocab_size", max_position_embeddings="max_len", num_key_value_heads="num_kv_heads",
             head_dim="d_kv", rope_theta="rope_base", rms_norm_eps="norm_eps", tie_word_embeddings="tie_output"),
        fixed=dict(_PLAIN, hidden_act=("silu",), attention_bias=(False,), mlp_bias=(False,), rope_scaling=(None,),
                   sliding_window=(None,)),
        constant=dict(sliding_window=None),
    ),
    "vit": Fields(
        ViTConfig,
        dict(_SIZES, image_size="image_size", patch_size="patch_size", num_channels="channels",
             num_labels="num_classes", hidden_dropout_prob="dropout", layer_norm_eps="norm_eps",
             hidden_act="feedforward"),
        values=dict(hidden_act=ACTIVATIONS),
        fixed=dict(_PLAIN, qkv_bias=(True,)),
        ignored=frozenset({"encoder_stride", "pooler_act", "pooler_output_size", "tie_word_embeddings"}),
    ),
}  # fmt: skip


def read_config(kind, theirs, path, ignore=(), **options):
    """Our configuration of the fields `theirs` of a ``config.json``.

    Parameters
    ----------
    kind : str
        A key of ``FIELDS``.
    theirs : dict
    path : Path
        Named in errors.
    ignore : collection of str
        Fields that the caller knows to change nothing.
    **options
        Fields of ours that the file does not have.

    Raises
    ------
    CheckpointError
        If a field is not supported; all of them are named.
    """
    table, theirs = FIELDS[kind], adjust(kind, {name: v for name, v in theirs.items() if name not in ignore})
    problems, ours = [], dict(options)
    for name, value in theirs.items():
        if name in table.used:
            known = table.values.get(name)
            if known is not None and (not isinstance(value, str) or value not in known):
                problems.append(f"{name}={value!r}, expected one of {', '.join(known)}")
            else:
                ours[table.used[name]] = value if known is None else known[value]
        elif name in table.fixed:
            if value not in table.fixed[name]:
                problems.append(f"{name}={value!r}, expected {table.fixed[name][0]!r}")
        elif name not in IGNORED and name not in table.ignored and value is not None:
            problems.append(f"{name}={value!r}, which is not known")
    if problems:
        raise CheckpointError(
            f"{path}: fields that numtrans does not support: {'; '.join(problems)}. One that changes nothing can be "
            'passed over with from_pretrained(..., ignore=["name"])'
        )
    try:
        return table.config(**ours)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def adjust(kind, theirs):
    """`theirs` with the spellings of one kind of model made alike: versions of the library write them differently."""
    theirs = dict(theirs)
    if kind == "llama" and isinstance(theirs.get("rope_parameters"), dict):
        theirs.update(flat_rope(theirs.pop("rope_parameters")))
    if kind == "llama" and isinstance(theirs.get("rope_scaling"), dict):
        theirs.update(flat_rope(theirs.pop("rope_scaling")))
    if kind == "t5":
        theirs["num_decoder_layers"] = theirs.get("num_decoder_layers") or theirs.get("num_layers", 6)
        if theirs.get("scale_decoder_outputs") is not None:  # how version 5 of the library marks a tied head
            theirs["tie_word_embeddings"] = theirs["scale_decoder_outputs"]
    if kind == "vit":
        labels = theirs.get("id2label") or (0, 1)
        theirs.setdefault("num_labels", len(labels) if np.iterable(labels) else labels)
    return theirs


def flat_rope(parameters):
    """``rope_theta`` out of a dict, and ``rope_scaling`` if there is more in it than the plain kind."""
    rest = dict(parameters)
    found = {"rope_theta": rest.pop("rope_theta")} if "rope_theta" in rest else {}
    plain = set(rest) <= {"rope_type", "type"} and all(value == "default" for value in rest.values())
    return found | ({} if plain else {"rope_scaling": parameters})


def write_config(kind, config) -> dict[str, Any]:
    """The fields of a ``config.json`` for our `config`: `read_config` backwards.

    Raises
    ------
    ConfigError
        If `config` has what the other library's model has not.
    """
    table, ours = FIELDS[kind], {f.name: getattr(config, f.name) for f in fields(config)}
    wrong = [f"{name}={ours[name]!r}" for name, value in table.constant.items() if ours[name] != value]
    theirs = {name: allowed[0] for name, allowed in table.fixed.items() if allowed[0] not in (None, {})}
    for name, our_name in table.used.items():
        value, known = ours[our_name], table.values.get(name)
        if known is None:
            theirs[name] = value
        elif value in known.values():
            theirs[name] = next(key for key, mine in known.items() if mine == value)
        else:
            wrong.append(f"{our_name}={value!r}")
    if wrong:
        raise ConfigError(f"save_pretrained: a {kind} of Hugging Face cannot have {', '.join(wrong)}")
    if kind == "t5":
        theirs["scale_decoder_outputs"] = theirs["tie_word_embeddings"]
    if kind == "vit":
        theirs["id2label"] = {str(i): f"LABEL_{i}" for i in range(theirs.pop("num_labels"))}
        theirs["label2id"] = {name: int(i) for i, name in theirs["id2label"].items()}
    return theirs
