"""What PyTorch does in the benchmarks. Runs in a process of its own; the only file here that imports it.

The GPT has one product for query, key and value and `F.scaled_dot_product_attention`, as a fast PyTorch model has; the
others are made of PyTorch's own modules.
"""

import torch
from torch import nn
from torch.nn import functional as F

from numtrans.bench.models import LEARNING_RATE, SIZES, WEIGHT_DECAY, batch


def warm_up():
    """Load what is loaded late, before memory is measured."""
    tiny = dict(kind="gpt", num_layers=1, d_model=8, num_heads=2, d_ff=16, tokens=4, batch=2, vocab_size=8)
    train(tiny)[0]()


def train(size, compiled=False):
    """A training step of the model of `size`: forward, loss, backward, fused AdamW."""
    torch.manual_seed(0)
    model = build(size)
    inputs, targets = batch(size)
    step = training_step(model, [torch.from_numpy(x) for x in inputs], torch.from_numpy(targets), compiled)
    return step, {"parameters": sum(p.numel() for p in model.parameters())}


def build(size):
    """The model of `size`, without dropout."""
    return {"gpt": GPT, "bert": BERT, "encoder-decoder": EncoderDecoder}[size["kind"]](size)


def training_step(model, inputs, targets, compiled=False):
    """A function that does one step and returns the loss."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)

    def compute_loss(*inputs):
        logits = model(*inputs)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    if compiled:
        compute_loss = torch.compile(compute_loss)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = compute_loss(*inputs)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class GPTLayer(nn.Module):
    """Pre-norm: causal self-attention, then GELU between two linear layers."""

    def __init__(self, width, heads, d_ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear1, self.linear2 = nn.Linear(width, d_ff), nn.Linear(d_ff, width)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(C, 2))
        if cache is not None:  # a pair of lists: the keys and the values so far
            k, v = (torch.cat([*held, new], 2) for held, new in zip(cache, (k, v)))
            cache[0][:], cache[1][:] = [k], [v]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Learned positions, tied output, tanh form of GELU: GPT-2."""

    def __init__(self, size):
        super().__init__()
        width = size["d_model"]
        self.token, self.position = nn.Embedding(size["vocab_size"], width), nn.Embedding(size["tokens"], width)
        layers = (GPTLayer(width, size["num_heads"], size["d_ff"]) for _ in range(size["num_layers"]))
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(width)
        small_weights(self)

    def forward(self, ids, caches=None, start=0):
        x = self.token(ids) + self.position.weight[start : start + ids.shape[1]]
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
            x = layer(x, cache)
        return F.linear(self.norm(x), self.token.weight)


class BERT(nn.Module):
    """`nn.TransformerEncoder` with BERT's embeddings and masked-LM head."""

    def __init__(self, size):
        super().__init__()
        width = size["d_model"]
        self.token, self.position = nn.Embedding(size["vocab_size"], width), nn.Embedding(size["tokens"], width)
        self.segment = nn.Embedding(2, width)
        layer = nn.TransformerEncoderLayer(
            width, size["num_heads"], size["d_ff"], dropout=0.0, activation=F.gelu, layer_norm_eps=1e-12,
            batch_first=True,
        )  # fmt: skip
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.encoder = nn.TransformerEncoder(layer, size["num_layers"], enable_nested_tensor=False)
        self.dense, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(size["vocab_size"]))
        small_weights(self)

    def forward(self, ids):
        x = self.token(ids) + self.segment.weight[0] + self.position.weight[: ids.shape[1]]
        h = self.encoder(self.norm(x))
        return F.linear(self.head_norm(F.gelu(self.dense(h))), self.token.weight, self.bias)


class EncoderDecoder(nn.Module):
    """`nn.Transformer` between embeddings, scaled as in Vaswani et al. (2017), and an output tied to the target's."""

    def __init__(self, size):
        super().__init__()
        width, vocab, tokens, layers = size["d_model"], size["vocab_size"], size["tokens"], size["num_layers"]
        self.scale = width**0.5
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.source_position, self.target_position = nn.Embedding(tokens, width), nn.Embedding(tokens, width)
        small_weights(self)
        self.transformer = nn.Transformer(
            width, size["num_heads"], layers, layers, size["d_ff"], dropout=0.0, batch_first=True, norm_first=True
        )
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False)

    def forward(self, source, target):
        x = self.source(source) * self.scale + self.source_position.weight[: source.shape[1]]
        y = self.target(target) * self.scale + self.target_position.weight[: target.shape[1]]
        mask = self.causal[: target.shape[1], : target.shape[1]]
        h = self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True)
        return F.linear(h, self.target.weight)


def small_weights(model):
    """Matrices from a normal distribution with deviation 0.02, as in GPT-2 and BERT."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, 0.02)


def attention(tokens):
    """Causal attention, forward and backward, fused: two sequences, 8 heads of 64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, tokens, 64, requires_grad=True) for _ in range(3))
    dO = torch.randn(2, 8, tokens, 64)

    def run():
        for x in (q, k, v):
            x.grad = None
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(dO)

    return run, {}


def generate_small(tokens):
    """Write `tokens` tokens greedily after one, with a GPT of size M and random weights."""
    torch.manual_seed(0)
    model = build({**SIZES["M"], "vocab_size": 5000}).eval()

    def run():
        written, ids, caches = [], torch.tensor([[1]]), [([], []) for _ in model.layers]
        with torch.inference_mode():
            for start in range(tokens):
                ids = model(ids, caches, start)[:, -1:].argmax(-1)
                written.append(ids.item())
        return written

    return run, {}


def load_language_model(folder):
    """The model of a Hugging Face `folder` in transformers, float32, and what its attention is."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, {"attention": model.config._attn_implementation}


def generate_from(folder, prompt, tokens):
    """Write `tokens` tokens greedily after `prompt` with ``generate`` of transformers, not compiled."""
    model, facts = load_language_model(folder)
    ids = torch.tensor([prompt])

    def run():
        with torch.inference_mode():
            written = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        return written[0, len(prompt) :].tolist()

    return run, facts


def loop_from(folder, prompt, tokens):
    """The same with a plain loop over the forward of the model, which does without the checks of ``generate``."""
    model, facts = load_language_model(folder)
    ids = torch.tensor([prompt])

    def run():
        written, given, past = [], ids, None
        with torch.inference_mode():
            while len(written) < tokens:
                out = model(given, past_key_values=past, use_cache=True, logits_to_keep=1)
                given, past = out.logits[:, -1:].argmax(-1), out.past_key_values
                written.append(given.item())
        return written

    return run, facts
