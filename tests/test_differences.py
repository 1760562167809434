"""docs/differences.md: each row is shown here, by the test of its name."""

import inspect
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import generic, normal
from huggingface import generic_weights, in_float64
from safetensors.numpy import load_file

from numtrans.blocks import Decoder, Encoder, EncoderLayer
from numtrans.errors import DtypeError, NonFiniteError
from numtrans.generation import beam_search, generate
from numtrans.layers import (
    GELU,
    Dropout,
    Embedding,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    RotaryPositionalEncoding,
    ScaledDotProductAttention,
    SinusoidalPositionalEncoding,
    TiedLinear,
    causal_mask,
)
from numtrans.losses import CrossEntropyLoss
from numtrans.models import BERTConfig, GPTConfig, LlamaConfig, ViT, ViTConfig
from numtrans.module import Parameter
from numtrans.optim import Adam, AdamW, clip_grad_norm, no_decay, warmup_linear
from numtrans.pretrained import from_pretrained, load_torch_state_dict

PAGE = Path(__file__).parents[1] / "docs" / "differences.md"
SIZES = dict(B=2, T=5, heads=2, seed=1, d=3, d_ff=5, mask="none", vocab=7, layers=2, eps=1e-5)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def hf(torch, monkeypatch):
    """`transformers`, computing in float64 (see huggingface.py)."""
    return in_float64(monkeypatch, "bert", "gpt2", "t5", "llama", "vit")[1]


def same(a, b, rtol=1e-10):
    b = b.detach().numpy() if hasattr(b, "detach") else b
    np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-13)


def differs(a, b, by=1e-3):
    b = b.detach().numpy() if hasattr(b, "detach") else b
    assert np.abs(a - b).max() > by


def of_torch(module, theirs):
    """`module` with the weights of `theirs`, in float64 and evaluation mode."""
    return load_torch_state_dict(module.astype(np.float64).eval(), theirs.state_dict())


def model(name, **options):
    """(ours, theirs) of `transformers`, small, with the same weights."""
    from parity import huggingface_checks

    defaults = dict(activation="gelu", version="1.0", Tk=6, d_model=6, buckets=8, decoder_layers=2, groups=2, pairs=2,
                    tied=False, base=100.0)  # fmt: skip
    return getattr(huggingface_checks, name)(SIZES | defaults | options)[:2]


# ---- the page


TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`[a-z0-9-]+` .*) \|$", TEXT, flags=re.M)
IDS = [row.split("`")[1] for row in ROWS]


def test_every_row_has_a_test_and_every_test_a_row():
    assert len(IDS) == len(set(IDS)) >= 40
    tests = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert tests - set(IDS) == {
        "every-row-has-a-test-and-every-test-a-row", "rows-are-whole", "code-of-the-page-runs",
    }  # fmt: skip
    assert set(IDS) <= tests
    named = re.findall(r"`([a-z0-9-]+)`", TEXT.split("What is seen often says")[1])
    assert set(named) <= set(IDS)  # the last table leads to rows


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_rows_are_whole(row):
    cells = [cell.strip() for cell in row.split(" | ")]
    assert len(cells) == 4, "convention | numtrans | PyTorch | Hugging Face"
    assert all(cells)


def test_code_of_the_page_runs(torch, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.M | re.S)), {"__name__": "differences"})


# ---- masks and attention


def test_mask_polarity(torch, hf):
    real = np.array([[True, True, True, False], [True, True, False, False]])
    x = normal(2, 4, 6)
    tx = torch.tensor(x)
    theirs = generic_weights(torch, torch.nn.MultiheadAttention(6, 2, batch_first=True))
    ours = of_torch(MultiHeadAttention(6, 2), theirs)
    same(ours(x, mask=real[:, None, None]), theirs(tx, tx, tx, key_padding_mask=torch.tensor(~real))[0])
    layer = generic_weights(torch, torch.nn.TransformerEncoderLayer(6, 2, 5, batch_first=True))
    same(of_torch(EncoderLayer(6, 2, 5), layer)(x, real[:, None, None]),
         layer(tx, src_key_padding_mask=torch.tensor(~real)))  # fmt: skip
    q = torch.tensor(normal(2, 2, 4, 3))
    mask = real[:, None, None]
    same(ScaledDotProductAttention()(q.numpy(), mask=mask),
         torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.tensor(mask)))  # fmt: skip
    ours, theirs = model("bert")
    ids = np.array([[3, 4, 5, 1], [2, 6, 1, 1]])
    y = theirs(torch.tensor(ids), attention_mask=torch.tensor(real.astype(int))).logits
    same(ours(ids, mask=real)[real], y[torch.tensor(real)])


def test_additive_mask(torch):
    q, bias = normal(1, 2, 3, 4), np.where(causal_mask(3), 0.0, -np.inf)
    with pytest.raises(DtypeError, match="mask == 0"):
        ScaledDotProductAttention()(q, mask=bias)
    tq = torch.tensor(q)
    y = torch.nn.functional.scaled_dot_product_attention(tq, tq, tq, attn_mask=torch.tensor(bias))
    same(ScaledDotProductAttention()(q, mask=bias == 0), y)


