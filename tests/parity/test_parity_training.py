"""Fifty optimizer steps from the same weights and batches follow PyTorch's loss curve."""

# ruff: noqa: E402 (imports that need PyTorch follow the line that skips without it)
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

import torch.nn.functional as F
from huggingface import in_float64
from parity.torch_checks import seq2seq

from numtrans.losses import CrossEntropyLoss
from numtrans.optim import Adam, AdamW, clip_grad_norm, no_decay, warmup_cosine

STEPS, PEAK, DECAY, MAX_NORM = 50, 0.01, 0.1, 0.5
SIZES = dict(heads=2, d=4, d_ff=12, vocab=11, layers=2, encoder_layers=2, decoder_layers=2, seed=3)


RATES = [warmup_cosine(step, PEAK, 10, STEPS, final=PEAK / 10) for step in range(1, STEPS + 1)]


def train(model, batches, smoothing, kind=AdamW, clip=clip_grad_norm, lrs=RATES, groups=no_decay):
    """Our losses, norms of the gradients before clipping, and weights at the end."""
    loss = CrossEntropyLoss(label_smoothing=smoothing)
    optimizer = kind(groups(model, DECAY), lr=PEAK, betas=(0.9, 0.98), weight_decay=DECAY)
    losses, norms = [], []
    for (*inputs, targets), lr in zip(batches, lrs, strict=True):
        optimizer.lr = lr
        optimizer.zero_grad()
        losses.append(float(loss(model(*inputs), targets)))
        model.backward(loss.backward())
        norms.append(clip(model.parameters(), MAX_NORM))
        optimizer.step()
    return losses, norms, {name: p.data for name, p in model.named_parameters()}


def train_torch(model, batches, smoothing, logits):
    """The same in PyTorch; `logits` calls the model."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.98))
    losses, norms = [], []
    for (*inputs, targets), lr in zip(batches, RATES, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        z = logits(*map(torch.tensor, inputs))
        loss = F.cross_entropy(z.flatten(0, 1), torch.tensor(targets).flatten(), label_smoothing=smoothing)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM).item())
        optimizer.step()
    return losses, norms, {name: p.detach().numpy() for name, p in model.named_parameters()}


def sums(rng, shape, vocab):
    """Sequences in which each token depends on the two before it: something to learn."""
    ids = rng.integers(1, vocab, shape)
    for t in range(2, shape[1]):
        ids[:, t] = (ids[:, t - 1] + ids[:, t - 2]) % (vocab - 1) + 1
    return ids


def language_batches(vocab):
    """Inputs and next tokens; some targets do not count."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        ids = sums(rng, (4, 10), vocab)
        targets = np.where(rng.random((4, 9)) < 0.2, -100, ids[:, 1:])
        yield ids[:, :-1], targets


def pair_batches(vocab):
    """Padded sources, and their tokens in reverse order as targets."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        src, labels = np.zeros((4, 7), int), np.full((4, 7), -100)
        for row, n in enumerate(rng.integers(2, 8, 4)):
            src[row, :n] = rng.integers(2, vocab, n)
            labels[row, :n] = src[row, :n][::-1]
        tgt = np.concatenate([np.ones((4, 1), int), np.maximum(labels[:, :-1], 0)], axis=1)
        yield src, tgt, labels


def compare_training(ours, theirs, names, batches, smoothing, logits, **changes):
    """Train both; the largest difference of the losses, of the norms, and of the weights at the end."""
    batches = list(batches)
    found = train(ours, batches, smoothing, **changes)
    expected = train_torch(theirs, batches, smoothing, logits)
    assert np.mean(expected[0][-5:]) < 0.9 * np.mean(expected[0][:5])  # it did learn
    assert sum(norm > MAX_NORM for norm in expected[1]) >= 10  # and clipping did act
    weights = names(expected[2])
    losses, norms = (np.abs(np.subtract(a, b)).max() for a, b in zip(found[:2], expected[:2]))
    return losses, norms, max(np.abs(found[2][name] - value).max() for name, value in weights.items())


def assert_close(differences):
    """Losses within 1e-6, as the norms are, and weights, which the optimizer divides by small numbers, too."""
    assert all(difference <= 1e-6 for difference in differences), differences


def test_gpt_follows_transformers():
    pytest.importorskip("transformers")
    from parity.huggingface_checks import gpt2

    with pytest.MonkeyPatch.context() as monkeypatch:
        in_float64(monkeypatch, "gpt2")
        ours, theirs, names = gpt2(SIZES)
        differences = compare_training(
            ours, theirs, names, language_batches(SIZES["vocab"]), 0.0, lambda ids: theirs(ids).logits
        )
    assert_close(differences)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_decoder_follows_pytorch(norm):
    ours, theirs, names = seq2seq(SIZES | {"norm": norm})
    differences = compare_training(ours, theirs, names, pair_batches(SIZES["vocab"]), 0.1, theirs)
    assert_close(differences)




FAULTS = {
    "decay in the gradient": dict(kind=Adam),
    "no clipping": dict(clip=lambda parameters, max_norm: 1.0),
    "schedule a step late": dict(lrs=[RATES[0], *RATES[:-1]]),
    "decay of every parameter": dict(groups=lambda model, decay: [{"params": model.parameters()}]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_mistake_leaves_the_curve(fault):
    """The bound is not loose: the smallest of these is far beyond it."""
    ours, theirs, names = seq2seq(SIZES | {"norm": "pre"})
    batches = pair_batches(SIZES["vocab"])
    differences = compare_training(ours, theirs, names, batches, 0.1, theirs, **FAULTS[fault])
    assert differences[0] > 1e-4
