"""Sentence encoders on a small BERT: the mean over tokens, batches, and folders that ask for other steps."""

import json

import numpy as np
import pytest

from numtrans.errors import CheckpointError, DataError
from numtrans.models import BERT, BERTConfig
from numtrans.module import no_grad
from numtrans.pretrained import SentenceEncoder, save_pretrained

pytest.importorskip("tokenizers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "dog", "a", "##s"]
TEXTS = ["the cat sat", "a dog", "the dogs sat a cat the cat", ""]


@pytest.fixture
def folder(tmp_path):
    config = BERTConfig(len(WORDS), max_len=16, d_model=8, num_heads=2, num_layers=2, d_ff=12, head="none")
    model = BERT(config, rng=0)
    for parameter in model.parameters():
        parameter.data = (3 * parameter.data + 0.1).astype(np.float32)
    save_pretrained(model, tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    steps = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    write_steps(tmp_path, steps)
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return tmp_path


def write_steps(folder, steps):
    (folder / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
         for i, (name, path) in enumerate(steps)]
    ))  # fmt: skip


def test_each_sentence_by_hand(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    vectors = encoder.encode(TEXTS, batch_size=3)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors):
        with no_grad():
            h = encoder.model(np.array([encoder.tokenizer.encode(text)]))[0]  # alone, so without padding
        mean = h.mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), rtol=0, atol=1e-6)
    assert encoder.model.pending == 0
    np.testing.assert_allclose(encoder.encode(TEXTS[1]), vectors[1:2], rtol=0, atol=1e-6)


def test_encoding_between_a_forward_and_its_backward(folder):
    encoder = SentenceEncoder.from_pretrained(folder)
    encoder.model.train()
    h = encoder.model(np.array([[2, 5, 6, 3]]))
    pending = encoder.model.pending
    encoder.encode(TEXTS)
    assert encoder.model.pending == pending > 0
    encoder.model.backward(np.ones_like(h))
    assert encoder.model.pending == 0


def test_long_sentences_are_cut(folder):
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    encoder = SentenceEncoder.from_pretrained(folder)
    assert encoder.max_len == 5
    np.testing.assert_allclose(encoder.encode(["the cat sat a dog"]), encoder.encode(["the cat sat"]), atol=1e-6)
    long = SentenceEncoder(encoder.model, encoder.tokenizer, max_len=900)
    assert long.max_len == 16
    assert long.encode(["the " * 50]).shape == (1, 8)


def test_without_the_norm(folder):
    write_steps(folder, [("Transformer", ""), ("Pooling", "1_Pooling")])
    plain = SentenceEncoder.from_pretrained(folder).encode(TEXTS)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    assert np.abs(norms - 1).min() > 0.01
    write_steps(folder, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")])
    np.testing.assert_allclose(SentenceEncoder.from_pretrained(folder).encode(TEXTS), plain / norms, atol=1e-6)


def test_what_is_refused(folder):
    write_steps(folder, [("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense")])
    with pytest.raises(CheckpointError, match="has steps Transformer, Pooling, Dense"):
        SentenceEncoder.from_pretrained(folder)
    write_steps(folder, [("Transformer", ""), ("Pooling", "1_Pooling")])
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with pytest.raises(CheckpointError, match="pooling_mode_cls_token; expected pooling_mode_mean_tokens"):
        SentenceEncoder.from_pretrained(folder)
    (folder / "modules.json").write_text('[{"idx": 0}]')
    with pytest.raises(CheckpointError, match=r"modules.json: cannot be read"):
        SentenceEncoder.from_pretrained(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(DataError, match="at least one text"):
        SentenceEncoder.from_pretrained(folder).encode([])


def test_texts_and_batch_sizes_that_are_none(folder):
    """A batch size below 0 would leave the vectors as the memory was."""
    encoder = SentenceEncoder.from_pretrained(folder)
    for size in (0, -1, 2.5, True):
        with pytest.raises(DataError, match="batch_size must be a whole number of at least 1"):
            encoder.encode(TEXTS, batch_size=size)
    for texts in (None, 5, ["a", None], [b"a"]):
        with pytest.raises(DataError, match=r"SentenceEncoder: got .*, expected texts, each a string"):
            encoder.encode(texts)