def test_fully_masked_row(torch, hf):
    x, hidden = normal(1, 3, 6), np.ones((1, 3), bool)
    tx = torch.tensor(x, requires_grad=True)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    q = normal(1, 1, 3, 6)
    assert (ScaledDotProductAttention()(q, mask=np.zeros((3, 3), bool)) == 0).all()
    tq = torch.tensor(q, requires_grad=True)
    y = sdpa(tq, tq, tq, attn_mask=torch.zeros(3, 3, dtype=torch.bool))
    y.sum().backward()
    assert (y == 0).all()
    assert (tq.grad == 0).all()
    theirs = generic_weights(torch, torch.nn.MultiheadAttention(6, 2, batch_first=True))
    ours = of_torch(MultiHeadAttention(6, 2), theirs)
    y = ours(x, mask=~hidden[:, None, None])
    same(y, np.broadcast_to(ours.out_proj.b.data, y.shape))  # 0, and then the last bias
    assert (ours.backward(normal(1, 3, 6)) == 0).all()
    assert theirs(tx, tx, tx, key_padding_mask=torch.tensor(hidden))[0].isnan().all()
    _, bert = model("bert")
    weights = bert(torch.tensor([[1, 2, 3]]), attention_mask=torch.zeros(1, 3, dtype=int), output_attentions=True)
    same(np.full((1, 2, 3, 3), 1 / 3), weights.attentions[0])  # the smallest finite number everywhere: an even average


def test_causal_alignment(torch, hf):
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    q, k, v = (torch.tensor(normal(1, 1, n, 3, seed=n)) for n in (2, 4, 4))
    ours = ScaledDotProductAttention(causal=True)(q.numpy(), k.numpy(), v.numpy())
    sdpa = torch.nn.functional.scaled_dot_product_attention
    same(ours, sdpa(q, k, v, attn_mask=torch.tensor(causal_mask(2, 4))))
    flag = sdpa(q, k, v, is_causal=True)
    differs(ours, flag)
    same(flag, sdpa(q, k, v, attn_mask=torch.ones(2, 4, dtype=torch.bool).tril()))  # top left
    _, gpt = model("gpt2")
    ids = torch.tensor([[1, 2, 3, 4]])
    cache = gpt(ids[:, :2], use_cache=True).cache
    same(gpt(ids[:, 2:], cache=cache).logits.detach().numpy(), gpt(ids).logits[:, 2:])  # bottom right


def test_attention_scale(torch, hf):
    q = normal(1, 1, 3, 4)
    tq = torch.tensor(q)
    same(ScaledDotProductAttention()(q), torch.softmax(tq @ tq.transpose(-1, -2) / 2, -1) @ tq)
    _, t5 = model("t5")
    attention = t5.encoder.block[1].layer[0].SelfAttention
    x = torch.tensor(normal(1, 4, 6))
    y = attention(x, position_bias=torch.zeros(1, 2, 4, 4, dtype=torch.float64))[0]
    for scale, is_theirs in ((1.0, True), (None, False)):
        ours = MultiHeadAttention(6, 2, d_kv=3, bias=False, scale=scale).astype(np.float64)
        for name in "qkv":
            getattr(ours, f"{name}_proj").W.data = getattr(attention, name).weight.detach().numpy().T
        ours.out_proj.W.data = attention.o.weight.detach().numpy().T
        (same if is_theirs else differs)(ours(x.numpy()), y)


def test_attention_weights(torch, hf):
    x = torch.tensor(normal(1, 4, 6))
    theirs = generic_weights(torch, torch.nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True))
    ours = of_torch(MultiHeadAttention(6, 2, dropout=0.5), theirs)
    ours(x.numpy())
    same(ours.attention_weights.mean(1), theirs(x, x, x)[1])  # theirs: the mean over the heads
    same(ours.attention_weights, theirs(x, x, x, average_attn_weights=False)[1])
    before = ours.attention_weights.copy()
    ours.train()(x.numpy())
    same(ours.attention_weights, before)  # before dropout
    assert (theirs.train()(x, x, x, average_attn_weights=False)[1] == 0).any()  # behind it
    gpt, config = hf.GPT2LMHeadModel, hf.GPT2Config(vocab_size=7, n_positions=9, n_embd=6, n_head=2, n_layer=1,
                                                    attn_pdrop=0.5, bos_token_id=0, eos_token_id=0)  # fmt: skip
    config._attn_implementation = "eager"
    weights = gpt(config).train()(torch.arange(6)[None], output_attentions=True).attentions[0]
    assert (weights[0].diagonal(dim1=-2, dim2=-1) == 0).any()  # one's own place is never masked: dropped


def test_packed_projections(torch, hf):
    theirs = torch.nn.MultiheadAttention(6, 2)
    assert theirs.in_proj_weight.shape == (18, 6)
    assert theirs.in_proj_bias.shape == (18,)
    ours = of_torch(MultiHeadAttention(6, 2), theirs.double())
    for i, layer in enumerate((ours.q_proj, ours.k_proj, ours.v_proj)):
        same(layer.W.data, theirs.in_proj_weight[6 * i : 6 * i + 6].T)
    _, gpt = model("gpt2")
    assert gpt.transformer.h[0].attn.c_attn.weight.shape == (6, 18)
    _, bert = model("bert")
    assert bert.bert.encoder.layer[0].attention.self.query.weight.shape == (6, 6)


