"""The protocol of `Module`: what every layer and model promises, and the base class itself."""

import copy
import gc
import threading
import weakref

import numpy as np
import pytest
from helpers import generic, normal

from numtrans import layers as nl
from numtrans.blocks import Decoder, DecoderLayer, Encoder, EncoderLayer
from numtrans.errors import BackwardError, StateDictError
from numtrans.layers.activations import ACTIVATIONS, make_activation
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
    ViT,
    ViTConfig,
)  # fmt: skip
from numtrans.module import Module, Parameter, grad_enabled, no_grad


def transformer(**options):
    sizes = dict(d_model=4, num_heads=2, d_ff=6, num_encoder_layers=1, num_decoder_layers=1, dropout=0.2)
    return Transformer(TransformerConfig(7, 7, **(sizes | options)), rng=0)


def gpt(**options):
    return GPT(GPTConfig(7, **(dict(max_len=5, d_model=4, num_heads=2, num_layers=2, dropout=0.2) | options)), rng=0)


X, MEMORY = normal(2, 3, 4), normal(2, 2, 4, seed=1)
HEADS, IDS = normal(2, 2, 3, 4), np.array([[1, 2, 2], [4, 6, 0]])
MASK = np.array([[[[True, False, True]]], [[[True, True, True]]]])
TABLE = nl.Embedding(7, 4)

