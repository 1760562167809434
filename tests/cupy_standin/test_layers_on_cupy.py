"""Every layer, loss and model on the stand-in for CuPy: the NumPy numbers, and no wait for the device.

Sizes are odd, B = 2, and Tq = 3 differs from Tk = 5; masks have a fully masked row.
"""

import dataclasses
import sys

import numpy as np
import pytest

from numtrans import blocks, checkpoint, layers, losses, models, optim
from numtrans.backend import backend_name, to_device
from numtrans.module import no_grad

from .suite import assert_close, is_array, move, randomise, run_both

B, H, TQ, TK, D, DH, V = 2, 2, 3, 5, 6, 3, 7


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rng():
    return np.random.default_rng(5)


MASK = np.random.default_rng(1).random((B, 1, TQ, TK)) > 0.3
MASK[1, 0, 1] = False  # a query with no key left
SQUARE = np.random.default_rng(2).random((B, 1, TQ, TQ)) > 0.3
SQUARE[0, 0, 2] = False
KEYS = np.arange(TK) < np.array([5, 2])[:, None]
IDS = np.array([[1, 1, 0], [6, 1, 6]])
SRC = np.array([[3, 1, 6, 2, 0], [5, 5, 0, 0, 0]])
X, Y = floats(B, TQ, D), floats(B, TK, D, seed=3)
QUERY, KEY, VALUE = floats(B, H, TQ, DH), floats(B, H, TK, DH, seed=3), floats(B, H, TK, 5, seed=4)


@dataclasses.dataclass(frozen=True)
class Case:
    """One module and the arguments of its forward."""

    name: str
    make: object
    inputs: tuple
    kwargs: dict = dataclasses.field(default_factory=dict)


def attention(*args, **kwargs):
    return lambda: layers.MultiHeadAttention(D, H, *args, rng=rng(), **kwargs)


def transformer(**kwargs):
    settings = dict(d_model=D, num_heads=H, d_ff=11, num_encoder_layers=2, num_decoder_layers=2, dropout=0.1, max_len=9)
    return lambda: models.Transformer(models.TransformerConfig(V, V, **{**settings, **kwargs}), rng=3)


def gpt(**kwargs):
    settings = dict(max_len=9, d_model=D, num_heads=H, num_layers=2, d_ff=11, dropout=0.1)
    return lambda: models.GPT(models.GPTConfig(V, **{**settings, **kwargs}), rng=3)


SIZES = dict(d_model=D, num_heads=H, d_ff=11)


def bert(head):
    config = models.BERTConfig(V, 9, num_layers=2, token_types=V, head=head, **SIZES)
    return lambda: models.BERT(config, rng=3)


def t5(**kwargs):
    config = models.T5Config(V, d_kv=5, num_encoder_layers=2, num_decoder_layers=2, **SIZES, **kwargs)
    return lambda: models.T5(config, rng=3)


def llama(**kwargs):
    config = models.LlamaConfig(V, 9, num_layers=2, d_kv=4, dropout=0.1, **SIZES, **kwargs)
    return lambda: models.Llama(config, rng=3)


def vit():
    model = models.ViT(models.ViTConfig(6, 3, 2, 5, num_layers=2, dropout=0.1, **SIZES), rng=3)
    model.head.W.data[...] = floats(*model.head.W.data.shape)  # it starts at 0, which would hide all else
    return model


