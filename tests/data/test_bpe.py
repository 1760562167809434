"""Byte-pair encoding: a training worked by hand, the tokenizers package on the same merges, and old runs."""
import json
import os
import random
import subprocess
import sys
import unicodedata
from itertools import pairwise

import pytest

from numtrans.data import BytePairEncoder, load_text, vocabulary_from_dict
from numtrans.data.bpe import BYTES, merge, split_words
from numtrans.errors import DataError

TEXTS = ["the cat sat on the mat", "die Katze sa\u00df auf der Matte", "a hat, that hat!"] * 5
# Letters of several alphabets, marks that combine, digits of three kinds, blanks of many kinds, contractions, emoji.
PIECES = [
    "a", "b", "ab", "the", " ", "  ", "\n", "\t", "\r\n", "\x1c", "\x85", "\u00a0", "\u3000", "'s", "'ll", "'S", "'",
    "_", "1", "23", "\u0664", "\u00bd", "\u2167", "\u4e00", "\u6f22\u5b57", "\u00e9", "e\u0301", "\u0939\u093f\u0902",
    "\u05e9\u05c1", "\U0001f642", "\u200d", "-", "...", "<eos>", "!?",
]
SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]


def random_texts(count, seed, pieces=PIECES, longest=40):
    rng = random.Random(seed)
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(0, longest))) for _ in range(count)]


# ---- by hand


def test_the_most_frequent_pair_is_merged_first():
    # "aaab" twice and "ab" once: a-a counts 4, a-b 3. After aa: aa-a 2, a-b 3. After ab: aa-ab 2, and nothing is left.
    encoder = BytePairEncoder.train(["aaab", "aaab", "ab"], 300)
    assert encoder.tokens[256:] == [b"aa", b"ab", b"aaab"]
    a, b = encoder.encode("a") + encoder.encode("b")
    assert encoder.merges == [(a, a), (a, b), (260, 261)]
    assert encoder.encode("aaab ab aab") == [262, *encoder.encode(" "), 261, *encoder.encode(" "), 260, b]


def test_of_pairs_that_are_equally_frequent_the_smallest_ids_come_first():
    # "bc ab" has no space before its first word: b-c, space-a and a-b, each once. a < b < space, since GPT-2 numbers
    # the characters that print first.
    encoder = BytePairEncoder.train(["bc", "ab"], 261)
    assert encoder.tokens[256:] == [b"ab"]
    encoder = BytePairEncoder.train(["a b", "bc"], 262)
    assert encoder.tokens[256:] == [b"bc", b" b"]
    # The count of b-a falls from 2 to 1 when ab is made; then ab-ab, ab-b and b-a are equal, and b is the smallest.
    encoder = BytePairEncoder.train(["ababba"], 262)
    assert encoder.tokens[256:] == [b"ab", b"ba"]


def test_a_pair_is_merged_from_left_to_right():
    assert merge([5, 5, 5, 6], (5, 5), 9) == [9, 5, 6]
    assert merge([6, 5, 5, 5, 5], (5, 5), 9) == [6, 9, 9]
    assert merge([5], (5, 5), 9) == [5]
    assert merge([], (5, 5), 9) == []


def test_a_token_made_by_two_routes_has_one_id_and_its_earlier_merges_come_first():
    a, b, c = (BytePairEncoder().encode(x)[0] for x in "abc")
    encoder = BytePairEncoder([(b, c), (a, b), (261, c), (262, a), (a, 260)])       # bc, ab, abc, abca, and abc again
    assert len(encoder) == 264
    # First a, bc, a, bc. The last merge makes abc at the left; then abc and a go together, before the one at the right.
    assert encoder.encode("abcabc") == [263, 260]


def test_words():
    assert split_words("I'm  Bob's ") == ["I", "'m", " ", " Bob", "'s", " "]
    assert split_words("x\n\n  y") == ["x", "\n\n ", " y"]
    assert split_words("") == []
    for text in random_texts(200, seed=3):
        assert "".join(split_words(text)) == text


# ---- against the tokenizers package


