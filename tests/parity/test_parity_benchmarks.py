"""What the benchmarks compare is the same work: equal parameters, and equal losses over steps of AdamW, in float64."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from numtrans.bench import _numtrans, _products, _pytorch  # noqa: E402
from numtrans.bench.models import SIZES, batch  # noqa: E402
from numtrans.pretrained import load_torch_state_dict  # noqa: E402

SMALL = dict(num_layers=2, d_model=16, num_heads=2, d_ff=40, tokens=7, batch=4, vocab_size=11)


def array(tensor):
    return tensor.detach().numpy()


def copy_gpt(ours, theirs):
    ours.embedding.embedding.E.data[...] = array(theirs.token.weight)
    ours.embedding.position.W.data[...] = array(theirs.position.weight)
    for layer, peer in zip(ours.layers.layers, theirs.layers):
        attention, network = layer.self_attention, layer.feedforward
        for i, part in enumerate((attention.sublayer.q_proj, attention.sublayer.k_proj, attention.sublayer.v_proj)):
            part.W.data[...] = array(peer.qkv.weight.chunk(3)[i]).T
            part.b.data[...] = array(peer.qkv.bias.chunk(3)[i])
        for part, other in (
            (attention.sublayer.out_proj, peer.out), (attention.norm, peer.norm1), (network.norm, peer.norm2),
            (network.sublayer.linear1, peer.linear1), (network.sublayer.linear2, peer.linear2),
        ):  # fmt: skip
            load_torch_state_dict(part, other.state_dict())
    load_torch_state_dict(ours.layers.norm, theirs.norm.state_dict())


def copy_bert(ours, theirs):
    ours.embedding.token.E.data[...] = array(theirs.token.weight)
    ours.embedding.position.W.data[...] = array(theirs.position.weight)
    ours.embedding.token_type.E.data[...] = array(theirs.segment.weight)
    ours.head.bias.data[...] = array(theirs.bias)
    for part, other in (
        (ours.embedding.norm, theirs.norm), (ours.encoder, theirs.encoder), (ours.head.dense, theirs.dense),
        (ours.head.norm, theirs.head_norm),
    ):  # fmt: skip
        load_torch_state_dict(part, other.state_dict())


def copy_encoder_decoder(ours, theirs):
    ours.src_embedding.embedding.E.data[...] = array(theirs.source.weight)
    ours.tgt_embedding.embedding.E.data[...] = array(theirs.target.weight)
    ours.src_embedding.position.W.data[...] = array(theirs.source_position.weight)
    ours.tgt_embedding.position.W.data[...] = array(theirs.target_position.weight)
    load_torch_state_dict(ours, theirs.transformer.state_dict())


COPIES = {"gpt": copy_gpt, "bert": copy_bert, "encoder-decoder": copy_encoder_decoder}


@pytest.mark.parametrize("kind", COPIES)
def test_both_libraries_do_the_same_steps(kind):
    size = {"kind": kind, **SMALL}
    torch.manual_seed(0)
    theirs = _pytorch.build(size).double()
    with torch.no_grad():
        for parameter in theirs.parameters():  # no gain 1 and no bias 0
            parameter += 0.2 * torch.randn_like(parameter)
    ours = _numtrans.build(size).astype(np.float64)
    COPIES[kind](ours, theirs)
    inputs, targets = batch(size)
    step = _numtrans.training_step(ours, inputs, targets)
    peer = _pytorch.training_step(theirs, [torch.from_numpy(x) for x in inputs], torch.from_numpy(targets))
    losses = [(step(), peer()) for _ in range(4)]
    for mine, other in losses:
        assert mine == pytest.approx(other, rel=1e-10)
    assert losses[3][0] < losses[0][0]


@pytest.mark.parametrize("name", [name for name in SIZES if name != "L"])
def test_both_models_have_the_same_parameters(name):
    ours, theirs = _numtrans.build(SIZES[name]), _pytorch.build(SIZES[name])
    count = sum(p.data.size for p in ours.parameters())
    assert count == sum(p.numel() for p in theirs.parameters())
    shapes = _products.weight_shapes(SIZES[name])
    matrices = sum(rows * columns for rows, columns in shapes.values())
    tables = {"gpt": 0, "bert": 2, "encoder-decoder": SIZES[name]["vocab_size"]}[SIZES[name]["kind"]]
    tables += SIZES[name]["tokens"] * (2 if name == "encoder-decoder" else 1)  # rows that no product reads
    assert matrices == sum(p.data.size for p in ours.parameters() if p.data.ndim == 2) - tables * SIZES[name]["d_model"]