FLOATING = [
    Case("Linear", lambda: layers.Linear(D, 5, rng=rng()), (X,)),
    Case("Linear without bias", lambda: layers.Linear(D, 5, False, rng=rng()), (X,)),
    Case("TiedLinear", lambda: layers.TiedLinear(layers.Embedding(V, D, rng=rng()).E), (X,)),
    *(Case(name, getattr(layers, name), (X,)) for name in ("ReLU", "SiLU", "Sigmoid", "Tanh", "GELU", "Identity")),
    Case("GELU tanh", lambda: layers.GELU("tanh"), (X,)),
    Case("Dropout", lambda: layers.Dropout(0.4, rng=rng()), (X,)),
    Case("Softmax", layers.Softmax, (X,)),
    Case("Softmax axis 1", lambda: layers.Softmax(axis=1), (X,)),
    Case("LogSoftmax", layers.LogSoftmax, (X,)),
    Case("LayerNorm", lambda: layers.LayerNorm(D), (X,)),
    Case("LayerNorm without bias", lambda: layers.LayerNorm(D, bias=False), (X,)),
    Case("RMSNorm", lambda: layers.RMSNorm(D), (X,)),
    Case("BatchNorm", lambda: layers.BatchNorm(D), (X,)),
    Case("BatchNorm in evaluation", lambda: layers.BatchNorm(D).eval(), (X,)),
    Case("attention", lambda: layers.ScaledDotProductAttention(), (QUERY, KEY, VALUE)),
    Case("attention, masked", lambda: layers.ScaledDotProductAttention(), (QUERY, KEY, VALUE), {"mask": MASK}),
    Case("attention, causal", lambda: layers.ScaledDotProductAttention(causal=True), (QUERY, KEY, VALUE)),
    Case("attention, causal, more queries", lambda: layers.ScaledDotProductAttention(causal=True), (KEY, QUERY)),
    Case("attention, tiles", lambda: layers.ScaledDotProductAttention(0.2, block_size=2, rng=rng()),
         (QUERY, KEY, VALUE), {"mask": MASK}),
    Case("attention, tiles, causal", lambda: layers.ScaledDotProductAttention(causal=True, window=2, block_size=2),
         (QUERY, KEY, VALUE)),
    Case("attention, window", lambda: layers.ScaledDotProductAttention(causal=True, window=2), (QUERY, KEY, VALUE)),
    Case("attention, self", lambda: layers.ScaledDotProductAttention(0.2, rng=rng()), (QUERY,), {"mask": SQUARE}),
    Case("multi-head", attention(), (X, Y, Y), {"mask": MASK}),
    Case("multi-head, self, causal", attention(causal=True, dropout=0.2), (X,), {"mask": SQUARE}),
    Case("multi-head, one key-value head", attention(1), (X, Y), {"mask": MASK}),
    Case("multi-head, d_kv != d_v", attention(d_kv=3, d_v=5, bias=False), (X, Y, Y)),
    Case("multi-head, rope", lambda: attention(position=layers.RotaryPositionalEncoding(4), d_kv=4)(), (X, Y)),
    Case("multi-head, Shaw", lambda: attention(position=layers.ShawRelativePosition(DH, 2, rng=rng()))(), (X, Y)),
    Case("multi-head, T5", lambda: attention(position=layers.T5RelativeBias(H, 4, rng=rng()))(), (X, Y)),
    Case("multi-head, ALiBi", lambda: attention(position=layers.ALiBi(H), causal=True)(), (X, Y)),
    Case("sinusoidal", lambda: layers.SinusoidalPositionalEncoding(D, 2), (X,), {"offset": 1}),
    Case("learned positions", lambda: layers.LearnedPositionalEncoding(D, 9, rng=rng()), (X,), {"offset": 2}),
    Case("sinusoidal, positions", lambda: layers.SinusoidalPositionalEncoding(D, 2), (X,), {"offset": [[0, 0, 1]] * 2}),
    Case(
        "learned positions, one a token",
        lambda: layers.LearnedPositionalEncoding(D, 9, rng=rng()),
        (X,),
        {"offset": [[0, 0, 1], [0, 1, 1]]},
    ),
    Case("rope", lambda: layers.RotaryPositionalEncoding(4, 2), (floats(B, H, TQ, 4), 3)),
    Case(
        "rope, interleaved, partial",
        lambda: layers.RotaryPositionalEncoding(5, interleaved=True, rotary_dim=4),
        (floats(B, H, TQ, 5),),
    ),
    Case("Shaw", lambda: layers.ShawRelativePosition(DH, 2, rng=rng()), (QUERY, TK, 1)),
    Case("FeedForward", lambda: layers.FeedForward(D, 11, "gelu", dropout=0.2, rng=rng()), (X,)),
    *(
        Case(name, lambda name=name: getattr(layers, name)(D, 11, rng=rng()), (X,))
        for name in ("SwiGLU", "GEGLU", "ReGLU")
    ),
    *(
        Case(
            f"Residual, {placement}",
            lambda placement=placement: layers.Residual(layers.Linear(D, D, rng=rng()), layers.LayerNorm(D), placement),
            (X,),
        )
        for placement in ("pre", "post")
    ),
    Case("EncoderLayer", lambda: blocks.EncoderLayer(D, H, 11, dropout=0.1, rng=rng()), (X,), {"mask": SQUARE}),
    Case(
        "EncoderLayer, swiglu, rms",
        lambda: blocks.EncoderLayer(D, H, 11, norm="rms", norm_placement="pre", feedforward="swiglu", rng=rng()),
        (X,),
    ),
    Case("DecoderLayer", lambda: blocks.DecoderLayer(D, H, 11, rng=rng()), (X, Y), {"memory_mask": MASK}),
    Case("DecoderLayer, masked", lambda: blocks.DecoderLayer(D, H, 11, rng=rng()), (X, Y), {"tgt_mask": SQUARE}),
    Case(
        "Checkpoint",
        lambda: layers.Checkpoint(blocks.EncoderLayer(D, H, 11, dropout=0.1, rng=rng())),
        (X,),
        {"mask": SQUARE},
    ),
    Case("Checkpoint, BatchNorm", lambda: layers.Checkpoint(layers.BatchNorm(D)), (X,)),
    Case("Encoder", lambda: blocks.Encoder(2, D, H, 11, norm_placement="pre", rng=rng()), (X,), {"mask": SQUARE}),
    Case("Decoder", lambda: blocks.Decoder(2, D, H, 11, rng=rng()), (X, Y), {"memory_mask": MASK}),
    Case("ViT", vit, (floats(B, 2, 6, 6),)),
    Case("MSELoss", losses.MSELoss, (X, floats(*X.shape, seed=9))),
    *(
        Case(
            f"CrossEntropyLoss, {reduction}, smoothing {smoothing}",
            lambda r=reduction, s=smoothing: losses.CrossEntropyLoss(ignore_index=0, label_smoothing=s, reduction=r),
            (floats(B, TQ, V), IDS),
        )
        for reduction in ("mean", "sum", "none")
        for smoothing in (0.0, 0.1)
    ),
]
# The ids on the device are read back to be checked: these wait.
TOKENS = [
    Case("Embedding", lambda: layers.Embedding(V, D, rng=rng()), (IDS,)),
    Case("Embedding, scaled", lambda: layers.Embedding(V, D, True, rng=rng()), (IDS,)),
    *(Case(f"GPT, {p}", gpt(position=p, d_model=8), (IDS,)) for p in models.configs.POSITIONS),
    Case("GPT, recomputed", lambda: layers.checkpoint_layers(gpt()()), (IDS,)),
    Case("GPT, masked", gpt(), (IDS,), {"mask": SQUARE}),
    Case("GPT, grouped, untied, swiglu", gpt(num_kv_heads=1, tie_output=False, feedforward="swiglu"), (IDS,)),
    *(Case(f"Transformer, {p}", transformer(position=p, d_model=8), (SRC, IDS)) for p in models.configs.POSITIONS),
    Case("Transformer, tied, pre-norm", transformer(tie_embeddings=True, norm_placement="pre"), (SRC, IDS)),
    Case("Transformer, source mask", transformer(), (SRC, IDS), {"src_mask": KEYS}),
    Case("Transformer, target mask", transformer(), (SRC, IDS), {"tgt_mask": SQUARE}),
    *(Case(f"BERT, {head}", bert(head), (SRC, SRC)) for head in models.configs.HEADS),
    Case("BERT, masked", bert("mlm"), (SRC,), {"mask": SRC > 1}),
    Case("T5 1.0", t5(), (SRC, IDS)),
    Case("T5 1.1", t5(feedforward="geglu_tanh", tie_output=False), (SRC, IDS), {"src_mask": SRC > 1}),
    Case("Llama", llama(), (IDS,), {"mask": SQUARE}),
    Case("Llama, grouped queries, window, tied", llama(num_kv_heads=1, sliding_window=2, tie_output=True), (IDS,)),
]
# A mask on the device is counted, which waits, too.
WAITING = [
    Case("BatchNorm, masked", lambda: layers.BatchNorm(D), (X,), {"mask": IDS > 0}),
    Case("rope, positions", lambda: layers.RotaryPositionalEncoding(4), (floats(B, H, TQ, 4), IDS)),
    Case("attention, 0/1 mask", lambda: layers.ScaledDotProductAttention(), (QUERY, KEY), {"mask": MASK.astype(int)}),
]
ALL = [*FLOATING, *TOKENS, *WAITING]