def test_grouped_queries(torch, hf):
    q, k = normal(1, 4, 3, 2), normal(1, 2, 3, 2, seed=1)
    tq, tk = torch.tensor(q), torch.tensor(k)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    y = ScaledDotProductAttention()(q, k)
    same(y, sdpa(tq, tk, tk, enable_gqa=True))
    with pytest.raises(RuntimeError):
        sdpa(tq, tk, tk)  # not by itself
    from transformers.models.llama.modeling_llama import repeat_kv

    repeated = repeat_kv(tk, 2)  # heads 0 and 1 share the first key
    same(y, sdpa(tq, repeated, repeated))
    differs(y, sdpa(tq, tk.repeat(1, 2, 1, 1), tk.repeat(1, 2, 1, 1)))


def test_axes(torch, hf):
    x = torch.tensor(normal(2, 5, 6))
    theirs = generic_weights(torch, torch.nn.MultiheadAttention(6, 2))
    ours = of_torch(MultiHeadAttention(6, 2), theirs)
    turned = x.transpose(0, 1)
    same(ours(x.numpy()), theirs(turned, turned, turned)[0].transpose(0, 1))
    differs(ours(x.numpy()), theirs(x, x, x)[0])  # no error: it attends over the batch
    assert model("bert")[1](torch.zeros(2, 5, dtype=int)).logits.shape == (2, 5, 7)


# ---- weights


def test_linear_transpose(torch):
    theirs = torch.nn.Linear(4, 5).double()
    ours = of_torch(Linear(4, 5), theirs)
    assert ours.W.data.shape == (4, 5)
    assert theirs.weight.shape == (5, 4)
    x = normal(3, 4)
    same(ours(x), theirs(torch.tensor(x)))


def test_conv1d(torch, hf):
    ours, theirs = model("gpt2")
    fc = theirs.transformer.h[0].mlp.c_fc
    assert type(fc).__name__ == "Conv1D"
    np.testing.assert_array_equal(ours.layers.layers[0].feedforward.sublayer.linear1.W.data, fc.weight.detach().numpy())


def test_patch_embedding(torch, hf):
    ours = generic(ViT(ViTConfig(4, 2, 3, 2, 6, 2, 1, 5), rng=0))
    x = normal(2, 3, 4, 4)
    W, b = ours.patch_embedding.W.data, ours.patch_embedding.b.data
    from numtrans.models.vit import patches

    conv = hf.ViTForImageClassification(hf.ViTConfig(
        image_size=4, patch_size=2, hidden_size=6, num_attention_heads=2, num_hidden_layers=1, intermediate_size=5,
    )).double().vit.embeddings.patch_embeddings.projection  # fmt: skip
    assert type(conv) is torch.nn.Conv2d
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(W.T.reshape(6, 3, 2, 2)))
        conv.bias.copy_(torch.tensor(b))
    same(patches(x, 2) @ W + b, conv(torch.tensor(x)).flatten(2).transpose(1, 2))


def test_bias(torch, hf):
    def has_bias(names):
        return any(name.endswith((".b", ".beta", "bias")) for name in names)

    assert MultiHeadAttention(6, 2).q_proj.b is not None
    assert torch.nn.MultiheadAttention(6, 2).in_proj_bias is not None
    for name, expected in {"bert": True, "gpt2": True, "llama": False}.items():
        ours, theirs = model(name)
        assert has_bias(dict(ours.named_parameters())) is expected
        assert has_bias(dict(theirs.named_parameters())) is expected
    t5, _ = model("t5")
    assert not has_bias(dict(t5.named_parameters()))
    vit = hf.ViTModel(hf.ViTConfig(hidden_size=6, num_attention_heads=2, num_hidden_layers=1, intermediate_size=5))
    parts = [part for part in vit.modules() if isinstance(part, (torch.nn.Linear, torch.nn.LayerNorm))]
    assert parts
    assert all(part.bias is not None for part in parts)


def test_tied_head(torch, hf, tmp_path):
    ours, theirs = model("gpt2")
    assert type(ours.output) is TiedLinear
    assert ours.output.E is ours.embedding.embedding.E
    assert sum(value.shape == (7, 6) for value in ours.state_dict().values()) == 1  # once in a file
    state = theirs.state_dict()
    assert {"lm_head.weight", "transformer.wte.weight"} <= set(state)  # twice
    assert "lm_head.weight" not in dict(theirs.named_parameters())
    theirs.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert all(kind().tie_word_embeddings for kind in (hf.GPT2Config, hf.BertConfig, hf.T5Config))
    assert not hf.LlamaConfig().tie_word_embeddings
    assert GPTConfig(7).tie_output
    assert not LlamaConfig().tie_output


