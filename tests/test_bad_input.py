"""Bad input to layers, models and state dicts: each an error that names the class, what was expected and what came.

Bad files and bad command lines are tested where files and commands are.
"""

import dataclasses
import json
import warnings

import numpy as np
import pytest
from helpers import normal

from numtrans import errors
from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.errors import BackwardError, ConfigError, DtypeError, IndexRangeError, ShapeError, StateDictError
from numtrans.layers import (
    GELU,
    ALiBi,
    BatchNorm,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    KVCache,
    LayerNorm,
    LearnedPositionalEncoding,
    Linear,
    LogSoftmax,
    MultiHeadAttention,
    ReLU,
    Residual,
    RMSNorm,
    RotaryPositionalEncoding,
    ScaledDotProductAttention,
    ShawRelativePosition,
    Sigmoid,
    SiLU,
    SinusoidalPositionalEncoding,
    Softmax,
    T5RelativeBias,
    Tanh,
    TiedLinear,
)
from numtrans.losses import CrossEntropyLoss
from numtrans.models import (
    BERT,
    GPT,
    T5,
    BERTConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    T5Config,
    Transformer,
    TransformerConfig,
    ViTConfig,
)


def f32(*shape):
    return normal(*shape, dtype=np.float32)


def gpt(**options):
    return GPT(GPTConfig(7, **(dict(max_len=4, d_model=4, num_heads=2, num_layers=1, d_ff=6) | options)))


def transformer(**options):
    sizes = dict(d_model=4, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1, max_len=4)
    return Transformer(TransformerConfig(7, 9, **(sizes | options)))


def bert(**options):
    return BERT(BERTConfig(7, **(dict(max_len=4, d_model=4, num_heads=2, num_layers=1, d_ff=6) | options)))


def t5(**options):
    sizes = dict(d_model=4, d_kv=2, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1)
    return T5(T5Config(7, **(sizes | options)))


def llama(**options):
    return Llama(LlamaConfig(7, **(dict(max_len=4, d_model=4, num_heads=2, num_layers=1, d_ff=6) | options)))


MODELS = {
    "GPT": gpt, "GPT, T5's positions": lambda: gpt(position="t5"), "GPT, Shaw": lambda: gpt(position="shaw"),
    "BERT": bert, "BERT, masked-LM head": lambda: bert(head="mlm"), "BERT, hidden states": lambda: bert(head="none"),
    "Llama": llama, "Llama, window": lambda: llama(sliding_window=2), "T5": t5, "Transformer": transformer,
}  # fmt: skip


def call(model, ids, **options):
    """The model of these ids, which are source and target where there are two."""
    return model(ids, ids, **options) if isinstance(model, (T5, Transformer)) else model(ids, **options)


IDS = np.array([[1, 2, 3]])
WIDTH_4 = {
    "Linear": lambda: Linear(4, 3),
    "TiedLinear": lambda: TiedLinear(Embedding(7, 4).E),
    "LayerNorm": lambda: LayerNorm(4),
    "RMSNorm": lambda: RMSNorm(4),
    "BatchNorm": lambda: BatchNorm(4),
    "SinusoidalPositionalEncoding": lambda: SinusoidalPositionalEncoding(4),
    "LearnedPositionalEncoding": lambda: LearnedPositionalEncoding(4, 9),
    "MultiHeadAttention": lambda: MultiHeadAttention(4, 2),
    "FeedForward": lambda: FeedForward(4, 6),
    "GatedFeedForward": lambda: GatedFeedForward(4, 6),
    "Residual pre": lambda: Residual(FeedForward(4, 6), LayerNorm(4), "pre"),
    "Residual post": lambda: Residual(FeedForward(4, 6), LayerNorm(4), "post"),
    "EncoderLayer": lambda: EncoderLayer(4, 2, 6),
    "Encoder": lambda: Encoder(1, 4, 2, 6, norm_placement="pre"),
}
ANY_WIDTH = {
    "ReLU": ReLU, "GELU": GELU, "SiLU": SiLU, "Sigmoid": Sigmoid, "Tanh": Tanh, "Softmax": Softmax,
    "LogSoftmax": LogSoftmax, "Dropout": lambda: Dropout(0.3),
}  # fmt: skip
LAYERS = WIDTH_4 | ANY_WIDTH
PARAMETERIZED = [name for name in WIDTH_4 if name != "SinusoidalPositionalEncoding"]


