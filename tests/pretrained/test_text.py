"""Text while it is written: whole characters, stop strings, and models of every origin."""

import numpy as np
import pytest

from numtrans.data import TextTask
from numtrans.errors import ConfigError
from numtrans.models import BERT, GPT, BERTConfig, GPTConfig
from numtrans.pretrained import attention_of, save_pretrained
from numtrans.pretrained.text import held_back, load_writer, pieces
from numtrans.runs import default_settings, make_run

TEXT = "héllo 🍣 日本 ok"


def decode(ids):
    """Bytes as ids."""
    return bytes(ids).decode("utf-8", errors="replace")


def test_pieces_are_whole_characters():
    found = list(pieces(iter(TEXT.encode()), decode))
    assert "".join(found) == TEXT
    assert "\ufffd" not in "".join(found)
    assert found == list(TEXT)  # each as soon as its last byte is there


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_what_is_not_whole_at_the_end_is_left_out(cut):
    assert "".join(pieces(iter("a🍣".encode()[: 1 + cut]), decode)) == "a"


def test_bytes_that_are_no_character_do_not_hold_up_the_rest():
    assert "".join(pieces(iter(b"a\xff\xfeb"), decode)) == "a\ufffd\ufffdb"


def test_an_end_token_ends():
    assert "".join(pieces(iter([104, 105, 0, 106]), decode, eos_id=0)) == "hi"


@pytest.mark.parametrize(("stop", "expected"), [
    (["."], "one, two"), (["two"], "one, "), (["o."], "one, tw"), (["three", ", t"], "one"), (["x"], "one, two. three"),
    (["three!"], "one, two. three"),
])  # fmt: skip
def test_stop_strings_are_not_shown_not_even_their_beginning(stop, expected):
    read = []

    def tokens():
        for byte in b"one, two. three":
            read.append(byte)
            yield byte

    found = []
    for piece in pieces(tokens(), decode, stop=stop):
        found.append(piece)
        assert expected.startswith("".join(found))
    assert "".join(found) == expected
    if "x" not in stop and "three!" not in stop:
        assert len(read) < 15  # nothing is drawn after the stop


def test_held_back():
    assert held_back("abcab", ["abx", "b"]) == 2
    assert held_back("abc", ["x"]) == 0


@pytest.fixture
def gpt2(tmp_path):
    """A folder of a small GPT-2 with a tokenizer of bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    save_pretrained(GPT(GPTConfig(256, max_len=64, d_model=8, num_heads=2, num_layers=2), rng=0), tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_folder_writes_as_generate_does(gpt2):
    from numtrans.generation import generate

    writer = load_writer(str(gpt2))
    text = "".join(writer.write("hé", 40, rng=3, temperature=0.7))
    ids = generate(writer.model, [writer.tokenizer.encode("hé")], 40, rng=3, temperature=0.7)[0, 3:]
    assert text == writer.tokenizer.decode(ids).rstrip("\ufffd")
    assert writer.count == 40
    with pytest.raises(ConfigError, match="the prompt is empty"):
        writer.write("", 4)


def test_a_run_writes(tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be. " * 60)
    settings = default_settings("text", layers=1, d_model=16, heads=2, block=8)
    task = TextTask(tmp_path / "text.txt", block=8)
    run = make_run(task, settings)
    (tmp_path / "run").mkdir()
    run.save(tmp_path / "run")
    writer = load_writer(tmp_path / "run")
    assert set("".join(writer.write("To ", 30, rng=0))) <= set("To be, or not to be. ")
    assert writer.count == 30


def test_models_that_do_not_write(tmp_path):
    save_pretrained(BERT(BERTConfig(7, d_model=8, num_heads=2, num_layers=1, d_ff=6), rng=0), tmp_path)
    with pytest.raises(ConfigError, match="a BERT does not continue text"):
        load_writer(tmp_path)


def test_attention_of_a_folder(gpt2):
    weights, tokens = attention_of(gpt2, "ab c")
    assert tokens == ["a", "b", " ", "c"]
    assert [w.shape for w in weights] == [(2, 4, 4)] * 2
    np.testing.assert_allclose(weights[1].sum(axis=-1), 1, atol=1e-6)
    assert np.triu(weights[0][0], 1).max() == 0  # causal
    with pytest.raises(ConfigError, match="the text has 0 tokens"):
        attention_of(gpt2, "")
    with pytest.raises(ConfigError, match="the text has 65 tokens, expected 1 to 64"):
        attention_of(gpt2, "x" * 65)