def test_padding_row(torch, hf):
    ids, dy = np.array([[0, 3]]), normal(1, 2, 4)
    ours = Embedding(5, 4).astype(np.float64)
    ours(ids)
    ours.backward(dy)
    theirs = torch.nn.Embedding(5, 4, padding_idx=0).double()
    theirs(torch.tensor(ids)).backward(torch.tensor(dy))
    same(ours.E.grad[0], dy[0, 0])
    assert (theirs.weight.grad[0] == 0).all()
    assert (theirs.weight[0] == 0).all()
    config = hf.BertConfig(vocab_size=7, hidden_size=6, num_attention_heads=2, num_hidden_layers=1, intermediate_size=5)
    assert hf.BertModel(config).embeddings.word_embeddings.padding_idx == 0


def test_embedding_scale(torch, hf):
    ids = np.array([[1, 2]])
    table = Embedding(5, 4).E.data
    for scale, factor in ((False, 1), (True, 2)):
        layer = Embedding(5, 4, scale=scale)
        layer.E.data = table
        same(layer(ids), table[ids] * factor, rtol=1e-6)
    theirs = torch.nn.Embedding.from_pretrained(torch.tensor(table))
    same(theirs(torch.tensor(ids)).numpy(), table[ids])
    from numtrans.models import Transformer, TransformerConfig

    assert Transformer(TransformerConfig(5, 5, 4, 1, 4, 1, 1)).src_embedding.embedding.scale == 2.0  # the paper's
    _, llama = model("llama")
    first = llama(torch.tensor(ids), output_hidden_states=True).hidden_states[0]
    same(first.detach().numpy(), llama.model.embed_tokens.weight[torch.tensor(ids)])
    _, t5 = model("t5")
    out = t5(torch.tensor(ids), decoder_input_ids=torch.tensor(ids), output_hidden_states=True)
    same(out.encoder_hidden_states[0].detach().numpy(), t5.shared.weight[torch.tensor(ids)])
    _, gpt = model("gpt2")
    first = gpt(torch.tensor(ids), output_hidden_states=True).hidden_states[0] - gpt.transformer.wpe.weight[:2]
    same(first.detach().numpy(), gpt.transformer.wte.weight[torch.tensor(ids)])


def test_t5_output_scale(torch, hf):
    for version, factor in (("1.0", 6**-0.5), ("1.1", 1.0)):
        ours, theirs = model("t5", version=version)
        src, tgt = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 4]])
        out = theirs(src, decoder_input_ids=tgt, output_hidden_states=True)
        h = out.decoder_hidden_states[-1]
        same(h.detach().numpy() * factor @ theirs.lm_head.weight.detach().numpy().T, out.logits)
        assert ours.output_scale == factor


# ---- norms


def test_layer_norm_eps(torch, hf):
    assert LayerNorm(4).eps == torch.nn.LayerNorm(4).eps == hf.GPT2Config().layer_norm_epsilon == 1e-5
    assert hf.BertConfig().layer_norm_eps == hf.ViTConfig().layer_norm_eps == 1e-12
    assert BERTConfig().norm_eps == ViTConfig().norm_eps == 1e-12
    x = 1e-3 * normal(3, 4)
    ours, theirs = LayerNorm(4).astype(np.float64), torch.nn.LayerNorm(4).double()
    same(ours(x), theirs(torch.tensor(x)))
    differs(LayerNorm(4, eps=1e-12).astype(np.float64)(x), theirs(torch.tensor(x)), 0.1)


def test_rms_norm_eps(torch, hf):
    x = 1e-3 * normal(3, 4)
    ours, theirs = RMSNorm(4).astype(np.float64), torch.nn.RMSNorm(4).double()
    assert ours.eps == hf.LlamaConfig().rms_norm_eps == hf.T5Config().layer_norm_epsilon == 1e-6
    differs(ours(x), theirs(torch.tensor(x)), 0.1)
    assert theirs.eps is None
    machine = RMSNorm(4, eps=np.finfo(np.float64).eps).astype(np.float64)
    same(machine(x), theirs(torch.tensor(x)))  # the precision of the dtype


def test_variance(torch):
    x = torch.tensor(normal(3, 4))
    centered = x - x.mean(-1, keepdim=True)
    same(LayerNorm(4).astype(np.float64)(x.numpy()), centered / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt())
    differs(x.numpy().var(-1), x.var(-1))  # torch.var divides by n - 1
    same(x.numpy().var(-1) * 4 / 3, x.var(-1))


def test_norm_placement(torch, hf):
    def default(kind):
        return inspect.signature(kind).parameters

    assert default(EncoderLayer)["norm_placement"].default == "post"
    assert default(torch.nn.TransformerEncoderLayer)["norm_first"].default is False
    expected = {"bert": "post", "gpt2": "pre", "t5": "pre", "llama": "pre"}
    for name, placement in expected.items():
        ours, _ = model(name)
        layer = next(part for part in ours.modules() if isinstance(part, EncoderLayer))
        assert layer.self_attention.placement == placement
    assert ViT(ViTConfig(4, 2, 3, 2, 6, 2, 1, 5)).encoder.layers[0].self_attention.placement == "pre"