# ---- the input of a layer


@pytest.mark.parametrize("name", WIDTH_4)
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 1), (2, 3, 0)])
def test_wrong_last_axis(name, shape):
    layer = WIDTH_4[name]()
    with pytest.raises(ShapeError, match=rf"\w+: \w+ has last axis {shape[-1]}, expected (d_in|d_model)=4 \(shape"):
        layer(f32(*shape))
    assert layer.pending == 0


@pytest.mark.parametrize("name", ["Linear", "LayerNorm", "RMSNorm", "TiedLinear", "BatchNorm"])
def test_a_number_in_place_of_an_array_of_tokens(name):
    with pytest.raises(ShapeError, match=rf"{name}: input has last axis none"):
        WIDTH_4[name]()(np.array(1, np.float32))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [np.int64, np.bool_, np.uint8])
def test_integers_where_floats_are_due(name, dtype):
    layer = LAYERS[name]()
    with pytest.raises(DtypeError, match=rf"\w+: \w+ has dtype {np.dtype(dtype)}, expected floating point"):
        layer(np.ones((2, 3, 4), dtype))
    assert layer.pending == 0


@pytest.mark.parametrize("name", LAYERS)
def test_a_list_where_an_array_is_due(name):
    with pytest.raises(DtypeError, match=r"\w+: \w+ must be a numpy or cupy array, got list"):
        LAYERS[name]()([[1.0, 2.0, 3.0, 4.0]])


@pytest.mark.parametrize("name", PARAMETERIZED)
def test_mixed_dtypes(name):
    message = r"has dtype float64, expected float32. Convert one of them: \w+\.astype\(float32\) or module\.astype"
    with pytest.raises(DtypeError, match=message):
        WIDTH_4[name]()(normal(2, 3, 4))
    with pytest.raises(DtypeError, match="has dtype float32, expected float64"):
        WIDTH_4[name]().astype(np.float64)(f32(2, 3, 4))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_keeps_the_dtype(name, dtype):
    layer = LAYERS[name]().astype(dtype)
    y = layer(normal(2, 3, 4).astype(dtype))
    dx = layer.backward(y)
    assert {y.dtype, dx.dtype, *(p.grad.dtype for p in layer.parameters())} == {np.dtype(dtype)}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_keeps_half_precision(name):
    model = MODELS[name]().astype(np.float16)
    y = call(model, IDS)
    model.backward(y)
    assert {y.dtype, *(p.grad.dtype for p in model.parameters())} == {np.dtype(np.float16)}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 4), (1, 3, 4), ()])
def test_dy_of_a_wrong_shape(name, shape):
    layer = LAYERS[name]()
    y = layer(f32(2, 3, 4))
    before = {key: p.data.copy() for key, p in layer.named_parameters()}
    shape = (2, 3, 4) if y.shape == shape else shape  # TiedLinear gives (2, 3, 7)
    assert y.shape != shape
    message = rf"\w+: dy has (shape|last axis) .*expected .*{', '.join(map(str, y.shape[:-1]))}"
    with pytest.raises(ShapeError, match=message):
        layer.backward(f32(*shape))
    assert all((p.data == before[key]).all() for key, p in layer.named_parameters())
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_dy_of_a_wrong_dtype(name):
    layer = LAYERS[name]()
    y = layer(f32(2, 3, 4))
    with pytest.raises(DtypeError, match=r"\w+: dy has dtype int64, expected floating point"):
        layer.backward(np.ones(y.shape, int))
    if name in PARAMETERIZED:
        layer.clear()
        layer(f32(2, 3, 4))
        with pytest.raises(DtypeError, match=r"\w+: dy has dtype float64, expected float32"):
            layer.backward(normal(*y.shape))
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_backward_first_and_twice(name):
    layer = LAYERS[name]()
    message = r"\w+: backward without a pending forward. Call forward first \(not inside no_grad\)"
    with pytest.raises(BackwardError, match=message):
        layer.backward(f32(2, 3, 4))
    y = layer(f32(2, 3, 4))
    layer.backward(y)
    with pytest.raises(BackwardError, match=message):
        layer.backward(y)