def listed(cases):
    """`cases` as parameters of a test; a fault that is known fails until it is mended, and then its entry goes."""
    for case in cases:
        yield pytest.param(case, id=case.name)


def double(value):
    """`value` with float32 arrays in float64."""
    if is_array(value):
        return value.astype(np.float64) if value.dtype.kind == "f" else value
    if isinstance(value, (tuple, dict)):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        new = {key: double(item) for key, item in pairs}
        return new if isinstance(value, dict) else tuple(new.values())
    return value


@pytest.mark.parametrize("case", [*listed(ALL)])
def test_float32(cupy, case):
    # T5's scores are not scaled: with as much noise as the others have, the softmax saturates, and rounding errors of
    # float32 grow a hundredfold on either backend (in float64 it has that noise)
    noise = 0.1 if case.name.startswith("T5 1") else 0.3
    run_both(case.make, case.inputs, case.kwargs, lambda module: randomise(module, noise=noise))


@pytest.mark.parametrize("case", [*listed(ALL)])
def test_float64(cupy, case):
    run_both(lambda: case.make().astype(np.float64), double(case.inputs), double(case.kwargs))


@pytest.mark.parametrize("case", [*listed(FLOATING)])
def test_forward_and_backward_never_wait_for_the_device(cupy, case):
    assert run_both(case.make, case.inputs, case.kwargs).synchronisations == 0


