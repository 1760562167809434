"""Operations, saved values and caches against what real forwards and backwards do; the table; no weights are made."""

import tracemalloc

import numpy as np
import pytest
from small_configs import MODELS, small

from numtrans import no_grad
from numtrans.blocks import Decoder, Encoder
from numtrans.errors import ConfigError
from numtrans.inspect import Summary, costs, summary
from numtrans.inspect.summaries import readable
from numtrans.layers import Checkpoint, attention, checkpoint_layers, embedding
from numtrans.layers.kv_cache import StackCache
from numtrans.losses import CrossEntropyLoss
from numtrans.models import BERT, GPT, T5, GPTConfig, Llama, LlamaConfig, Transformer, ViT, preset

B = 2


class Counting(np.ndarray):
    """An array that counts the operations of the matrix products it takes part in, and makes others like it."""

    flops = 0
    __module__ = "numpy"  # by which `get_xp` tells arrays apart

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        plain = [np.asarray(x) if isinstance(x, Counting) else x for x in inputs]
        if ufunc is np.matmul and min(x.ndim for x in plain) > 1:  # a product with a vector of ones is a sum
            rows, columns = np.broadcast_shapes(plain[0].shape[:-2], plain[1].shape[:-2]), plain[1].shape[-1]
            Counting.flops += 2 * int(np.prod(rows)) * int(np.prod(plain[0].shape[-2:])) * columns
        if out is not None:
            kwargs["out"] = tuple(np.asarray(x) for x in out)
        result = getattr(ufunc, method)(*plain, **kwargs)
        if out is not None:
            return out[0]
        return result.view(Counting) if isinstance(result, np.ndarray) else result


def make(model, seed, *, dropout=0.0, tokens=None):
    """A random small model with its inputs (batch B) and the number of tokens."""
    rng = np.random.default_rng(seed)
    config = small(model, rng, dropout)
    T = costs.check_tokens(config, None if model is ViT else min(4, costs.check_tokens(config)))
    if model is ViT:
        return model(config, rng=0), (rng.random((B, config.channels, *2 * [config.image_size]), np.float32),), T
    V = min(size for name, size in vars(config).items() if name.endswith("vocab_size"))
    ids = [rng.integers(1, V, (B, T)) for _ in range(2 if model in (Transformer, T5) else 1)]
    return model(config, rng=0), ids, T


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_operations_are_those_of_a_forward_and_a_backward(model, monkeypatch):
    monkeypatch.setattr(embedding, "ONE_HOT_LIMIT", 0)  # no products with matrices of 0 and 1 for the tables' gradients
    for seed in range(12):
        net, inputs, T = make(model, seed)
        for parameter in net.parameters():
            parameter.data = parameter.data.view(Counting)
        Counting.flops = 0
        y = net(*(x.view(Counting) if model is ViT else x for x in inputs))
        forward = Counting.flops
        s = summary(net.config, T, batch=B)
        assert forward == B * sum(part.value for part in s.flops), net.config
        assert forward == pytest.approx(B * T * s.forward_flops, rel=1e-12)
        net.backward(np.ones_like(y))
        backward = Counting.flops - forward
        if vars(net.config).get("position") != "t5" and model is not T5:  # whose buckets are summed by a product
            assert forward + backward == pytest.approx(B * T * s.training_flops, rel=1e-12), net.config


def saved(module, kinds, owned):
    """Bytes of the arrays of `kinds` on the stacks of `module` and its parts, each once, without those in `owned`."""
    held = {i: array for part in module.modules() for i, array in arrays_in(part._stack)}
    return sum(array.nbytes for i, array in held.items() if array.dtype.kind in kinds and i not in owned)