@pytest.mark.parametrize(("make", "inputs"), [(gpt, (IDS,)), (transformer, (IDS, IDS))])
def test_models_backward_first_twice_and_of_a_wrong_shape(make, inputs):
    model = make()
    with pytest.raises(BackwardError, match="TiedLinear: backward without a pending forward"):
        model.backward(f32(1, 3, 7))
    y = model(*inputs)
    model.backward(y)
    with pytest.raises(BackwardError, match="TiedLinear: backward without a pending forward"):
        model.backward(y)
    model.zero_grad()
    model(*inputs)
    with pytest.raises(ShapeError, match=r"TiedLinear: dy has shape \(1, 3, 5\), expected that of the output, \(1, 3"):
        model.backward(f32(1, 3, 5))
    assert all(p.grad is None for p in model.parameters())


# ---- attention


@pytest.mark.parametrize(("arguments", "message"), [
    ((10, 4), r"d_model=10 is not divisible by num_heads=4"),
    ((8, 4, 3), r"num_heads=4 is not divisible by num_kv_heads=3"),
    ((8, 2, 4), r"num_heads=2 is not divisible by num_kv_heads=4"),
    ((8, 0), r"num_heads is 0, expected an integer"),
    ((8, 2, 0), r"num_kv_heads is 0, expected an integer"),
    ((8, -2), r"num_heads is -2, expected an integer"),
])  # fmt: skip
def test_heads_that_do_not_divide(arguments, message):
    with pytest.raises(ConfigError, match="MultiHeadAttention: .*" + message):
        MultiHeadAttention(*arguments)
    with pytest.raises(ConfigError):
        EncoderLayer(arguments[0], arguments[1], 16, num_kv_heads=arguments[2] if len(arguments) > 2 else None)


SIZES = {
    "Linear": (Linear, {"d_in": 3, "d_out": 4}),
    "Embedding": (Embedding, {"vocab_size": 3, "d_model": 4}),
    "LayerNorm": (LayerNorm, {"d_model": 4}),
    "RMSNorm": (RMSNorm, {"d_model": 4}),
    "BatchNorm": (BatchNorm, {"d_model": 4}),
    "MultiHeadAttention": (MultiHeadAttention, {"d_model": 4, "num_heads": 2, "num_kv_heads": 1, "d_kv": 3, "d_v": 5}),
    "FeedForward": (FeedForward, {"d_model": 4, "d_ff": 6}),
    "GatedFeedForward": (GatedFeedForward, {"d_model": 4, "d_ff": 6}),
    "LearnedPositionalEncoding": (LearnedPositionalEncoding, {"max_len": 5, "d_model": 4}),
    "SinusoidalPositionalEncoding": (SinusoidalPositionalEncoding, {"d_model": 4, "max_len": 5}),
    "RotaryPositionalEncoding": (RotaryPositionalEncoding, {"d_head": 4, "max_len": 5}),
    "ShawRelativePosition": (ShawRelativePosition, {"d_head": 4, "max_distance": 5}),
    "T5RelativeBias": (T5RelativeBias, {"num_heads": 2, "num_buckets": 8, "max_distance": 9}),
    "ALiBi": (ALiBi, {"num_heads": 2}),
    "KVCache": (KVCache, {"capacity": 3}),
    "Encoder": (Encoder, {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 6}),
    "Decoder": (Decoder, {"num_layers": 1, "d_model": 4, "num_heads": 2, "d_ff": 6}),
}


@pytest.mark.parametrize("wrong", [0, -1, 2.5, 4.0, "a", True])
@pytest.mark.parametrize("owner", SIZES)
def test_sizes_that_are_no_counts(owner, wrong):
    cls, sizes = SIZES[owner]
    cls(**{name: np.int64(size) for name, size in sizes.items()})
    for name in sizes:
        with pytest.raises(ConfigError, match=rf"\w+: {name} is {wrong!r}, expected an integer of") as caught:
            cls(**sizes | {name: wrong})
        assert str(caught.value).startswith(f"{owner}: ") or (owner.endswith("coder") and name == "d_ff")


@pytest.mark.parametrize("eps", [-1e-5, "a", None, float("nan"), float("inf"), True])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, BatchNorm])
def test_wrong_eps(norm, eps):
    with pytest.raises(ConfigError, match=f"{norm.__name__}: eps is {eps!r}, expected 0 or more"):
        norm(4, eps=eps)