@pytest.mark.parametrize("case", TOKENS, ids=lambda case: case.name)
def test_models_do_not_wait_when_the_ids_are_on_the_host(cupy, case):
    """The documented way: ids and masks stay NumPy, where they are checked, and are moved by the layers."""
    expected = case.make()(*case.inputs, **case.kwargs)
    module = case.make().to("cupy")
    y = module(*case.inputs, **case.kwargs)
    module.backward(to_device(floats(*y.shape), "cupy"))
    assert cupy.synchronisations() == 0
    assert_close(case.name, y.get(), expected)


def test_every_public_layer_is_covered():
    covered = {type(part).__name__ for case in ALL for part in case.make().modules()}
    public = {name for name in layers.__all__ if isinstance(getattr(layers, name), type)}
    assert public - covered - {"GatedFeedForward", "KVCache"} == set()  # the first by its names, the other below


OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1),
}


def train(make, optimizer, backend, steps=3):
    """A few steps on `backend`, with clipping: the module, the optimizer and the losses."""
    module = make().to(backend)
    steps_of = OPTIMIZERS[optimizer](optim.no_decay(module, 0.1))
    ce = losses.CrossEntropyLoss(ignore_index=0)
    targets = move(IDS, backend)
    values = []
    for _ in range(steps):
        values.append(ce(module(SRC, IDS) if isinstance(module, models.Transformer) else module(IDS), targets))
        module.zero_grad()
        module.backward(ce.backward())
        optim.clip_grad_norm(module.parameters(), 0.5)
        steps_of.step()
    return module, steps_of, values


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [gpt(), transformer()], ids=["GPT", "Transformer"])
def test_training_steps(cupy, optimizer, make):
    expected, state, losses_expected = train(lambda: make().astype(np.float64), optimizer, "numpy")
    module, state_cupy, values = train(lambda: make().astype(np.float64), optimizer, "cupy")
    assert cupy.synchronisations() == 0  # the whole of a step, with the loss left on the device
    assert {backend_name(p.data) for p in module.parameters()} == {"cupy"}
    np.testing.assert_allclose([float(v) for v in values], losses_expected, rtol=1e-10)
    for name, value in expected.state_dict().items():
        np.testing.assert_allclose(module.state_dict()[name], value, rtol=1e-7, atol=1e-9, err_msg=name)
    saved, saved_cupy = state.state_dict(), state_cupy.state_dict()
    assert saved["settings"] == saved_cupy["settings"]
    for name, value in saved["arrays"].items():
        assert isinstance(saved_cupy["arrays"][name], np.ndarray)
        np.testing.assert_allclose(saved_cupy["arrays"][name], value, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    "make", [gpt(), transformer(), lambda: layers.BatchNorm(D)], ids=["GPT", "Transformer", "BatchNorm"]
)
def test_checkpoint_round_trip(cupy, make):
    source = make()
    randomise(source)
    source.to("cupy")
    state = source.state_dict()
    assert all(type(array) is np.ndarray for array in state.values())
    for backend in ("cupy", "numpy"):
        target = make().to(backend)
        target.load_state_dict(state)
        arrays = [p.data for p in target.parameters()] + [b for _, b in target.named_buffers()]
        assert {backend_name(array) for array in arrays} == {backend}
        for name, array in target.state_dict().items():
            np.testing.assert_array_equal(array, state[name], err_msg=name)