def arrays_in(value):
    """Yield (id, array) of the arrays in nested tuples and lists; of a view, those of the array that it is of."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_in(item)
    elif isinstance(value, np.ndarray):
        while value.base is not None:
            value = value.base
        yield id(value), value


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@pytest.mark.parametrize("most", [attention.MANY_SCORES, 1])
def test_activation_bytes_are_what_a_forward_saves(model, dropout, most, monkeypatch):
    """Also with attention in tiles, which more than `most` scores call for."""
    monkeypatch.setattr(attention, "MANY_SCORES", most)
    monkeypatch.setattr(attention, "TILE", 1 if most == 1 else attention.TILE)
    for seed in range(8):
        net, inputs, T = make(model, seed, dropout=dropout)
        y = net(*inputs)
        s = summary(net.config, T, batch=B)
        owned = {id(p.data) for p in net.parameters()}
        for part in net.modules():  # RoPE's tables, which are there once and do not grow with the batch
            owned |= {id(table) for pair in getattr(part, "_tables", {}).values() for table in pair}
        floats, booleans = saved(net, "f", owned), saved(net, "b", owned)
        if y.ndim == 3 or model is ViT:
            loss = CrossEntropyLoss()
            if getattr(net.config, "head", "") != "none":
                loss(y, np.zeros(y.shape[:-1], int))
                floats += saved(loss, "f", set())
        assert (floats, booleans) == (
            B * 4 * sum(part.value for part in s.activations), B * sum(part.value for part in s.masks)
        ), net.config  # fmt: skip
        assert s.activation_bytes == floats + booleans


@pytest.mark.parametrize(("T", "dropout", "weights"), [(64, 0.0, 64 * 64), (65, 0.0, 64 * 64 + 65),
                         (150, 0.0, 64 * 64 + 64 * 128 + 22 * 150), (150, 0.5, 2 * 150 * 150)])  # fmt: skip
def test_causal_weights_that_are_saved(T, dropout, weights):
    """By hand: 64 queries meet 64 keys, the next ones 128, the rest all; with dropout all, before it and after."""
    config = LlamaConfig(7, T, d_model=4, num_heads=2, num_layers=3, d_ff=3, dropout=dropout)
    net = Llama(config, rng=0)
    net(np.ones((B, T), int))
    (part,) = [part for part in costs.activation_parts(config, T, B) if part.name == "attention"]
    assert part.value == 3 * (T * 4 + 4 * T * 4 + 2 * weights)
    stacks = [layer.self_attention.sublayer.attention._stack for layer in net.layers.layers]
    found = sum(array.nbytes for _, array in dict(arrays_in(stacks)).items() if array.shape[-1] not in (2, 4))
    assert found == 4 * B * 3 * 2 * weights


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_recompute_bytes_are_what_is_there_when_a_layer_is_computed_again(model, dropout):
    """After the forward, and when the backward of the first layer to come begins, the head's part being gone."""
    for seed in range(4):
        net, inputs, T = make(model, seed, dropout=dropout)
        stack = [part for part in checkpoint_layers(net).modules() if isinstance(part, (Encoder, Decoder))][-1]
        layer, found = stack.layers[-1].module, []
        owned = {id(p.data) for p in net.parameters()}

        on_stack = layer.self_attention.placement == "post"  # among what the layer saves

        def look(dy, layer=layer, net=net, owned=owned, found=found, on_stack=on_stack, T=T):
            own = 0 if on_stack else 4 * B * T * net.config.d_model  # its input, which the running backward holds
            found.append((saved(net, "f", owned) + own, saved(net, "b", owned)))
            return type(layer).backward(layer, dy)

        layer.backward = look
        y = net(*inputs)
        for part in net.modules():  # RoPE's tables, and masks of padding, made once for all layers
            owned |= {id(table) for pair in getattr(part, "_tables", {}).values() for table in pair}
            if isinstance(part, Checkpoint):
                owned |= {i for i, array in arrays_in(part._stack) if array.dtype == bool}
        found.append((saved(net, "f", owned), saved(net, "b", owned)))
        net.backward(np.ones_like(y))
        floats, masks = (f(net.config, T, B, recompute=True) for f in (costs.activation_parts, costs.mask_parts))
        last = "decoder closing norm" if model in (Transformer, T5) else "closing norm"
        head = ("output", "head", "pooler", "masked-LM head", last)
        for at, without in zip(found, ("of one layer", head)):
            expected = [
                size * B * sum(p.value for p in parts if p.name != "loss" and not p.name.endswith(without))
                for size, parts in ((4, floats), (1, masks))
            ]
            if model is T5 and dropout and without == head:  # it drops some of the last output, too
                expected[1] -= B * T * net.config.d_model
            assert list(at) == expected, (net.config, without)
        total = sum(4 * part.value for part in floats) + sum(part.value for part in masks)
        assert summary(net.config, T, B).recompute_bytes == B * total


@pytest.mark.parametrize("model", [GPT, Llama, Transformer, T5], ids=lambda model: model.__name__)
def test_cache_bytes_are_those_of_a_real_cache(model):
    for seed in range(8):
        net, _, T = make(model, seed)
        pair = model in (Transformer, T5)
        layers = net.decoder.layers if pair else net.layers.layers
        cache = StackCache(len(layers), cross=pair, capacity=T)
        x = [np.zeros((B, T, net.config.d_model), np.float32) for _ in range(2 if pair else 1)]
        with no_grad():
            for layer, part in zip(layers, cache.layers):
                for attention, own in zip(
                    [layer.self_attention.sublayer, *([layer.cross_attention.sublayer] if pair else [])],
                    part if pair else [part],
                ):
                    attention(x[0], *(x[1:] if own.fixed else ()), cache=own)
        s = summary(net.config, T, batch=B)
        assert s.cache_bytes() == cache.nbytes, net.config
        assert s.cache_bytes("float16") == cache.nbytes // 2 == B * T * s.cache_bytes_per_token("float16")