@pytest.mark.parametrize("wrong", ["a", None, float("nan"), True])
def test_shares_that_are_no_numbers(wrong):
    with pytest.raises(ConfigError, match=f"Dropout: p is {wrong!r}, expected 0 <= p < 1"):
        Dropout(wrong)
    with pytest.raises(ConfigError, match=f"BatchNorm: momentum is {wrong!r}, expected 0 <= momentum <= 1"):
        BatchNorm(4, momentum=wrong)


def test_heads_of_another_width_need_not_divide():
    assert MultiHeadAttention(10, 4, d_kv=3)(f32(1, 2, 10)).shape == (1, 2, 10)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 3, 3), (2, 2, 3, 4), (3, 1, 1, 3), (1, 2, 2, 3, 3)])
@pytest.mark.parametrize("make", [lambda: MultiHeadAttention(4, 2), lambda: EncoderLayer(4, 2, 6)])
def test_mask_of_a_wrong_shape(make, shape):
    message = r"ScaledDotProductAttention: mask has shape .*broadcasts to \(2, 2, 3, 3\).*\(batch, 1, 1, keys\)"
    with pytest.raises(ShapeError, match=message):
        make()(f32(2, 3, 4), mask=np.ones(shape, bool))


@pytest.mark.parametrize("mask", [np.zeros((3, 3)), np.full((3, 3), -np.inf), np.full((3, 3), 2), np.full((3, 3), -1)])
def test_mask_of_a_wrong_dtype(mask):
    message = rf"mask has dtype {mask.dtype}, expected boolean or 0/1 integers with True = may attend"
    with pytest.raises(DtypeError, match=message):
        MultiHeadAttention(4, 2)(f32(2, 3, 4), mask=mask)


def test_mask_that_is_a_list():
    with pytest.raises(DtypeError, match=r"mask must be a boolean array .*, got list"):
        MultiHeadAttention(4, 2)(f32(1, 2, 4), mask=[[True, False], [True, True]])


@pytest.mark.parametrize(("key", "value"), [
    ((3, 5, 4), (3, 5, 4)), ((2, 5, 4), (2, 6, 4)), ((2, 5, 4), (1, 5, 4)),
])  # fmt: skip
def test_keys_and_values_that_do_not_fit(key, value):
    with pytest.raises(ShapeError, match=r"MultiHeadAttention: key has shape .* and value .*of query \(2, 3, 4\)"):
        MultiHeadAttention(4, 2)(f32(2, 3, 4), f32(*key), f32(*value))


@pytest.mark.parametrize(("key", "value", "message"), [
    ((2, 2, 5, 4), (2, 2, 5, 3), r"key has shape \(2, 2, 5, 4\)"),
    ((2, 3, 5, 3), (2, 3, 5, 3), r"key has shape \(2, 3, 5, 3\)"),
    ((2, 2, 5, 3), (2, 2, 4, 3), r"value has shape \(2, 2, 4, 3\)"),
    ((2, 5, 3), (2, 2, 5, 3), r"key has shape \(2, 5, 3\), expected \(batch, heads, tokens, d\)"),
])  # fmt: skip
def test_attention_inputs_that_do_not_fit(key, value, message):
    with pytest.raises(ShapeError, match="ScaledDotProductAttention: " + message):
        ScaledDotProductAttention()(f32(2, 2, 3, 3), f32(*key), f32(*value))


def test_attention_of_mixed_dtypes():
    with pytest.raises(DtypeError, match="ScaledDotProductAttention: key has dtype float64, expected float32"):
        ScaledDotProductAttention()(f32(1, 1, 2, 3), normal(1, 1, 2, 3))
    with pytest.raises(DtypeError, match="MultiHeadAttention: value has dtype float64, expected float32"):
        MultiHeadAttention(4, 2)(f32(1, 2, 4), f32(1, 2, 4), normal(1, 2, 4))


@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 3, 4)])
def test_tokens_without_or_with_one_axis_too_many(shape):
    with pytest.raises(ShapeError, match=r"MultiHeadAttention: query has shape .*expected \(batch, tokens, d_model\)"):
        MultiHeadAttention(4, 2)(f32(*shape))