CASES = {  # name: (makes the module, inputs, keyword arguments)
    **{name: (lambda name=name: make_activation(name), (X,), {}) for name in ACTIVATIONS},
    "Linear": (lambda: nl.Linear(4, 5), (X,), {}),
    "TiedLinear": (lambda: nl.TiedLinear(copy.deepcopy(TABLE.E)), (X,), {}),
    "Embedding": (lambda: nl.Embedding(7, 4, scale=True), (IDS,), {}),
    "Dropout": (lambda: nl.Dropout(0.4), (X,), {}),
    "Softmax": (nl.Softmax, (X,), {}),
    "Softmax axis 1": (lambda: nl.Softmax(1), (X,), {}),
    "LogSoftmax": (nl.LogSoftmax, (X,), {}),
    "LayerNorm": (lambda: nl.LayerNorm(4), (X,), {}),
    "RMSNorm": (lambda: nl.RMSNorm(4), (X,), {}),
    "BatchNorm": (lambda: nl.BatchNorm(4), (X,), {"mask": MASK[:, 0, 0]}),
    "Sinusoidal": (lambda: nl.SinusoidalPositionalEncoding(4), (X,), {}),
    "Learned": (lambda: nl.LearnedPositionalEncoding(4, 5), (X,), {"offset": 1}),
    "Rotary": (lambda: nl.RotaryPositionalEncoding(4), (HEADS,), {}),
    "attention": (lambda: nl.ScaledDotProductAttention(0.3), (HEADS,), {"mask": MASK}),
    "attention of three": (nl.ScaledDotProductAttention, (HEADS, HEADS + 1, HEADS + 2), {}),
    "MultiHead": (lambda: nl.MultiHeadAttention(4, 2, dropout=0.3), (X,), {"mask": MASK}),
    "MultiHead of two": (lambda: nl.MultiHeadAttention(4, 2, 1, causal=True), (X, MEMORY), {}),
    "MultiHead of three": (lambda: nl.MultiHeadAttention(4, 2), (X, MEMORY, MEMORY + 1), {}),
    "MultiHead rope": (
        lambda: nl.MultiHeadAttention(4, 2, position=nl.RotaryPositionalEncoding(2)), (X,), {"mask": MASK},
    ),
    "MultiHead shaw": (lambda: nl.MultiHeadAttention(4, 2, position=nl.ShawRelativePosition(2, 2)), (X,), {}),
    "MultiHead t5": (lambda: nl.MultiHeadAttention(4, 2, position=nl.T5RelativeBias(2)), (X,), {}),
    "MultiHead alibi": (lambda: nl.MultiHeadAttention(4, 2, position=nl.ALiBi(2)), (X,), {}),
    "FeedForward": (lambda: nl.FeedForward(4, 6, dropout=0.3), (X,), {}),
    "SwiGLU": (lambda: nl.SwiGLU(4, 6, dropout=0.3), (X,), {}),
    "Residual pre": (lambda: nl.Residual(nl.Linear(4, 4), nl.LayerNorm(4), "pre", dropout=0.3), (X,), {}),
    "Residual post": (lambda: nl.Residual(nl.Linear(4, 4), nl.LayerNorm(4), "post", dropout=0.3), (X,), {}),
    "EncoderLayer": (lambda: EncoderLayer(4, 2, 6, dropout=0.2), (X,), {"mask": MASK}),
    "DecoderLayer": (lambda: DecoderLayer(4, 2, 6, dropout=0.2, norm_placement="pre"), (X, MEMORY), {}),
    "Encoder": (lambda: Encoder(2, 4, 2, 6, norm_placement="pre", position="t5"), (X,), {}),
    "Decoder": (lambda: Decoder(2, 4, 2, 6, position="shaw"), (X, MEMORY), {}),
    "Transformer": (transformer, (IDS, IDS), {}),
    "GPT": (gpt, (IDS,), {}),
    "BERT pooled": (lambda: BERT(BERTConfig(7, 5, 4, 2, 1, 6), rng=0), (IDS, IDS // 4), {}),
    "BERT mlm": (lambda: BERT(BERTConfig(7, 5, 4, 2, 1, 6, head="mlm"), rng=0), (IDS,), {"mask": MASK[:, 0, 0]}),
    "T5": (lambda: T5(T5Config(7, 4, 3, 2, 6, 2, 2), rng=0), (IDS, IDS), {}),
    "Llama": (lambda: Llama(LlamaConfig(7, 5, 4, 2, 2, 6, 1, dropout=0.2), rng=0), (IDS,), {"mask": MASK}),
    "ViT": (lambda: ViT(ViTConfig(4, 2, 1, 3, 4, 2, 1, 6, dropout=0.2), rng=0), (normal(2, 1, 4, 4),), {}),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def build(case, dtype=np.float64):
    """(module, inputs, keyword arguments, dy); the inputs cannot be written into."""
    make, inputs, kwargs = CASES[case]
    module = generic(make(), dtype=dtype)
    for i, part in enumerate(module.modules()):
        if hasattr(part, "key"):
            part.key = i  # the same masks in every run
    inputs = tuple(locked(x.astype(dtype) if x.dtype.kind == "f" else x.copy()) for x in inputs)
    kwargs = {k: locked(v.copy()) if hasattr(v, "copy") else v for k, v in kwargs.items()}
    with no_grad():
        counters = module.random_state()
        y = module(*inputs, **kwargs)
        module.load_random_state(counters)
    return module, inputs, kwargs, locked(normal(*y.shape, seed=7, dtype=dtype))


def locked(array):
    array.flags.writeable = False
    return array


def as_tuple(gradients):
    return gradients if isinstance(gradients, tuple) else () if gradients is None else (gradients,)


def run(case, dtype=np.float64):
    """(module, y, input gradients) after one forward and backward."""
    module, inputs, kwargs, dy = build(case, dtype)
    y = module(*inputs, **kwargs)
    return module, y, as_tuple(module.backward(dy))


# ---- what every layer and model promises


@cases
@dtypes
def test_dtype_and_shapes(case, dtype):
    module, inputs, kwargs, dy = build(case, dtype)
    y = module(*inputs, **kwargs)
    gradients = as_tuple(module.backward(dy))
    floating = [x for x in inputs if x.dtype.kind == "f"]
    assert y.dtype == dtype
    assert [(g.shape, g.dtype) for g in gradients] == [(x.shape, x.dtype) for x in floating]
    for name, p in module.named_parameters():
        assert (p.grad.shape, p.grad.dtype) == (p.data.shape, dtype), name
    assert {buffer.dtype for _, buffer in module.named_buffers()} <= {np.dtype(dtype)}
    assert all(np.isfinite(a).all() for a in (y, *gradients))


@cases
def test_nothing_given_is_written_into(case):
    module, inputs, kwargs, dy = build(case)  # locked: a write raises
    parameters = {name: locked(p.data).tobytes() for name, p in module.named_parameters()}
    before = [a.tobytes() for a in (*inputs, dy)]
    y = module(*inputs, **kwargs)
    y_before = y.tobytes()
    module.backward(dy)
    assert [a.tobytes() for a in (*inputs, dy)] == before
    assert y.tobytes() == y_before
    assert {name: p.data.tobytes() for name, p in module.named_parameters()} == parameters


@cases
def test_nothing_kept_is_written_into_later(case):
    module, inputs, kwargs, dy = build(case)
    y = module(*inputs, **kwargs)
    gradients = as_tuple(module.backward(dy))
    kept = [a.copy() for a in (y, *gradients)]
    for _ in range(2):
        module(*inputs, **kwargs)
        module.backward(dy)
    for a, b in zip((y, *gradients), kept):
        np.testing.assert_array_equal(a, b)


@cases
def test_float32_agrees_with_float64(case):
    (_, y, gradients), (_, y32, gradients32) = run(case), run(case, np.float32)
    for a, b in zip((y, *gradients), (y32, *gradients32)):
        assert np.linalg.norm(a - b) <= 2e-5 * np.linalg.norm(a) + 1e-6


@cases
def test_pending_and_a_second_backward(case):
    module, inputs, kwargs, dy = build(case)
    assert module.pending == 0
    with pytest.raises(BackwardError, match="without a pending forward"):
        module.backward(dy)
    module(*inputs, **kwargs)
    assert module.pending > 0
    module.backward(dy)
    assert module.pending == 0
    with pytest.raises(BackwardError, match="without a pending forward"):
        module.backward(dy)


@cases
def test_two_forwards_then_two_backwards_in_reverse(case):
    module, inputs, kwargs, dy = build(case)
    others = tuple(locked(x * 2 - 1) if x.dtype.kind == "f" else locked(x[::-1].copy()) for x in inputs)
    dy2 = locked(dy[::-1].copy() + 1)
    counters = module.random_state()

    def single(x, d):
        module(*x, **kwargs)
        return as_tuple(module.backward(d))

    expected = [single(inputs, dy), single(others, dy2)]  # their parameter gradients add up as well
    grads = {name: p.grad.copy() for name, p in module.named_parameters()}
    module.zero_grad()
    module.load_random_state(counters)
    module(*inputs, **kwargs)
    module(*others, **kwargs)
    found = [as_tuple(module.backward(dy2)), as_tuple(module.backward(dy))][::-1]
    for a, b in zip(found, expected):
        for g, e in zip(a, b):
            np.testing.assert_allclose(g, e, rtol=1e-10, atol=1e-12)
    for name, p in module.named_parameters():
        np.testing.assert_allclose(p.grad, grads[name], rtol=1e-9, atol=1e-11, err_msg=name)
    assert module.pending == 0


@cases
def test_gradients_accumulate(case):
    module, inputs, kwargs, dy = build(case)
    counters = module.random_state()
    for times in (1, 2, 3):
        module.load_random_state(counters)
        module(*inputs, **kwargs)
        module.backward(dy)
        if times == 1:
            once = {name: p.grad.copy() for name, p in module.named_parameters()}
        for name, p in module.named_parameters():
            np.testing.assert_allclose(p.grad, times * once[name], rtol=1e-12, atol=1e-13, err_msg=name)
    module.zero_grad()
    assert all(p.grad is None for p in module.parameters())


@cases
def test_no_grad_saves_nothing(case):
    module, inputs, kwargs, dy = build(case)
    counters = module.random_state()
    with no_grad():
        y = module(*inputs, **kwargs)
    assert module.pending == 0
    with pytest.raises(BackwardError):
        module.backward(dy)
    module.load_random_state(counters)
    assert (module(*inputs, **kwargs) == y).all()


@cases
def test_clear(case):
    module, inputs, kwargs, dy = build(case)
    module(*inputs, **kwargs)
    module(*inputs, **kwargs)
    module.clear()
    assert module.pending == 0
    assert all(getattr(m, name) is None for m in module.modules() for name in m.transient)
    with pytest.raises(BackwardError):
        module.backward(dy)


@cases
def test_deepcopy_is_independent(case):
    module, inputs, kwargs, dy = build(case)
    twin = copy.deepcopy(module)
    y, y_twin = module(*inputs, **kwargs), twin(*inputs, **kwargs)
    assert (y == y_twin).all()
    twin.backward(dy)
    assert all(p.grad is None for p in module.parameters())
    assert not {id(p) for p in module.parameters()} & {id(p) for p in twin.parameters()}
    assert not any(np.shares_memory(a.data, b.data) for a, b in zip(module.parameters(), twin.parameters()))
    assert len(twin.parameters()) == len(module.parameters())  # ties are kept
    module.backward(dy)
    for (name, a), b in zip(module.named_parameters(), twin.parameters()):
        assert (a.grad == b.grad).all(), name


@cases
def test_state_dict_round_trip(case):
    module, inputs, kwargs, _ = build(case)
    other = generic(CASES[case][0](), seed=5)
    other.load_state_dict(module.state_dict())
    other.load_random_state(module.random_state())
    for a, b in zip(module.modules(), other.modules()):
        if hasattr(a, "key"):
            b.key = a.key
    assert (other(*inputs, **kwargs) == module(*inputs, **kwargs)).all()


@cases
def test_evaluation_is_deterministic_and_backward_works(case):
    module, inputs, kwargs, dy = build(case)
    module.eval()
    y, again = module(*inputs, **kwargs), module(*inputs, **kwargs)
    assert (y == again).all()
    first, second = as_tuple(module.backward(dy)), as_tuple(module.backward(dy))
    assert all((a == b).all() for a, b in zip(first, second))
    assert all(m.counter == 0 for m in module.modules() if isinstance(m, nl.Dropout))


@pytest.mark.parametrize("case", [c for c in CASES if build(c)[0].parameters()])
def test_frozen_parameters_get_no_gradient(case):
    module, inputs, kwargs, dy = build(case)
    module(*inputs, **kwargs)
    expected = as_tuple(module.backward(dy))
    assert all(p.grad is not None for p in module.parameters())
    module.load_random_state(dict.fromkeys(module.random_state(), 0))
    module.freeze()
    module(*inputs, **kwargs)
    found = as_tuple(module.backward(dy))
    assert all(p.grad is None for p in module.parameters())
    assert all((a == b).all() for a, b in zip(found, expected))  # what goes through is the same
    module.unfreeze()
    module(*inputs, **kwargs)
    module.backward(dy)
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("case", [c for c in CASES if build(c)[0].random_state()])
def test_random_state_draws_the_same_masks_again(case):
    module, inputs, kwargs, _ = build(case)
    module(*inputs, **kwargs)
    state = module.random_state()
    first, second = module(*inputs, **kwargs), module(*inputs, **kwargs)
    if any(m.p for m in module.modules() if isinstance(m, nl.Dropout)):
        assert (first != second).any()
    module.load_random_state(state)
    assert (module(*inputs, **kwargs) == first).all()
    assert (module(*inputs, **kwargs) == second).all()


# ---- the base class


class Twice(Module):
    """A layer that is used twice in one pass: y = L(L(x))."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(self.inner(x))

    def backward(self, dy):
        return self.inner.backward(self.inner.backward(dy))


@pytest.mark.parametrize("make", [lambda: nl.Linear(4, 4), lambda: nl.FeedForward(4, 6, "gelu"), lambda: nl.RMSNorm(4)])
def test_a_shared_layer_is_right(make):
    shared, x, dy = generic(make()), X, normal(2, 3, 4, seed=3)
    first, second = copy.deepcopy(shared), copy.deepcopy(shared)
    twice = Twice(shared)
    np.testing.assert_array_equal(twice(x), second(first(x)))
    np.testing.assert_array_equal(twice.backward(dy), first.backward(second.backward(dy)))
    for p, a, b in zip(twice.parameters(), first.parameters(), second.parameters()):
        np.testing.assert_allclose(p.grad, a.grad + b.grad, rtol=1e-13)


def test_no_grad_nests_and_ends_with_an_error():
    assert grad_enabled()
    with no_grad():
        with no_grad():
            assert not grad_enabled()
        assert not grad_enabled()
    assert grad_enabled()
    with pytest.raises(KeyError), no_grad():
        raise KeyError
    assert grad_enabled()


def test_no_grad_is_a_matter_of_the_thread():
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(grad_enabled()))
        thread.start()
        thread.join()
        assert not grad_enabled()
    assert seen == [True]


def test_named_parameters_in_order_and_tied_ones_once():
    model = transformer(tie_embeddings=True)
    names = [name for name, _ in model.named_parameters()]
    tables = [name for name in names if name.endswith(".E")]
    assert tables == ["src_embedding.embedding.E"]
    assert names[0] == tables[0]
    assert len(names) == len(set(names)) == len({id(p) for p in model.parameters()})
    assert model.num_parameters() == sum(p.data.size for p in model.parameters())
    assert set(model.state_dict()) == set(names)
    untied = transformer(tie_output=False)
    assert untied.num_parameters() == model.num_parameters() + 7 * 4 + (4 * 7 + 7)  # target table; projection


def test_parts_in_lists_are_found():
    encoder = Encoder(3, 4, 2, 6)
    paths = [path for path, _ in encoder.named_modules()]
    assert paths[0] == ""
    assert {"layers.0", "layers.1", "layers.2", "layers.2.self_attention.sublayer.attention.dropout"} <= set(paths)
    assert "layers.1.feedforward.sublayer.linear1.W" in encoder.state_dict()
    shared = Encoder(3, 4, 2, 6, position="t5")
    assert sum(isinstance(m, nl.T5RelativeBias) for m in shared.modules()) == 1


def test_parameter_takes_the_name_of_its_first_attribute():
    p = Parameter(np.zeros(2))
    module = Module()
    module.first = p
    module.second = p
    assert p.name == "first"
    assert [name for name, _ in module.named_parameters()] == ["first"]
    assert repr(p) == "Parameter(first, shape=(2,), dtype=float64)"


def test_state_dict_copies():
    layer = nl.BatchNorm(3)
    state = layer.state_dict()
    for array in state.values():
        array += 7
    assert all((value != state[name]).all() for name, value in layer.state_dict().items())
    layer.load_state_dict(state)
    for array in state.values():
        array += 1
    assert all((value != state[name]).all() for name, value in layer.state_dict().items())


def test_load_state_dict_converts_the_dtype_and_keeps_the_parameters():
    layer = nl.Linear(2, 3)
    before = layer.parameters()
    layer.load_state_dict({"W": normal(2, 3), "b": np.arange(3)})
    assert [p.data.dtype for p in layer.parameters()] == [np.float32, np.float32]
    assert all(a is b for a, b in zip(before, layer.parameters()))
    np.testing.assert_array_equal(layer.b.data, [0, 1, 2])


def test_load_state_dict_lists_all_problems_and_changes_nothing():
    layer = nl.Residual(nl.FeedForward(2, 3), nl.BatchNorm(2))
    before, state = layer.state_dict(), {name: a + 1 for name, a in layer.state_dict().items()}
    del state["norm.gamma"], state["norm.running_var"]
    state["sublayer.linear1.W"] = np.zeros((3, 2))
    state["sublayer.linear2.b"] = np.zeros(())
    state["sublayer.linear3.W"] = state["head"] = np.zeros(1)
    with pytest.raises(StateDictError) as caught:
        layer.load_state_dict(state)
    message = str(caught.value)
    for line in (
        "Residual: state dict does not fit",
        "missing: norm.gamma",
        "missing: norm.running_var",
        "unexpected: sublayer.linear3.W",
        "unexpected: head",
        "wrong shape: sublayer.linear1.W is (3, 2), expected (2, 3)",
        "wrong shape: sublayer.linear2.b is (), expected (2,)",
    ):
        assert line in message
    assert all((a == before[name]).all() for name, a in layer.state_dict().items())


def test_astype_keeps_ties_gradients_and_buffers():
    model = transformer(tie_embeddings=True)
    model.norm = nl.BatchNorm(4)
    model(IDS, IDS)
    model.backward(np.ones((2, 3, 7), np.float32))
    parameters = model.parameters()
    assert model.astype(np.float64) is model
    assert all(a is b for a, b in zip(parameters, model.parameters()))
    assert model.output.E is model.src_embedding.embedding.E
    assert {p.data.dtype for p in parameters} == {np.dtype(np.float64)}
    assert {p.grad.dtype for p in parameters if p.grad is not None} == {np.dtype(np.float64)}
    assert model.norm.running_var.dtype == np.float64
    assert model(IDS, IDS).dtype == np.float64


def test_astype_leaves_integer_buffers():
    module = Module()
    module.register_buffer("steps", np.zeros(1, np.int64))
    module.astype(np.float32)
    assert module.steps.dtype == np.int64
    assert set(module.state_dict()) == {"steps"}


def test_to_numpy_changes_nothing():
    layer = nl.Linear(2, 3)
    data = layer.W.data
    assert layer.to("numpy") is layer
    assert layer.W.data is data


def test_train_and_eval_reach_nested_dropout():
    model = transformer()
    dropouts = [m for m in model.modules() if isinstance(m, nl.Dropout)]
    assert len(dropouts) >= 10
    assert model.eval() is model
    assert not any(m.training for m in dropouts)
    assert model.train() is model
    assert all(m.training for m in dropouts)
    model.encoder.eval()
    assert not model.encoder.layers[0].self_attention.dropout.training
    assert model.decoder.layers[0].self_attention.dropout.training


def test_random_state_is_by_path():
    model = transformer()
    model(IDS, IDS)
    state = model.random_state()
    assert len(state) == sum(isinstance(m, nl.Dropout) for m in model.modules())
    assert set(state.values()) == {1}
    other = transformer()
    other.load_random_state({**state, "no.such.part": 3})
    assert other.random_state() == state


def test_first_gradient_is_kept_and_the_next_is_added():
    p = Parameter(np.zeros(3), "p")
    first = np.ones(3)
    p.add_grad(first)
    assert p.grad is first
    p.add_grad(np.full(3, 2.0))
    np.testing.assert_array_equal(p.grad, [3, 3, 3])


def test_a_returned_gradient_is_not_the_one_that_is_kept():
    """A second backward must not change the input gradient of the first, nor dy change with the parameter gradients."""
    for case in CASES:
        module, inputs, kwargs, dy = build(case)
        module(*inputs, **kwargs)
        returned = (*as_tuple(module.backward(dy)), dy, *inputs)
        for name, p in module.named_parameters():
            assert not any(np.shares_memory(p.grad, a) for a in returned), (case, name)
        grads = [p.grad for p in module.parameters()]
        assert not any(np.shares_memory(a, b) for i, a in enumerate(grads) for b in grads[:i]), case


def test_forward_and_backward_are_to_be_written():
    with pytest.raises(TypeError, match="Module does not define forward"):
        Module()(X)
    with pytest.raises(TypeError, match="Module does not define backward"):
        Module().backward(X)


def test_a_model_that_nobody_holds_is_gone_at_once():
    """Without a cycle of references its arrays are freed with it, not when the garbage collector comes by."""
    model = gpt()
    y = model(IDS)
    model.backward(np.ones_like(y))
    model.parameters(), model.modules(), model.state_dict(), model.random_state()
    watched = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert watched() is None
    finally:
        gc.enable()