def test_grouped_queries_need_less():
    s = summary("smollm2-135m", tokens=1000)
    assert s.cache_bytes_per_token() == 30 * 2 * 3 * 64 * 4  # layers, keys and values, 3 heads of 64
    full = summary(LlamaConfig(**{**vars(preset("smollm2-135m")), "num_kv_heads": 9}), tokens=1000)
    assert full.cache_bytes() == 3 * s.cache_bytes()
    assert summary("llama-7b").cache_bytes_per_token("float16") == 2 * 32 * 4096 * 2  # half a MiB
    assert summary("bert-base").cache_bytes() == summary("vit-base").cache_bytes() == 0


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-xl", "llama-7b"])
def test_kaplan(name):
    """2 N + 2 L T D for N without embeddings, and without the output, and with half of the scores (causal)."""
    c, s = preset(name), summary(name)
    L, T, D = c.num_layers, s.tokens, c.d_model
    N = L * (4 * D * D + (3 if name == "llama-7b" else 2) * D * c.d_ff)
    if name != "llama-7b":
        assert N == 12 * L * D * D  # as they write
    output = 2 * c.vocab_size * D
    assert s.forward_flops - output - s.attention_flops / 2 == 2 * N + 2 * L * T * D
    assert s.training_flops == 3 * s.forward_flops


def test_operations_of_transformers():
    """GPT-2 and BERT of transformers on the meta device, counted by PyTorch."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    T = 48
    with torch.device("meta"):
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation="eager"))
        bert = transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))
        ids = torch.zeros((B, T), dtype=torch.long)
    for name, model in (("gpt2", gpt2), ("bert-base", bert)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=ids, attention_mask=None)
        assert counter.get_total_flops() == sum(part.value for part in summary(name, T).flops) * B


def test_no_weights_are_made():
    str(summary("gpt2"))  # imports
    tracemalloc.start()
    try:
        text = str(summary("llama-13b", tokens=2048, batch=8))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "13,015,864,320 parameters" in text
    assert peak < 1e6


def test_the_table():
    lines = {" ".join(line.split()) for line in str(summary("gpt2", tokens=1024, batch=8)).splitlines()}
    forward = 2 * 12 * 12 * 768**2 + 4 * 12 * 1024 * 768 + 2 * 50257 * 768
    assert {
        "gpt2: 124,439,808 parameters",
        "attention L (4 D^2 + 4 D) 28,348,416",
        "feed-forward L (2 D F + F + D) 56,669,184",
        "token table V D 38,597,376",
        "attention, scores and averages 4 T L D 37,748,736",
        f"forward {forward:,}",
        f"training step 3 x forward {3 * forward:,}",
        "weights 498 MB 249 MB 124 MB",
        "key-value cache, a token of the text 2 L D 73.73 kB 36.86 kB 18.43 kB",
        "key-value cache, 8 x 1,024 604 MB 302 MB 151 MB",
    } <= lines
    assert isinstance(summary(GPTConfig(5)), Summary)
    assert str(summary(GPTConfig(5))).startswith("GPTConfig: ")


@pytest.mark.parametrize("name", ["t5-base", "bert-base", "vit-tiny", "smollm2-135m", "transformer-big"])
def test_formulas_a_token_have_the_numbers_beside_them(name):
    """Each line of the table of operations, read again."""
    from numtrans.models.counts import architecture, evaluate

    s = summary(name)
    sizes = {**architecture(name).sizes, "T": s.tokens}
    lines = str(s).split("FLOPs of a forward, a token\n")[1].splitlines()[: len(s.flops)]
    for line, part in zip(lines, s.flops):
        assert line.startswith(f"  {part.name} ")
        formula, number = line.removeprefix(f"  {part.name}").strip().rsplit("  ", 1)
        formula, over, _ = formula.partition(" / T")
        value = evaluate(formula, sizes) / (s.tokens if over else 1)
        assert number.strip() == f"{value:,.0f}"


def test_lengths():
    assert summary("gpt2").tokens == 1024
    assert summary("t5-small").tokens == summary("transformer-base").tokens == 512
    assert summary("vit-base").tokens == 14 * 14 + 1
    assert summary("t5-small", 100_000).tokens == 100_000
    for name, tokens, message in (
        ("gpt2", 1025, "tokens=1025, expected at least 1 and at most max_len=1024"),
        ("t5-small", 0, "tokens=0, expected at least 1"),
        ("vit-base", 196, "tokens=196, but an image of ViTConfig makes 197"),
    ):
        with pytest.raises(ConfigError, match=message):
            summary(name, tokens)
    with pytest.raises(ConfigError, match="batch=0"):
        summary("gpt2", batch=0)
    with pytest.raises(ConfigError, match="dtype is 'float8'"):
        summary("gpt2").weight_bytes("float8")
    assert summary(BERT(small(BERT, np.random.default_rng(0)), rng=0).config).parameters > 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (123_456, "123 kB"), (53e9, "53.00 GB"), (2.5e12, "2.50 TB")],
)
def test_readable_bytes(count, text):
    assert readable(count) == text