def peer(encoder):
    """The encoder of the tokenizers package with the same vocabulary and merges."""
    tokenizers = pytest.importorskip("tokenizers")
    names = {b: chr(b) if unicodedata.category(chr(b))[0] not in "CZ" else None for b in range(256)}
    others = iter(range(256, 512))
    names = {b: names[b] or chr(next(others)) for b in range(256)}
    name = {i: "".join(names[b] for b in token) for i, token in enumerate(encoder.tokens, start=4)}
    vocab = {**{text: i for i, text in enumerate(SPECIAL)}, **{text: i for i, text in name.items()}}
    model = tokenizers.models.BPE(vocab, [(name[left], name[right]) for left, right in encoder.merges])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def train_peer(texts, vocab_size):
    """The to_dict of a run of an earlier version, whose subwords were learned by the tokenizers package."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer, {"level": "subword", "tokenizer": json.loads(tokenizer.to_str())}


def test_words_are_those_of_the_tokenizers_package():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Characters that one of the two versions of Unicode does not know cannot be compared.
    characters = map(chr, [*range(0x3400), *range(0x4E00, 0x110000, 47)])
    for c in (c for c in characters if unicodedata.category(c) not in ("Cn", "Cs")):
        text = f"a{c}1{c} {c}"
        assert split_words(text) == [text[start:end] for _, (start, end) in words.pre_tokenize_str(text)], hex(ord(c))
    for text in random_texts(500, seed=4):
        assert split_words(text) == [text[start:end] for _, (start, end) in words.pre_tokenize_str(text)], text


def test_ids_and_texts_are_those_of_the_tokenizers_package_with_the_same_merges():
    encoder = BytePairEncoder.train([load_text()[:60_000], *random_texts(100, seed=5)], 900)
    reference, rng = peer(encoder), random.Random(6)
    for text in [load_text()[60_000:80_000], "x" * 5000, "-" * 3001, *random_texts(500, seed=7)]:
        ids = encoder.encode(text)
        assert ids == reference.encode(text).ids, text
        assert encoder.decode(ids) == text
        some = [i for i in ids if rng.random() < 0.7]                   # cuts through characters
        assert encoder.decode(some) == reference.decode(some), text


def test_merges_in_any_order_are_those_of_the_tokenizers_package():
    # Merges at random, not learned: many tokens are made by two routes, and a merge may come before those of its parts.
    rng = random.Random(8)
    routes = early = 0
    for _ in range(150):
        grown, pairs = BytePairEncoder(), []
        known = [grown.encode(x)[0] for x in "ab"]
        while len(pairs) < 40:
            pair = rng.choice(known), rng.choice(known)
            if pair not in grown.merges and len(grown.token(pair[0]) + grown.token(pair[1])) < 7:
                known.append(grown._learn(pair))
                pairs.append(pair)
        routes += len(grown) < 260 + len(pairs)
        reference = peer(grown)
        for text in random_texts(20, seed=rng.random(), pieces="ab"):
            expected = reference.encode(text).ids
            assert grown.encode(text) == expected, (grown.merges, text)
            early += expected != without_stopping(grown, text)
    assert routes > 50
    assert early > 0                    # the rule of where a pass stops does matter


def without_stopping(encoder, text):
    ids = [encoder.encode(x)[0] for x in text]
    while ranks := [encoder.merges.index(pair) for pair in pairwise(ids) if pair in encoder.merges]:
        pair = encoder.merges[min(ranks)]
        ids = merge(ids, pair, 4 + encoder.tokens.index(encoder.token(pair[0]) + encoder.token(pair[1])))
    return ids


@pytest.mark.parametrize(("texts", "size"), [
    (TEXTS, 300), ([load_text()[:100_000]], 1000), (random_texts(60, seed=9), 500),
    *[(random_texts(4, seed=i, pieces=["ab", "abc", "ab\n ", "xyz 0"][i % 4], longest=150), 400) for i in range(40)],
])
def test_training_is_that_of_the_tokenizers_package(texts, size):
    _, data = train_peer(texts, size)
    assert BytePairEncoder.train(texts, size) == vocabulary_from_dict(data)


def test_runs_of_an_earlier_version_are_read():
    tokenizer, data = train_peer(TEXTS, 280)
    old = vocabulary_from_dict(json.loads(json.dumps(data)))
    assert type(old) is BytePairEncoder
    assert len(old) == tokenizer.get_vocab_size()
    for text in TEXTS:
        assert old.encode(text) == tokenizer.encode(text).ids
    model = data["tokenizer"]["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]      # as tokenizers before 0.20 wrote them
    assert vocabulary_from_dict(data) == old
    model["vocab"] = {token: i + 1 for token, i in model["vocab"].items()}
    with pytest.raises(DataError, match="not a vocabulary of numtrans"):
        vocabulary_from_dict(data)


# ---- the rest


def test_every_text_comes_back_exactly():
    encoder = BytePairEncoder.train(TEXTS, 280)
    assert len(encoder) == 280
    assert sorted(BYTES) == list(range(256))
    for text in [*TEXTS, " two  spaces ", "unseen: \u6f22\u5b57 \U0001f642 \n\t", "", "<eos> <pad>", "\0\x7f\x85"]:
        ids = encoder.encode(text)
        assert min(ids, default=4) >= 4
        assert encoder.decode(ids) == text


def test_special_ids():
    encoder = BytePairEncoder.train(TEXTS, 280)
    a, b = encoder.encode("the"), encoder.encode(" mat")
    assert encoder.decode([1, *a, 0, *b, 2, *a]) == "the mat"
    assert encoder.decode([*a, 3, *b]) == "the\ufffd mat"


def test_a_merge_learned_later_changes_words_seen_before():
    encoder = BytePairEncoder()
    a, b = encoder.encode("ab")
    encoder._learn((a, b))
    assert encoder.encode("ab") == [260]


def test_training_gives_the_same_merges_in_another_process():
    code = ("import json; from numtrans.data import BytePairEncoder as B; "
            f"print(json.dumps(B.train({TEXTS!r}, 280).to_dict()))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "5"})
    assert json.loads(out.stdout) == BytePairEncoder.train(TEXTS, 280).to_dict()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: BytePairEncoder.train(["a"], 259), "at least 260 .* got 259"),
    (lambda: BytePairEncoder.train("a"), "train: expected a list of strings, got one string"),
    (lambda: BytePairEncoder.train(["a"], 300.5), "vocab_size must be a whole number of at least 1, got 300.5"),
    (lambda: BytePairEncoder.train(None), "train: expected a list of strings, got NoneType"),
    (lambda: vocabulary_from_dict({"level": "subword", "tokenizer": {"model": {"vocab": {}, "merges": ["a b c"]}}}),
     "expected a dict with 'merges'"),
    (lambda: BytePairEncoder().decode([260]), r"BytePairEncoder\.decode: ids must be from 0 to 259, got 260"),
    (lambda: BytePairEncoder().encode(3), r"BytePairEncoder\.encode: expected a string, got int"),
    (lambda: BytePairEncoder().encode("\udfff"), r"character 0 is the lone surrogate U\+DFFF"),
    (lambda: BytePairEncoder([(4, 5), (4, 5)]), r"merge 1 is \(4, 5\), which was given before"),
    (lambda: BytePairEncoder([(4, 260)]), r"merge 0 must be two ids from 4 to 259, got \(4, 260\)"),
    (lambda: BytePairEncoder([(3, 5)]), r"merge 0 must be two ids from 4 to 259, got \(3, 5\)"),
    (lambda: BytePairEncoder([(4, 5, 6)]), "merge 0 must be two ids"),
    (lambda: vocabulary_from_dict({"level": "subword"}), "expected a dict with 'merges', got the keys"),
    (lambda: vocabulary_from_dict({"level": "subword", "merges": 3}), "expected a dict with 'merges'"),
    (lambda: vocabulary_from_dict({"level": "subword", "tokenizer": {}}), "expected a dict with 'merges'"),
])
def test_mistakes_are_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