def test_closing_norm(torch, hf):
    def has_norm(model):
        return any(name.startswith("norm.") for name, _ in model.named_parameters())

    for placement in ("pre", "post"):
        assert has_norm(Encoder(1, 6, 2, 5, norm_placement=placement)) is (placement == "pre")
        assert has_norm(Decoder(1, 6, 2, 5, norm_placement=placement)) is (placement == "pre")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = torch.nn.Transformer(6, 2, 1, 1, 5, norm_first=placement == "pre")
            layer = torch.nn.TransformerEncoderLayer(6, 2, 5, norm_first=placement == "pre")
            alone = torch.nn.TransformerEncoder(layer, 1)
        assert has_norm(theirs.encoder)  # always
        assert has_norm(theirs.decoder)
        assert not has_norm(alone)  # never, unless it is given one
    assert model("bert")[0].encoder.norm is None
    vit = hf.ViTForImageClassification(hf.ViTConfig(
        image_size=4, patch_size=2, hidden_size=6, num_attention_heads=2, num_hidden_layers=1, intermediate_size=5,
    )).vit  # fmt: skip
    closing = [model("gpt2")[1].transformer.ln_f, model("llama")[1].model.norm, vit.layernorm]
    t5 = model("t5")[1]
    closing += [t5.encoder.final_layer_norm, t5.decoder.final_layer_norm]
    assert all(isinstance(norm, torch.nn.Module) for norm in closing)
    assert not has_norm(model("bert")[1].bert.encoder)


def test_precision(torch):
    pytest.importorskip("transformers")
    ids = np.arange(5)[None] + 1
    distances = {}
    for patched in (False, True):
        with pytest.MonkeyPatch.context() as monkeypatch:
            if patched:
                in_float64(monkeypatch, "llama")
            ours, theirs = model("llama")
            out = theirs(torch.tensor(ids), labels=torch.tensor(ids))
            y = out.logits
            assert y.dtype == torch.float64
            assert out.loss.dtype == torch.float32
            distances[patched] = np.abs(ours(ids) - y.detach().numpy()).max()
    assert distances[False] > 1e-9  # norms, softmax and angles in float32 inside a float64 model
    assert distances[True] < 1e-12


# ---- positions


def test_rope_pairs(torch, hf):
    x = normal(1, 1, 5, 4)
    halves, pairs = RotaryPositionalEncoding(4), RotaryPositionalEncoding(4, interleaved=True)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    cos, sin = (torch.tensor(np.concatenate([table] * 2, -1))[None] for table in halves.table(5))
    y, _ = apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin)
    same(halves(x), y)
    differs(pairs(x), y, 0.1)
    order = [0, 2, 1, 3]
    same(pairs(x)[..., order], halves(x[..., order]))


def test_sinusoid_layout(torch):
    pytest.importorskip("transformers")
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    theirs = MarianSinusoidalPositionalEmbedding(9, 6).create_weight().numpy()
    ours = SinusoidalPositionalEncoding(6).astype(np.float64)(np.zeros((1, 9, 6)))[0]
    differs(ours, theirs, 0.1)
    np.testing.assert_allclose(ours[:, [0, 2, 4, 1, 3, 5]], theirs, atol=1e-6)  # all sines, then all cosines
    assert not hasattr(torch.nn, "PositionalEncoding")


def test_position_offset(torch, hf):
    ours, theirs = model("gpt2")
    ids, real = np.array([[0, 0, 3, 4]]), np.array([[0, 0, 1, 1]])
    y = theirs(torch.tensor(ids), attention_mask=torch.tensor(real)).logits[0, 2:]
    same(ours(ids, (real == 1)[:, None, None])[0, 2:], y)  # both count from the padding on
    places = torch.tensor([[0, 0, 0, 1]])
    moved = theirs(torch.tensor(ids), attention_mask=torch.tensor(real), position_ids=places).logits[0, 2:]
    differs(y.detach().numpy(), moved)
    same(ours(ids[:, 2:])[0], moved)
    together = generate(ours, [[3, 4], [1, 2, 3, 4]], 3, temperature=0)  # the first is padded, and counted without
    np.testing.assert_array_equal(together[0, 2:], generate(ours, ids[:, 2:], 3, temperature=0)[0])
    from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

    config = hf.RobertaConfig(vocab_size=7, hidden_size=6, max_position_embeddings=9, pad_token_id=1)
    start = RobertaEmbeddings(config).create_position_ids_from_input_ids(torch.tensor([[5, 6, 1]]), 1)
    assert start.tolist() == [[2, 3, 1]]


