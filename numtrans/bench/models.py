"""The models and batches of the training benchmarks. The contestants of every library take their sizes from here."""

GPT_SIZES = {
    "S": dict(num_layers=4, d_model=128, num_heads=4, tokens=64, batch=12, vocab_size=65),
    "M": dict(num_layers=6, d_model=384, num_heads=6, tokens=256, batch=8, vocab_size=65),
    "L": dict(num_layers=12, d_model=768, num_heads=12, tokens=64, batch=4, vocab_size=50257),
}
ENCODER_DECODER = dict(num_layers=3, d_model=256, num_heads=8, d_ff=512, tokens=21, batch=32, vocab_size=6000)
BERT = dict(num_layers=4, d_model=256, num_heads=8, d_ff=1024, tokens=128, batch=16, vocab_size=8000)
SIZES = {
    **{name: {"kind": "gpt", "d_ff": 4 * size["d_model"], **size} for name, size in GPT_SIZES.items()},
    "encoder-decoder": {"kind": "encoder-decoder", **ENCODER_DECODER}, "BERT": {"kind": "bert", **BERT},
}  # fmt: skip
LEARNING_RATE, WEIGHT_DECAY = 1e-4, 0.1


def size_text(size):
    """One line that describes a size."""
    layers = f"{size['num_layers']}+{size['num_layers']}" if size["kind"] == "encoder-decoder" else size["num_layers"]
    return (
        f"{size['kind']}: {layers} layers, width {size['d_model']}, {size['num_heads']} heads, d_ff {size['d_ff']}, "
        f"T {size['tokens']}, batch {size['batch']}, vocabulary {size['vocab_size']}"
    )


def batch(size, seed=0):
    """Random token ids: the inputs of the model, a tuple of arrays (batch, tokens), and the targets."""
    import numpy as np

    rng = np.random.default_rng(seed)
    shape = size["batch"], size["tokens"]
    inputs = tuple(rng.integers(0, size["vocab_size"], shape) for _ in range(1 + (size["kind"] == "encoder-decoder")))
    return inputs, rng.integers(0, size["vocab_size"], shape)
