"""The trained models themselves, against transformers reading the same files. Skipped where they are not.

``numtrans pretrained fetch minilm`` and ``... fetch smollm2`` bring them.
"""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numtrans.generation import generate
from numtrans.losses import CrossEntropyLoss
from numtrans.module import no_grad
from numtrans.pretrained import SentenceEncoder, from_pretrained, load_tokenizer
from numtrans.pretrained.packages import where

pytestmark = pytest.mark.slow
SENTENCES = [
    "A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby.",
    "A man is riding a horse.", "A woman is playing violin.", "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.", "A monkey is playing drums.",
    "Someone in a gorilla costume is playing a set of drums.", "The weather is lovely today.",
    "It's so sunny outside!", "He drove to the stadium.", "Der schnelle braune Fuchs springt über den faulen Hund.",
    "Attention is all you need", "1,234.56 euros & 50% off -- e-mail: a@b.c", "naïve café, Ångström",
    "日本語のテキスト", "", "UPPER and lower", "word " * 300,
]  # fmt: skip
PROMPTS = [
    "The capital of France is", "Once upon a time, there was a little girl who", "def fibonacci(n):\n",
    "Q: What is 12 times 3?\nA:", "In 1969, the first human",
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """One thread for each library: several that wait for each other on a busy machine are many times slower."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1, "blas"):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def minilm():
    path = where("minilm")
    if path is None:
        pytest.skip("minilm is not on this machine")
    return path


@pytest.fixture(scope="module")
def smollm2():
    """Path, our model and theirs, both in float32, and our tokenizer."""
    path = where("smollm2")
    if path is None:
        pytest.skip("smollm2 is not on this machine")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return path, from_pretrained(path), theirs.eval(), load_tokenizer(path)


def test_minilm_tokens_and_embeddings(minilm):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.BertModel.from_pretrained(minilm).eval()
    batch = tokenizer(SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        h = model(**batch).last_hidden_state
    keep = batch["attention_mask"][..., None].float()
    expected = torch.nn.functional.normalize((h * keep).sum(1) / keep.sum(1)).numpy()
    encoder = SentenceEncoder.from_pretrained(minilm)
    ids, mask = encoder.tokenizer.encode_batch(SENTENCES, max_len=encoder.max_len)
    np.testing.assert_array_equal(ids, batch["input_ids"].numpy())
    np.testing.assert_array_equal(mask, batch["attention_mask"].numpy() == 1)
    found = encoder.encode(SENTENCES)
    assert found.dtype == np.float32
    cosine = (found * expected).sum(axis=1)
    print("largest distance from cosine 1", float(np.abs(1 - cosine).max()))
    assert np.abs(1 - cosine).max() <= 1e-5
    assert np.abs(found - expected).max() <= 1e-5
    similar = found @ found.T
    assert similar[0, 1] > 0.6 > 0.2 > similar[0, 9]  # food and bread; food and weather


def test_smollm2_logits(smollm2):
    import torch

    _, ours, theirs, tokenizer = smollm2
    assert ours.num_parameters() == 134_515_008
    worst = 0.0
    for prompt in PROMPTS:
        ids = np.array([tokenizer.encode(prompt)])
        with torch.no_grad(), no_grad():
            expected = theirs(torch.from_numpy(ids)).logits[0, -1].numpy()
            found = ours(ids)[0, -1]
        worst = max(worst, np.abs(found - expected).max())
        assert found.argmax() == expected.argmax()
    print("largest difference of a logit", float(worst))
    assert worst <= 1e-3


def test_smollm2_greedy_continuations(smollm2):
    import torch

    _, ours, theirs, tokenizer = smollm2
    for prompt in PROMPTS:
        ids = np.array([tokenizer.encode(prompt)])
        tensor = torch.from_numpy(ids)
        expected = theirs.generate(
            tensor, attention_mask=torch.ones_like(tensor), do_sample=False, max_new_tokens=40, min_new_tokens=40,
            eos_token_id=None, pad_token_id=0,
        )[0].numpy()  # fmt: skip
        found = generate(ours, ids, 40, temperature=0)
        assert found.shape == (1, ids.shape[1] + 40)
        np.testing.assert_array_equal(found[0], expected)


def test_smollm2_gradients_of_one_layer(smollm2):
    """A whole backward pass; the tensors of layer 14 of 30 are compared, in float32 on both sides."""
    import torch

    _, ours, theirs, tokenizer = smollm2
    ids = np.array([tokenizer.encode("The animal didn't cross the street because it was too tired.")])
    inputs, targets = ids[:, :-1], ids[:, 1:]
    theirs.zero_grad()
    tensor = torch.from_numpy(inputs)
    logits = theirs(tensor).logits
    torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(targets[0])).backward()
    criterion = CrossEntropyLoss()
    criterion(ours(inputs), targets)
    ours.backward(criterion.backward())
    layer, mine = theirs.model.layers[14], ours.layers.layers[14]
    attention, network = mine.self_attention.sublayer, mine.feedforward.sublayer
    pairs = {
        "q_proj": (attention.q_proj.W, layer.self_attn.q_proj), "k_proj": (attention.k_proj.W, layer.self_attn.k_proj),
        "v_proj": (attention.v_proj.W, layer.self_attn.v_proj),
        "o_proj": (attention.out_proj.W, layer.self_attn.o_proj),
        "gate_proj": (network.gate_proj.W, layer.mlp.gate_proj), "up_proj": (network.up_proj.W, layer.mlp.up_proj),
        "down_proj": (network.down_proj.W, layer.mlp.down_proj),
        "input_layernorm": (mine.self_attention.norm.gamma, layer.input_layernorm),
        "post_attention_layernorm": (mine.feedforward.norm.gamma, layer.post_attention_layernorm),
    }  # fmt: skip
    assert len(pairs) == sum(1 for _ in layer.parameters())
    errors = {}
    for name, (parameter, module) in pairs.items():
        expected = module.weight.grad.numpy().T
        errors[name] = float(np.linalg.norm(parameter.grad - expected) / np.linalg.norm(expected))
    ours.zero_grad()
    print("largest relative error", max(errors.values()))
    assert max(errors.values()) <= 1e-4, errors
