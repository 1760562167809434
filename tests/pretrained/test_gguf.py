"""GGUF files of a small Llama, each quantization, against transformers reading the same file."""

import numpy as np
import pytest

from numtrans.errors import CheckpointError
from numtrans.pretrained import from_pretrained

gguf = pytest.importorskip("gguf")
D, F, V, L, H, G = 256, 512, 32, 2, 8, 4  # the K kinds come in blocks of 256
IDS = np.array([[3, 4, 4, 1, 9, 30]])
KINDS = gguf.GGMLQuantizationType
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")


def block_bytes(kind, shape, rng):
    """Random blocks of a kind that the library cannot write: any bits are codes, the scales are set."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, size), dtype=np.uint8)
    scales = {"Q4_K": [(0, 2e-4), (2, 1e-3)], "Q6_K": [(208, 5e-5)]}[kind.name]
    for place, scale in scales:  # float16; Q4_K: step and minimum first, Q6_K: step last
        value = (scale * rng.uniform(0.5, 1, (*data.shape[:-1], 1))).astype("<f2")
        data[..., place : place + 2] = value.view(np.uint8)
    return data.reshape(*shape[:-1], -1)


def write_llama(path, kind, *, tied=True, architecture="llama", seed=0, extra=None, leave_out=(), values=None):
    """A file as llama.cpp's converter writes it, with random weights; matrices of type `kind`."""
    rng, kind = np.random.default_rng(seed), KINDS[kind]
    writer = gguf.GGUFWriter(path, architecture)
    settings = dict(block_count=L, context_length=64, embedding_length=D, feed_forward_length=F, head_count=H,
                    head_count_kv=G, layer_norm_rms_eps=1e-5, rope_freq_base=500.0, vocab_size=V,
                    rope_dimension_count=D // H)  # fmt: skip
    for name, value in settings.items():
        if name not in leave_out:
            getattr(writer, f"add_{name}")(value)
    for name, value in (values or {}).items():
        writer.add_uint32(name, value)
    matrices = {"token_embd": (V, D)} | ({} if tied else {"output": (V, D)})
    for i in range(L):
        b = f"blk.{i}."
        matrices |= {f"{b}attn_q": (D, D), f"{b}attn_k": (D // H * G, D), f"{b}attn_v": (D // H * G, D),
                     f"{b}attn_output": (D, D), f"{b}ffn_gate": (F, D), f"{b}ffn_up": (F, D),
                     f"{b}ffn_down": (D, F)}  # fmt: skip
    gains = ["output_norm", *(f"blk.{i}.{name}" for i in range(L) for name in ("attn_norm", "ffn_norm"))]
    for name, shape in matrices.items():
        if f"{name}.weight" in leave_out:
            continue
        if kind.name in ("Q4_K", "Q6_K"):
            writer.add_tensor(f"{name}.weight", block_bytes(kind, shape, rng), raw_dtype=kind)
        else:
            weight = rng.standard_normal(shape).astype(np.float32) * shape[-1] ** -0.5
            writer.add_tensor(f"{name}.weight", gguf.quantize(weight, kind), raw_dtype=kind)
    for name in gains:
        writer.add_tensor(f"{name}.weight", (1 + 0.3 * rng.standard_normal(D)).astype(np.float32))
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "tied"), [*((kind, True) for kind in TYPES), ("Q8_0", False)])
def test_logits_equal_those_of_transformers(kind, tied, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("accelerate")  # transformers reads no GGUF file without it
    path = write_llama(tmp_path / "model.gguf", kind, tied=tied)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    ours = from_pretrained(path)
    c = ours.config
    assert (c.vocab_size, c.d_model, c.num_kv_heads, c.max_len, c.rope_base) == (V, D, G, 64, 500.0)
    assert (c.norm_eps, c.tie_output) == (np.float32(1e-5), tied)
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(IDS)).logits.numpy()
    found = ours(IDS)
    assert found.dtype == np.float32
    assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)