def test_t5_bias_sharing(torch, hf):
    ours, theirs = model("t5")
    for stack, reference in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        positions = {id(layer.self_attention.sublayer.attention.position) for layer in stack.layers}
        assert len(positions) == 1
        tables = [name for name, _ in reference.named_parameters() if "relative_attention_bias" in name]
        assert tables == ["block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    assert all(layer.cross_attention.sublayer.attention.position is None for layer in ours.decoder.layers)


def test_token_types(torch, hf):
    ours, theirs = model("bert")
    ids = np.array([[1, 2, 3]])
    y = theirs(torch.tensor(ids)).logits
    same(ours(ids), y)
    same(ours(ids, np.zeros_like(ids)), y)
    differs(ours(ids, np.ones_like(ids)), y)
    without = ours.embedding.token_type.E.data.copy()
    ours.embedding.token_type.E.data = 0 * without
    differs(ours(ids), y)  # row 0 is added, also when no types are given


# ---- networks and dropout


def test_gelu(torch, hf):
    x = np.linspace(-4, 4, 401)
    tx, acts = torch.tensor(x), hf.activations.ACT2FN
    exact, tanh = GELU()(x), GELU("tanh")(x)
    assert 1e-4 < np.abs(exact - tanh).max() < 5e-4
    same(exact, torch.nn.functional.gelu(tx))
    same(exact, acts["gelu"](tx))
    same(tanh, acts["gelu_new"](tx), rtol=1e-6)
    assert (hf.BertConfig().hidden_act, hf.ViTConfig().hidden_act, hf.GPT2Config().activation_function) == (
        "gelu", "gelu", "gelu_new",
    )  # fmt: skip
    assert hf.T5Config(feed_forward_proj="gated-gelu").dense_act_fn == "gelu_new"
    assert BERTConfig().feedforward == "gelu"
    assert GPTConfig(7).feedforward == "gelu_tanh"


def test_gated_units(torch, hf):
    x = normal(2, 6)
    ours, theirs = model("t5", version="1.1")
    network = theirs.encoder.block[0].layer[1].DenseReluDense
    layer = ours.encoder.layers[0].feedforward.sublayer
    assert type(layer) is GatedFeedForward
    same(layer(x), network(torch.tensor(x)))
    same(layer.gate_proj.W.data, network.wi_0.weight.T)  # the one inside the activation
    same(layer.up_proj.W.data, network.wi_1.weight.T)
    ours, theirs = model("llama")
    same(ours.layers.layers[0].feedforward.sublayer.gate_proj.W.data, theirs.model.layers[0].mlp.gate_proj.weight.T)
    assert not hasattr(torch.nn, "SwiGLU")


def test_dropout_scaling(torch):
    x = np.ones((100, 100))
    ours, theirs = Dropout(0.2), torch.nn.Dropout(0.2)
    a, b = ours(x), theirs(torch.tensor(x)).numpy()
    for y in (a, b):
        assert set(np.unique(y)) == {0.0, 1.25}  # scaled up in training
    assert (a != b).any()  # other masks, whatever the seed
    assert (ours.eval()(x) == x).all()
    assert (theirs.eval()(torch.tensor(x)).numpy() == x).all()


def drops_hidden(network, x):
    """Whether dropout of a half in training is more than a mask on the output."""
    full, dropped = network.eval()(x), network.train()(x)
    if hasattr(full, "detach"):
        full, dropped = full.detach().numpy(), dropped.detach().numpy()
    kept = dropped != 0
    return not np.allclose(dropped[kept], 2 * full[kept])


def test_dropout_places(torch, hf):
    x = normal(1, 40, 6)
    tx = torch.tensor(x)
    assert drops_hidden(generic(FeedForward(6, 12, dropout=0.5)), x)
    layer = torch.nn.TransformerEncoderLayer(6, 2, 12, dropout=0.5).double()
    network = torch.nn.Sequential(layer.linear1, torch.nn.ReLU(), layer.dropout, layer.linear2)
    assert drops_hidden(network, tx)
    config = hf.GPT2Config(n_embd=6, n_head=2, n_inner=12, resid_pdrop=0.5)
    from transformers.models.bert.modeling_bert import BertIntermediate
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
    from transformers.models.t5.modeling_t5 import T5DenseActDense, T5LayerFF

    hidden = BertIntermediate(hf.BertConfig(hidden_size=6, intermediate_size=12, num_attention_heads=2))
    assert not any(isinstance(part, torch.nn.Dropout) for part in hidden.modules())
    config5 = hf.T5Config(d_model=6, d_ff=12, dropout_rate=0.5)
    assert T5LayerFF(config5).dropout.p == EncoderLayer(6, 2, 12, dropout=0.5).feedforward.dropout.p == layer.dropout2.p
    assert not drops_hidden(GPT2MLP(12, config).double(), tx)  # the output only
    assert drops_hidden(T5DenseActDense(config5).double(), tx)


def test_attention_dropout(torch, hf):
    q = normal(1, 1, 4, 3)
    ours = ScaledDotProductAttention(dropout=0.5)
    v = np.eye(4)[None, None]
    weights = ours(q, q, v)  # with the identity as values the output is the dropped weights
    assert set(np.unique(np.round(weights / ours.attention_weights, 9))) <= {0.0, 2.0}
    theirs = torch.nn.functional.scaled_dot_product_attention(*map(torch.tensor, (q, q, v)), dropout_p=0.5)
    assert set(np.unique(np.round(theirs.numpy() / ours.attention_weights, 9))) <= {0.0, 2.0}
    differs(weights.sum(-1), np.ones((1, 1, 4)))  # rows no longer sum to 1: nothing is normalized again
    config = hf.GPT2Config(vocab_size=7, n_positions=9, n_embd=6, n_head=2, n_layer=1, attn_pdrop=0.5, embd_pdrop=0.0,
                           bos_token_id=0, eos_token_id=0)  # fmt: skip
    config._attn_implementation = "eager"
    gpt, ids = hf.GPT2LMHeadModel(config).double(), torch.arange(6)[None]
    full, dropped = (gpt.train(mode)(ids, output_attentions=True).attentions[0] for mode in (False, True))
    seen = full > 0
    assert set(np.unique(np.round((dropped[seen] / full[seen]).detach().numpy(), 9))) <= {0.0, 2.0}


def test_evaluation_mode(torch, hf, tmp_path):
    ours, theirs = model("gpt2")
    theirs.save_pretrained(tmp_path)
    assert not from_pretrained(tmp_path).training
    assert not hf.GPT2LMHeadModel.from_pretrained(tmp_path).training
    assert type(ours)(ours.config).training
    assert hf.GPT2LMHeadModel(theirs.config).training
    assert torch.nn.TransformerEncoderLayer(6, 2).training


# ---- losses


def test_label_smoothing(torch, hf):
    from transformers.trainer_pt_utils import LabelSmoother

    z, t = normal(2, 3, 7), np.array([[1, 2, -100], [0, 6, 3]])
    ours = CrossEntropyLoss(label_smoothing=0.1)(z, t)
    tz, tt = torch.tensor(z), torch.tensor(t)
    same(ours, torch.nn.functional.cross_entropy(tz.flatten(0, 1), tt.flatten(), label_smoothing=0.1))
    np.testing.assert_allclose(ours, LabelSmoother(0.1)({"logits": tz}, tt).item(), rtol=1e-6)  # sums in float32
    p, counts = torch.log_softmax(tz, -1).numpy(), t != -100
    right = p[counts, t[counts]]
    others = (p[counts].sum(-1) - right) / 6  # spread over the other classes, as some older code does
    differs(ours, -(0.9 * right + 0.1 * others).mean())


def test_shift(torch, hf):
    ours, theirs = model("gpt2")
    ids = np.array([[1, 2, 3, 4]])
    loss = theirs(torch.tensor(ids), labels=torch.tensor(ids)).loss
    ce = CrossEntropyLoss()
    same(ce(ours(ids)[:, :-1], ids[:, 1:]), loss, rtol=1e-6)  # theirs shifts (and takes the loss in float32)
    differs(ce(ours(ids), ids), loss)
    ours, theirs = model("t5")
    labels = np.array([[3, 4, 1]])
    loss = theirs(torch.tensor(ids), labels=torch.tensor(labels)).loss
    same(ce(ours(ids, np.array([[0, 3, 4]])), labels), loss)  # theirs makes the decoder's input, which begins with 0


def test_ignore_index(torch, hf):
    assert CrossEntropyLoss().ignore_index == torch.nn.CrossEntropyLoss().ignore_index == -100
    ours, theirs = model("gpt2")
    ids, labels = np.array([[1, 2, 0]]), np.array([[1, 2, -100]])
    loss = theirs(torch.tensor(ids), labels=torch.tensor(labels)).loss
    same(CrossEntropyLoss()(ours(ids)[:, :-1], labels[:, 1:]), loss, rtol=1e-6)  # the loss is taken in float32
    differs(CrossEntropyLoss()(ours(ids)[:, :-1], ids[:, 1:]), loss)  # padding ids do count, unless they are replaced


def test_reduction(torch):
    z, t = normal(2, 3, 7), np.array([[1, -100, -100], [0, 6, 3]])
    ours = CrossEntropyLoss()(z, t)
    same(ours, torch.nn.functional.cross_entropy(torch.tensor(z).flatten(0, 1), torch.tensor(t).flatten()))
    differs(ours, np.mean([CrossEntropyLoss()(z[i], t[i]) for i in range(2)]))  # not the mean over sequences
    with pytest.warns(UserWarning, match="every target is ignored"):
        assert CrossEntropyLoss()(z, np.full((2, 3), -100)) == 0
    assert torch.nn.functional.cross_entropy(torch.tensor(z[0]), torch.full((3,), -100)).isnan()


def test_class_axis(torch):
    z, t = normal(2, 3, 7), np.array([[1, 2, 5], [0, 6, 3]])
    ours = CrossEntropyLoss(reduction="none")(z, t)
    assert ours.shape == (2, 3)
    ce = torch.nn.CrossEntropyLoss(reduction="none")
    same(ours, ce(torch.tensor(z).transpose(1, 2), torch.tensor(t)))
    with pytest.raises(RuntimeError):
        ce(torch.tensor(z), torch.tensor(t))


# ---- optimizers


def step(torch, ours, theirs, gradient=(0.3, -2.0), start=(1.0, 5.0)):
    """Both parameters after two steps, each with `gradient`."""
    p, q = Parameter(np.array(start)), torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    a, b = ours([p]), theirs([q])
    for _ in range(2):
        p.grad, q.grad = np.array(gradient), torch.tensor(gradient, dtype=torch.float64)
        a.step()
        b.step()
    return p.data, q.detach().numpy()


def test_adamw_decay(torch, hf):
    assert inspect.signature(AdamW).parameters["weight_decay"].default == 0.01
    assert inspect.signature(torch.optim.AdamW).parameters["weight_decay"].default == 0.01
    assert hf.TrainingArguments.weight_decay == 0.0
    decoupled, theirs = step(torch, lambda p: AdamW(p, 0.1, weight_decay=0.3),
                             lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3))  # fmt: skip
    same(decoupled, theirs)
    coupled, theirs = step(torch, lambda p: Adam(p, 0.1, weight_decay=0.3),
                           lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.3))  # fmt: skip
    same(coupled, theirs)
    differs(decoupled, coupled)