def test_dy_of_attention():
    layer = ScaledDotProductAttention()
    layer(f32(2, 2, 3, 4))
    with pytest.raises(ShapeError, match=r"dy has shape \(2, 2, 4, 3\), expected that of the output, \(2, 2, 3, 4\)"):
        layer.backward(f32(2, 2, 4, 3))


def test_memory_of_another_batch():
    with pytest.raises(ShapeError, match=r"MultiHeadAttention: key has shape \(3, 2, 4\)"):
        DecoderLayer(4, 2, 6)(f32(2, 3, 4), f32(3, 2, 4))


def test_rotary_positions_of_an_odd_width():
    with pytest.raises(ConfigError, match=r"RotaryPositionalEncoding: features are rotated in pairs"):
        RotaryPositionalEncoding(3)


# ---- token ids


@pytest.mark.parametrize(("ids", "error", "message"), [
    (np.array([[0, -1]]), IndexRangeError, "Embedding: id -1 out of range, expected 0 <= id <"),
    (np.array([[0, 7]]), IndexRangeError, "Embedding: id 7 out of range, expected 0 <= id < .*7"),
    (np.array([[0, 1 << 40]]), IndexRangeError, f"id {1 << 40} out of range"),
    (np.array([[0, 255]], np.uint8), IndexRangeError, "id 255 out of range"),
    (np.array([[0.0, 1.0]]), DtypeError, "Embedding: ids have dtype float64, expected integers"),
    (np.array([[True, False]]), DtypeError, "Embedding: ids have dtype bool, expected integers"),
])  # fmt: skip
def test_token_ids(ids, error, message):
    for call in (lambda: Embedding(7, 4)(ids), lambda: gpt()(ids), lambda: transformer()(ids, IDS)):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_unequal_lengths(name):
    owner = name.split(",")[0]
    with pytest.raises(ShapeError, match=rf"{owner}: \w+ of rows of unequal lengths, expected \(batch, tokens\)"):
        call(MODELS[name](), [[1, 2], [3]])


def test_rows_of_unequal_lengths_in_a_table():
    with pytest.raises(ShapeError, match="Embedding: ids of rows of unequal lengths"):
        Embedding(7, 4)([[1, 2], [3]])
    with pytest.raises(ShapeError, match="BERTEmbedding: token_type_ids of rows of unequal lengths"):
        bert()(IDS, [[0, 1], [0]])
    assert (bert().eval()(IDS.tolist(), [[0, 1, 0]]).shape) == (1, 4)


def test_token_ids_of_the_target():
    with pytest.raises(IndexRangeError, match="id 9 out of range"):
        transformer()(IDS, np.array([[1, 9]]))
    with pytest.raises(IndexRangeError, match="id 8 out of range"):  # right for the target, too large for the source
        transformer()(np.array([[1, 8]]), np.array([[1, 8]]))


@pytest.mark.parametrize("ids", [np.array([1, 2]), np.array(1), np.ones((1, 2, 3), int)])
def test_shape_of_ids(ids):
    shape = str(ids.shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ShapeError, match=rf"GPT: ids have shape {shape}, expected \(batch, tokens\)"):
        gpt()(ids)
    with pytest.raises(ShapeError, match=rf"Transformer: src has shape {shape}, expected \(batch, tokens\)"):
        transformer()(ids, IDS)
    model = transformer()
    memory, _ = model.encode(IDS)
    with pytest.raises(ShapeError, match=rf"Transformer: tgt has shape {shape}, expected \(batch, tokens\)"):
        model.decode(ids, memory)


@pytest.mark.parametrize("ids", [np.array([1, 2]), np.array(1)])
def test_shape_of_target_ids(ids):
    with pytest.raises(ShapeError, match=r"Transformer: tgt has shape .*, expected \(batch, tokens\)"):
        transformer()(IDS, ids)


def test_batches_of_different_size():
    with pytest.raises(ShapeError, match="Transformer: tgt has 2 rows, expected 1 as src"):
        transformer()(IDS, np.ones((2, 3), int))