def test_q4_1_and_q8_0_by_hand(tmp_path):
    """A block of 32 numbers. Q8_0: float16 d, then int8 q, x = d q. Q4_1: float16 d and m, then 16 bytes; the low
    halves are the first 16 codes, the high ones the last; x = d q + m."""
    from numtrans.pretrained.gguf_file import QuantizedTensor

    codes = np.arange(-16, 16, dtype=np.int8)
    data = np.float16(0.5).tobytes() + codes.tobytes()
    nibbles = np.arange(32) % 16
    packed = (nibbles[:16] | nibbles[16:][::-1] << 4).astype(np.uint8)
    data += np.float16(0.25).tobytes() + np.float16(-1.5).tobytes() + packed.tobytes()
    (tmp_path / "raw").write_bytes(data)
    q8 = QuantizedTensor(tmp_path / "raw", "a", (1, 32), KINDS.Q8_0.value, 0)
    np.testing.assert_array_equal(np.asarray(q8)[0], 0.5 * codes.astype(float))
    q4 = QuantizedTensor(tmp_path / "raw", "b", (32,), KINDS.Q4_1.value, 34)
    np.testing.assert_array_equal(np.asarray(q4), 0.25 * np.r_[nibbles[:16], nibbles[16:][::-1]] - 1.5)
    with pytest.raises(CheckpointError, match="b lacks 14 bytes"):
        QuantizedTensor(tmp_path / "raw", "b", (32,), KINDS.Q4_1.value, 48)
    with pytest.raises(CheckpointError, match="blocks of 32"):
        QuantizedTensor(tmp_path / "raw", "b", (31,), KINDS.Q4_1.value, 0)
    with pytest.raises(CheckpointError, match="type 999, which is not known"):
        QuantizedTensor(tmp_path / "raw", "b", (32,), 999, 0)


def test_the_order_of_rope_pairs_matters(tmp_path, monkeypatch):
    """Reading the rows of queries and keys as they lie gives other logits: the comparison above would see it."""
    from numtrans.pretrained import gguf_file
    from numtrans.pretrained.names import TRANSPOSED

    path = write_llama(tmp_path / "model.gguf", "F32")
    right = from_pretrained(path)(IDS)
    monkeypatch.setattr(gguf_file, "pairs", lambda heads: TRANSPOSED)
    wrong = from_pretrained(path)(IDS)
    assert np.linalg.norm(right - wrong) > 0.01 * np.linalg.norm(right)


@pytest.mark.parametrize(("options", "message"), [
    (dict(architecture="mamba"), "architecture mamba is not supported in a GGUF file"),
    (dict(extra={"rope_freqs.weight": np.ones(16, np.float32)}), "rope_freqs.weight"),
    (dict(values={"llama.expert_count": 8}), "expert_count=8, expected 0"),
    (dict(values={"llama.attention.sliding_window": 8}), "sliding_window=8"),
    (dict(values={"llama.novelty": 8}), "llama.novelty=8, which is not known"),
    (dict(leave_out=["head_count"]), "lacks llama.attention.head_count"),
    (dict(leave_out=["token_embd.weight"]), "lacks token_embd.weight"),
    (dict(leave_out=["blk.1.attn_k.weight"]), "missing: blk.1.attn_k.weight"),
    (dict(leave_out=["head_count"], values={"llama.attention.head_count": 0}), "attention.head_count is 0"),
    (dict(leave_out=["block_count"], values={"llama.block_count": 10**9}), "says 1000000000 layers of width"),
    (dict(leave_out=["embedding_length"], values={"llama.embedding_length": 10**6}), "layers of width 1000000"),
    (dict(leave_out=["feed_forward_length"], values={"llama.feed_forward_length": 10**9}), "is 1000000000 wide"),
    (dict(extra={"blk.0.attn_q.bias": np.ones(D, np.float32)}), "unexpected: blk.0.attn_q.bias"),
])  # fmt: skip
def test_files_that_are_refused(options, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(write_llama(tmp_path / "model.gguf", "F16", **options))


def test_files_that_are_not_whole(tmp_path):
    path = write_llama(tmp_path / "model.gguf", "Q8_0")
    whole = path.read_bytes()
    for size, message in ((len(whole) - 100, "truncated"), (3000, "truncated"), (700, "broken or cut short"),
                          (30, "broken or cut short"), (2, "not a GGUF file"), (0, "not a GGUF file")):  # fmt: skip
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=message):
            from_pretrained(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        from_pretrained(path)


def test_without_the_library(tmp_path, monkeypatch):
    import sys

    path = write_llama(tmp_path / "model.gguf", "F16")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"numtrans\[pretrained\]"):
        from_pretrained(path)