def test_adam_eps(torch):
    ours, theirs = step(torch, lambda p: Adam(p, 0.1, eps=0.1), lambda p: torch.optim.Adam(p, 0.1, eps=0.1))
    same(ours, theirs)
    g = np.array([0.3, -2.0])
    same(ours, np.array([1.0, 5.0]) - 2 * 0.1 * g / (np.abs(g) + 0.1))  # outside the root
    differs(ours, np.array([1.0, 5.0]) - 2 * 0.1 * g / np.sqrt(g**2 + 0.1))


def test_decay_groups(torch, hf):
    from transformers.trainer import Trainer

    ours, theirs = model("t5")
    decays = {id(p) for p in no_decay(ours, 0.1)[0]["params"]}
    names = {name for name, p in ours.named_parameters() if id(p) in decays}
    assert "embedding.E" in names
    assert not any("norm" in name for name in names)
    tables = {name for name in names if ".position." in name}
    assert len(tables) == 2  # T5's relative bias is a matrix
    their_names = set(Trainer.get_decay_parameter_names(None, theirs))
    assert not any("relative_attention_bias" in name for name in their_names)  # has "bias" in its name
    rest = {name for name in their_names if name in dict(theirs.named_parameters())}
    assert len(rest) == len(names - tables)
    everything = torch.optim.AdamW(theirs.parameters(), weight_decay=0.1).param_groups
    assert len(everything) == 1  # all of them decay


