"""Files of a Hugging Face folder: dtypes, shards, pickles, and files that are not whole."""

import json

import numpy as np
import pytest

from numtrans.errors import CheckpointError, StateDictError
from numtrans.layers import Linear
from numtrans.models import GPT, GPTConfig
from numtrans.pretrained import from_pretrained, load, save, save_pretrained
from numtrans.pretrained.tensors import DTYPES, read_file, read_tensors

IDS = np.array([[3, 4, 4, 1]])


def write_file(path, entries, metadata=None):
    """A safetensors file by hand: name -> (dtype, shape, bytes)."""
    header, data = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, (dtype, shape, content) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def folder(tmp_path):
    """A small GPT-2 in three shards."""
    model = GPT(GPTConfig(7, max_len=6, d_model=8, num_heads=2, num_layers=1), rng=0)
    save_pretrained(model, tmp_path)
    arrays = {name: np.asarray(tensor) for name, tensor in read_tensors(tmp_path).items()}
    (tmp_path / "model.safetensors").unlink()
    places = {name: f"model-0000{i % 3 + 1}-of-00003.safetensors" for i, name in enumerate(arrays)}
    for file in set(places.values()):
        write_file(tmp_path / file, {
            name: ("F32", a.shape, a.astype("<f4").tobytes()) for name, a in arrays.items() if places[name] == file
        }, {"format": "pt"})  # fmt: skip
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path, model.eval()


@pytest.mark.parametrize(("dtype", "numbers", "content"), [
    # Bits of 1, -2, 3.140625 and 2^-14 by the formats: sign, 8 bits of exponent and 7 of fraction; or 5 and 10.
    ("BF16", [1.0, -2.0, 3.140625, 2.0**-14], b"\x80\x3f\x00\xc0\x49\x40\x80\x38"),
    ("F16", [1.0, -2.0, 3.140625, 2.0**-14], b"\x00\x3c\x00\xc0\x48\x42\x00\x04"),
    ("F64", [0.1], b"\x9a\x99\x99\x99\x99\x99\xb9\x3f"),
    ("I64", [-1], b"\xff" * 8),
    ("BOOL", [1, 0], b"\x01\x00"),
])  # fmt: skip
def test_dtypes(tmp_path, dtype, numbers, content):
    write_file(tmp_path / "a.safetensors", {"x": (dtype, (len(numbers),), content), "y": ("F32", (), b"\0\0\x80\x3f")})
    tensors = read_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(np.asarray(tensors["x"]), numbers)
    assert tensors["x"].shape == (len(numbers),)
    assert np.asarray(tensors["y"]) == 1.0
    assert np.asarray(tensors["x"], np.float64).dtype == np.float64


def test_every_bfloat16_as_torch_reads_it(tmp_path):
    torch = pytest.importorskip("torch")
    bits = np.arange(1 << 16, dtype=np.uint16)
    write_file(tmp_path / "a.safetensors", {"x": ("BF16", (256, 256), bits.tobytes())})
    expected = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy().reshape(256, 256)
    np.testing.assert_array_equal(np.asarray(read_file(tmp_path / "a.safetensors")["x"]), expected)  # NaN is NaN


def test_a_dtype_that_is_not_read(tmp_path):
    write_file(tmp_path / "a.safetensors", {"x": ("F8_E4M3", (2,), b"\0\0")})
    tensor = read_file(tmp_path / "a.safetensors")["x"]
    with pytest.raises(CheckpointError, match="x has dtype F8_E4M3"):
        np.asarray(tensor)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_of_transformers(tmp_path, kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=7, n_positions=6, n_embd=8, n_head=2, n_layer=1)
    theirs = transformers.GPT2LMHeadModel(config).to(getattr(torch, kind))
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    assert {p.data.dtype for p in ours.parameters()} == {np.dtype(np.float32)}
    with torch.no_grad():
        expected = theirs.float().eval()(torch.from_numpy(IDS)).logits.numpy()
    np.testing.assert_allclose(ours(IDS), expected, rtol=0, atol=1e-6)


def test_shards(folder):
    path, model = folder
    np.testing.assert_array_equal(from_pretrained(path)(IDS), model(IDS))


def test_shards_that_are_not_whole(folder):
    path, _ = folder
    shard = path / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    for content, message in (
        (whole[:-1], "truncated"), (whole[:20], "truncated"), (b"", "empty"), (b"PK\3\4" + whole, "not a safetensors"),
    ):  # fmt: skip
        shard.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"model-00002-of-00003.safetensors: .*{message}"):
            from_pretrained(path)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.safetensors: no such file"):
        from_pretrained(path)


def test_an_index_that_is_wrong(folder):
    path, _ = folder
    index = path / "model.safetensors.index.json"
    right = json.loads(index.read_text())
    places = dict(right["weight_map"], **{"transformer.wte.weight": "model-00002-of-00003.safetensors"})
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=r"not there: transformer.wte.weight in model-00002-of-00003"):
        from_pretrained(path)
    for text in ("{", "[]", "{}", '{"weight_map": {"a": 3}}', "[" * 100_000):
        index.write_text(text)
        with pytest.raises(CheckpointError, match="not an index of shards"):
            from_pretrained(path)
    # a name that leads out of the folder is looked for in it
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(CheckpointError, match=f"{path.name}/passwd: no such file"):
        from_pretrained(path)


@pytest.mark.parametrize("entry", [
    ("F32", (3,), b"\0" * 8), ("F32", (-2, -1), b"\0" * 8), ("F32", ("a",), b"\0" * 8), ("BF16", (2,), b"\0" * 8),
    ("F32", (2.0,), b"\0" * 8),
])  # fmt: skip
def test_headers_that_lie(tmp_path, entry):
    write_file(tmp_path / "a.safetensors", {"x": entry})
    with pytest.raises(CheckpointError, match=r"corrupt: x|x has no dtype"):
        read_file(tmp_path / "a.safetensors")


def test_a_pickle_is_not_read_and_the_way_out_works(tmp_path, monkeypatch):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=7, n_positions=6, n_embd=8, n_head=2, n_layer=1)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin .* is a pickle") as caught:
        from_pretrained(tmp_path)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert len(lines) == 2
    monkeypatch.chdir(tmp_path)
    exec("\n".join(line.strip() for line in lines), {})
    with torch.no_grad():
        expected = theirs(torch.from_numpy(IDS)).logits.numpy()
    np.testing.assert_allclose(from_pretrained(tmp_path)(IDS), expected, rtol=0, atol=1e-6)


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(CheckpointError, match=r"no weights: expected model.safetensors"):
        from_pretrained(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"expected a folder with config.json, or a .gguf file"):
        from_pretrained(tmp_path / "a.safetensors")


def test_save_and_load(tmp_path):
    ours, other = Linear(3, 2), Linear(3, 2)
    save(ours, tmp_path / "a.safetensors")
    assert load(other, tmp_path / "a.safetensors") is other
    np.testing.assert_array_equal(other.W.data, ours.W.data)
    before = other.W.data.copy()
    with pytest.raises((CheckpointError, StateDictError), match="W is"):
        load(Linear(2, 2), tmp_path / "a.safetensors")
    np.testing.assert_array_equal(other.W.data, before)


def test_dtypes_are_those_of_the_format():
    assert all(np.dtype(name).itemsize == int("".join(c for c in key if c.isdigit()) or 8) // 8
               for key, name in DTYPES.items())  # fmt: skip