def test_sequence_longer_than_a_learned_table():
    message = r"LearnedPositionalEncoding: a sequence of 5 tokens from position 0 needs 5 .*max_len=4"
    long = np.ones((1, 5), int)
    for call in (
        lambda: LearnedPositionalEncoding(4, 4)(f32(1, 5, 4)),
        lambda: gpt()(long),
        lambda: transformer(position="learned")(long, IDS),
        lambda: transformer(position="learned")(IDS, long),
    ):
        with pytest.raises(ShapeError, match=message):
            call()
    assert gpt()(np.ones((1, 4), int)).shape == (1, 4, 7)
    assert transformer(position="sinusoidal")(long, long).shape == (1, 5, 9)  # a formula has no end


@pytest.mark.parametrize(("mask", "error", "message"), [
    (np.ones((1, 4), bool), ShapeError, "mask has shape"),
    (np.ones((1, 3)), DtypeError, "mask has dtype float64"),
    (np.full((1, 3), 2), DtypeError, "mask has dtype int64"),
])  # fmt: skip
def test_masks_of_a_model(mask, error, message):
    with pytest.raises(error, match=message):
        transformer()(IDS, IDS, src_mask=mask)
    with pytest.raises(error, match=message):
        gpt()(IDS, mask)
    if error is DtypeError:
        with pytest.raises(error, match=message):
            transformer()(IDS, IDS, tgt_mask=mask)


@pytest.mark.parametrize("make", [t5, transformer])
def test_a_mask_of_source_tokens_is_the_same_in_decode(make):
    model = make(dropout=0.0, pad_id=None)
    src, tgt = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[1, 2], [3, 4]])  # as many rows as target tokens
    mask = np.array([[True, True, False], [True, False, False]])
    memory, hidden = model.encode(src, mask)
    assert (model.decode(tgt, memory, mask) == model.decode(tgt, memory, hidden)).all()
    with pytest.raises(ShapeError, match=r"mask has shape \(2, 2\), expected \(2, 3\), one entry a token"):
        model.decode(tgt, memory, mask[:, :2])


def test_target_mask_of_a_wrong_shape():
    with pytest.raises(ShapeError, match="mask has shape"):
        transformer()(IDS, IDS, tgt_mask=np.ones((1, 4), bool))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "BERT"])
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_no_tokens(name, shape):
    model = MODELS[name]()
    y = call(model, np.ones(shape, int))
    assert y.shape[:2] == shape
    model.backward(y)
    assert all(p.grad.shape == p.data.shape and not p.grad.any() for p in model.parameters())
    assert model.pending == 0


def test_a_first_token_that_is_not_there():
    with pytest.raises(ShapeError, match=r"Pooler: h has shape \(2, 0, 4\), expected .* at least one token"):
        bert()(np.ones((2, 0), int))
    assert bert()(np.ones((0, 2), int)).shape == (0, 4)


def test_no_keys():
    query, none = f32(1, 1, 2, 3), f32(1, 1, 0, 3)
    assert (ScaledDotProductAttention()(query, none) == 0).all()  # a query with no key gets 0


@pytest.mark.parametrize("shape", [(1, 2), (1, 3, 1), (3,)])
def test_targets_of_a_wrong_shape(shape):
    logits = gpt()(IDS)
    with pytest.raises(ShapeError, match=r"CrossEntropyLoss: .*\(1, 3\)"):
        CrossEntropyLoss()(logits, np.ones(shape, int))


# ---- configurations