def test_checkpoint_file_round_trip(cupy, tmp_path):
    source = gpt()().to("cupy")
    checkpoint.save_weights(source, tmp_path / "model.safetensors", {"steps": 3})
    for backend in ("cupy", "numpy"):
        target = models.GPT(source.config, rng=4).to(backend)
        assert checkpoint.load_weights(target, tmp_path / "model.safetensors") == {"steps": 3}
        for name, array in source.state_dict().items():
            np.testing.assert_array_equal(target.state_dict()[name], array, err_msg=name)


def test_optimizer_state_moves_between_backends(cupy):
    module, optimizer, _ = train(gpt(), "AdamW", "numpy", steps=2)
    module_cupy, optimizer_cupy, _ = train(gpt(), "AdamW", "cupy", steps=1)
    module_cupy.load_state_dict(module.state_dict())
    optimizer_cupy.load_state_dict(optimizer.state_dict())
    module_cupy.to("numpy")  # the optimizer follows at its next step
    for parameter in module_cupy.parameters():
        parameter.grad = np.ones_like(parameter.data)
    for parameter in module.parameters():
        parameter.grad = np.ones_like(parameter.data)
    optimizer.step()
    optimizer_cupy.step()
    for name, array in module.state_dict().items():
        np.testing.assert_array_equal(module_cupy.state_dict()[name], array, err_msg=name)


def test_moving_there_and_back_changes_nothing(cupy):
    module = gpt()()
    before = module.state_dict()
    with no_grad():
        expected = module.eval()(IDS)
        actual = module.to("cupy")(IDS).get()
        module.to("numpy")
        np.testing.assert_array_equal(module(IDS), expected)
    assert_close("logits", actual, expected)
    for name, array in module.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_same_dropout_mask_on_both(cupy):
    x = np.ones((5, 7), np.float32)
    np.testing.assert_array_equal(
        layers.Dropout(0.5, rng=rng())(x), layers.Dropout(0.5, rng=rng())(to_device(x, "cupy")).get()
    )


@pytest.mark.parametrize("position", models.configs.POSITIONS)
def test_cached_steps(cupy, position):
    """Ids, masks and positions stay on the host; no step waits for the device."""
    real = np.array([[False, True, True, True], [True] * 4])
    ids = np.concatenate([IDS, IDS[:, :1]], axis=1)
    found = []
    for backend in ("numpy", "cupy"):
        model = gpt(position=position, d_model=8, num_kv_heads=1)().eval().to(backend)
        cache = model.make_cache(2)
        with no_grad():
            first = model(ids[:, :3], real[:, None, None, :3], cache=cache, positions=real.cumsum(1)[:, :3])
            cache.select([1, 0])
            last = model(ids[::-1, 3:], real[::-1, None, None], cache=cache, positions=real.cumsum(1)[::-1, 3:])
        assert backend_name(cache.own[0].keys) == backend
        assert cupy.synchronisations() == 0
        found.append([to_device(y, "numpy") for y in (first, last)])
    for actual, expected in zip(found[1], found[0]):
        assert_close("logits", actual, expected)


def test_cached_steps_with_a_memory(cupy):
    found = []
    for backend in ("numpy", "cupy"):
        model = transformer()().eval().to(backend)
        cache = model.make_cache()
        with no_grad():
            memory, mask = model.encode(SRC)
            parts = [model.decode(IDS[:, t : t + 1], memory, mask, cache=cache) for t in range(3)]
        found.append([to_device(y, "numpy") for y in parts])
    for actual, expected in zip(found[1], found[0]):
        assert_close("logits", actual, expected)


def test_many_ids_are_summed_by_scatter_addition(cupy, monkeypatch):
    monkeypatch.setattr(sys.modules["numtrans.layers.embedding"], "ONE_HOT_LIMIT", 0)
    monkeypatch.setattr(sys.modules["numtrans.layers.embedding"], "DEVICE_ONE_HOT_LIMIT", 0)
    run_both(lambda: layers.Embedding(V, D, rng=rng()), (IDS,))


@pytest.mark.parametrize("which", ["key", "mask"])
def test_mixing_backends_is_refused_by_name(cupy, which):
    module = attention()()
    if which == "key":
        with pytest.raises(TypeError, match=r"numpy.*cupy|cupy.*numpy"):
            module(X, to_device(Y, "cupy"))
    else:
        with pytest.raises(TypeError, match=r"numpy.*cupy|cupy.*numpy"):
            module(X, Y, mask=to_device(MASK, "cupy"))