def test_clip_grad_norm_eps(torch):
    for max_norm in (1.0, 5.0 + 5e-7, 10.0):
        p, q = Parameter(np.zeros(2)), torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
        p.grad, q.grad = np.array([3.0, 4.0]), torch.tensor([3.0, 4.0], dtype=torch.float64)
        same(clip_grad_norm([p], max_norm), torch.nn.utils.clip_grad_norm_([q], max_norm))
        same(p.grad, q.grad, rtol=1e-14)
        if max_norm == 1.0:
            same(p.grad, np.array([3.0, 4.0]) / (5 + 1e-6), rtol=1e-14)
            differs(p.grad, np.array([0.6, 0.8]), by=1e-7)
    p.grad, q.grad = np.array([np.nan, 1.0]), torch.tensor([np.nan, 1.0], dtype=torch.float64)
    with pytest.raises(NonFiniteError):
        clip_grad_norm([p], 1.0)
    assert torch.nn.utils.clip_grad_norm_([q], 1.0).isnan()
    assert q.grad.isnan().all()


def test_first_step(torch, hf):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = hf.get_linear_schedule_with_warmup(optimizer, 4, 10)
    theirs = []
    for _ in range(10):
        theirs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert theirs[0] == 0.0  # the first step changes nothing
    ours = [warmup_linear(step, 1.0, 4, 10) for step in range(1, 11)]
    assert ours[0] == 0.25
    same(ours[:9], theirs[1:])
    seen = []
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: seen.append(step) or 1.0)
    assert seen == [0]  # PyTorch counts from 0


# ---- generation


def test_greedy_by_default(torch, hf):
    ours, theirs = model("gpt2")
    ids = np.array([[1, 2]])
    written = theirs.generate(torch.tensor(ids), max_new_tokens=6, eos_token_id=None, pad_token_id=0).numpy()
    np.testing.assert_array_equal(generate(ours, ids, 6, temperature=0), written)
    assert inspect.signature(generate).parameters["temperature"].default == 1.0
    drawn = {generate(ours, ids, 6, rng=seed).tobytes() for seed in range(10)}
    assert len(drawn) > 1


def test_beam_length_penalty(torch, hf):
    ours, theirs = model("gpt2")
    ids = np.array([[1, 2]])
    for alpha in (0.0, 1.0, 2.0):
        found, scores = beam_search(ours, ids, 5, num_beams=3, length_penalty=alpha)
        out = theirs.generate(
            torch.tensor(ids), max_new_tokens=5, num_beams=3, length_penalty=alpha, eos_token_id=None, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        np.testing.assert_array_equal(found[:, 0], out.sequences.numpy())
        np.testing.assert_allclose(scores[:, 0], out.sequences_scores.numpy(), rtol=1e-5)
        z = ours(found[0])[0, 1:-1]
        log_p = z - np.log(np.exp(z).sum(-1, keepdims=True))
        total = log_p[np.arange(5), found[0, 0, 2:]].sum()
        np.testing.assert_allclose(scores[0, 0], total / 5**alpha, rtol=1e-10)  # n: the new tokens
        if alpha:
            differs(scores[0, 0], total / ((5 + 5) / 6) ** alpha)  # Wu et al. (2016)