@pytest.mark.parametrize(("make", "options", "message"), [
    (gpt, {"num_layers": 0}, "GPTConfig: num_layers is 0, expected at least 1"),
    (gpt, {"d_model": 10, "num_heads": 4}, "GPTConfig: d_model=10 is not divisible by num_heads=4"),
    (gpt, {"num_kv_heads": 3}, "num_heads=2 is not divisible by num_kv_heads=3"),
    (gpt, {"position": "absolute"}, "GPTConfig: position is 'absolute', expected one of sinusoidal, learned, rope"),
    (gpt, {"norm": "batch"}, "GPTConfig: norm is 'batch', expected one of layer, rms"),
    (gpt, {"norm_placement": "mid"}, "GPTConfig: norm_placement is 'mid', expected one of post, pre"),
    (gpt, {"feedforward": "swish"}, "GPTConfig: feedforward is 'swish', expected one of relu, .*, swiglu"),
    (gpt, {"dropout": 1.0}, r"GPTConfig: dropout is 1\.0, expected 0 <= dropout < 1"),
    (transformer, {"tie_embeddings": True}, "tie_embeddings needs one vocabulary, got sizes 7 and 9"),
    (transformer, {"d_ff": -1}, "TransformerConfig: d_ff is -1, expected at least 1"),
])  # fmt: skip
def test_configurations(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


CONFIGS = [
    GPTConfig(7), TransformerConfig(7, 7), BERTConfig(), T5Config(), LlamaConfig(), ViTConfig(),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_values_of_another_type_in_a_configuration(config):
    wrong = {
        int: (2.5, "4", [1], True, float("nan")), float: ("0.1", [1], True, float("nan"), float("inf")),
        bool: (1, "yes"), str: (1, ["relu"], None),
    }  # fmt: skip
    for field in dataclasses.fields(config):
        may_be_none = field.type == int | None
        kind = int if may_be_none else field.type
        for value in (*wrong[kind], *([] if may_be_none else [None])):
            with pytest.raises(ConfigError, match=rf"{type(config).__name__}: {field.name} is .*, expected (a |True)"):
                dataclasses.replace(config, **{field.name: value})


@pytest.mark.parametrize("config", CONFIGS)
def test_numbers_of_numpy_in_a_configuration_are_plain(config):
    values = {
        name: np.int64(v) if type(v) is int else np.float64(v) if type(v) is float else v
        for name, v in config.to_dict().items()
    }
    same = type(config)(**values)
    assert same == config
    assert json.loads(json.dumps(same.to_dict())) == config.to_dict()


@pytest.mark.parametrize("config", CONFIGS)
def test_no_dropout_may_be_written_as_a_whole_number(config):
    assert dataclasses.replace(config, dropout=0).dropout == 0
    with pytest.raises(ConfigError, match=r"dropout is -1\.0, expected 0 <= dropout < 1"):
        dataclasses.replace(config, dropout=-1)
    if hasattr(config, "norm_eps"):
        with pytest.raises(ConfigError, match="norm_eps is -1e-06, expected 0 or more"):
            dataclasses.replace(config, norm_eps=-1e-6)


@pytest.mark.parametrize("make", [Encoder, Decoder])
def test_a_stack_without_layers_or_with_unknown_positions(make):
    with pytest.raises(ConfigError, match=f"{make.__name__}: num_layers is 0, expected an integer of at least 1"):
        make(0, 4, 2, 6)
    with pytest.raises(ConfigError, match="unknown relative position 'learned', expected one of rope"):
        make(1, 4, 2, 6, position="learned")


# ---- state dicts


@pytest.mark.parametrize("change", ["missing", "unexpected", "wrong shape"])
def test_state_dict(change):
    model = gpt()
    state, before = model.state_dict(), model.state_dict()
    name = "layers.layers.0.feedforward.sublayer.linear1.W"
    for array in state.values():
        array += 1
    if change == "missing":
        del state[name]
    elif change == "unexpected":
        name = "head.W"
        state[name] = np.ones(3)
    else:
        state[name] = state[name].T
    with pytest.raises(StateDictError, match=f"GPT: state dict does not fit.\n  {change}: {name}"):
        model.load_state_dict(state)
    assert all((array == before[key]).all() for key, array in model.state_dict().items())


def test_state_dict_of_another_model():
    with pytest.raises(StateDictError, match=r"(?s)GPT: .*missing: embedding.*unexpected: src_embedding"):
        gpt().load_state_dict(transformer().state_dict())


# ---- the errors themselves


def test_one_base_for_all_and_the_usual_bases_besides():
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and e is not errors.NumtransError]
    assert len(kinds) >= 11
    assert all(issubclass(e, errors.NumtransError) for e in kinds)
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DtypeError, TypeError)
    assert issubclass(IndexRangeError, IndexError)
    assert issubclass(BackwardError, RuntimeError)
    assert issubclass(ConfigError, ValueError)


def test_after_an_error_the_model_works():
    model = gpt(dropout=0.0)
    y = model(IDS)
    model.clear()
    for bad in (np.array([[1, 9]]), np.ones((1, 5), int), np.array([[1.5]])):
        with pytest.raises(errors.NumtransError):
            model(bad)
    model.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (model(IDS) == y).all()
    model.backward(y)
    assert model.pending == 0
