"""Evaluation: the numbers against hand calculations and unpadded, unbatched ones; BLEU against sacrebleu itself."""

import json
import math
import sys
from itertools import pairwise, product

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numtrans import cli
from numtrans.data import BOS, EOS, IGNORE, SequenceTask, Vocabulary, make_vocabulary
from numtrans.errors import BackwardError, ConfigError, DataError
from numtrans.evaluation import (
    add_up,
    corpus_scores,
    evaluate_file,
    evaluate_pairs,
    evaluate_task,
    evaluate_text,
    evaluate_tokens,
)
from numtrans.evaluation.measure import hidden_batches
from numtrans.models import GPT, GPTConfig, Transformer, TransformerConfig
from numtrans.runs import Run, default_settings, make_objective, make_run, make_task, train_run

WORDS = ["one two three four five six seven", "eins zwei drei vier fünf sechs sieben"]
SMALL = dict(layers=1, d_model=32, heads=2, batch=32, evaluate_every=1000, save_every=1000, warmup=10)


def sentences(count, seed=0):
    """Pairs of number words, translated one by one."""
    rng = np.random.default_rng(seed)
    english, german = (line.split() for line in WORDS)
    picks = [rng.integers(7, size=rng.integers(3, 9)) for _ in range(count)]
    return [(" ".join(english[i] for i in row), " ".join(german[i] for i in row)) for row in picks]


def write_pairs(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs_run(tmp_path_factory):
    """A run that has learned to translate most of a sentence, and its folder."""
    folder = tmp_path_factory.mktemp("pairs")
    source = write_pairs(folder / "train.tsv", sentences(400))
    settings = default_settings("pairs", source=str(source), level="word", steps=120, dropout=0.1, **SMALL)
    task = make_task("pairs", source=settings["source"], level="word")
    run = make_run(task, settings)
    train_run(run, task, folder / "run")
    return run, task, folder / "run"


@pytest.fixture(scope="module")
def text_runs(tmp_path_factory):
    """Folder of a run for each objective, on characters."""
    folder = tmp_path_factory.mktemp("texts")
    text = folder / "text.txt"
    text.write_text("\n".join(source for source, _ in sentences(150)), encoding="utf-8")
    for objective in ("clm", "mlm", "span"):
        changes = dict(text=str(text), objective=objective, block=40, steps=20, dropout=0.1)
        settings = default_settings("text", **{**SMALL, **changes})
        task = make_task("text", text=str(text), block=40)
        train_run(make_run(task, settings), task, folder / objective)
    return folder


@pytest.fixture
def numtrans(monkeypatch, capsys):
    """Call the command; returns (status, standard output, standard error)."""
    monkeypatch.setattr("numtrans.memory.keep_freed_memory", lambda: True)

    def call(*arguments):
        capsys.readouterr()
        with threadpool_limits(None):
            status = cli.main([str(a) for a in arguments])
        return status, *capsys.readouterr()

    return call


class Chain(GPT):
    """Predicts a token from the one before by a table of probabilities (V, V)."""

    def forward(self, ids):
        return np.log(self.table)[ids]


class ChainTranslator(Transformer):
    """The same for targets; it does not look at the source."""

    def forward(self, src, tgt):
        return np.log(self.table)[tgt]

    def encode(self, src, src_mask=None):
        return src, src_mask

    def decode(self, tgt, memory, src_mask=None, tgt_mask=None, **_):
        return np.log(self.table)[tgt]


VOCAB = Vocabulary("ab")  # ids 4 and 5
A, B = 4, 5

TABLE = np.full((6, 6), 1 / 6)
TABLE[A] = [0, 0, 1 / 4, 0, 1 / 4, 1 / 2]  # after a: end 1/4, a 1/4, b 1/2
TABLE[B] = [0, 0, 1 / 2, 0, 3 / 8, 1 / 8]
TABLE[BOS] = [0, 0, 0, 0, 3 / 4, 1 / 4]
TABLE[TABLE == 0] = 1e-300


def chain(block=5):
    model = Chain(GPTConfig(6, max_len=block, d_model=4, num_heads=1, num_layers=1))
    model.table = TABLE
    return Run(model, VOCAB, VOCAB, {"objective": "clm", "block": block})


def chain_translator(**settings):
    model = ChainTranslator(TransformerConfig(6, 6, d_model=4, num_heads=1, num_encoder_layers=1,
                                              num_decoder_layers=1, d_ff=4))  # fmt: skip
    model.table = TABLE
    return Run(model, VOCAB, VOCAB, {"longest_target": 4, **settings})


# ---- hand calculations


def test_text_by_hand():
    result = evaluate_text(chain(), "abba")  # b after a: 1/2, b after b: 1/8, a after b: 3/8
    assert result.tokens == 3
    assert result.nats == pytest.approx(math.log(2) + math.log(8) + math.log(8 / 3), rel=1e-12)
    assert result.loss == pytest.approx(math.log(128 / 3) / 3, rel=1e-12)
    assert result.perplexity == pytest.approx((128 / 3) ** (1 / 3), rel=1e-12)
    assert result.bits_per_byte == pytest.approx(math.log2(128 / 3) / 3, rel=1e-12)
    assert result.right == 1  # after a comes b; after b the end is likelier than either
    assert result.accuracy == pytest.approx(1 / 3)
    assert (result.unknown, result.exact_match) == (0, None)


def test_pairs_by_hand():
    # a, end: 3/4 * 1/4.  b, b, end: 1/4 * 1/8 * 1/2.  The likeliest translation of anything is a b.
    pairs = [("a", "a"), ("ab", "bb"), ("b", "ab")]
    result = evaluate_pairs(chain_translator(), pairs)
    assert result.tokens == 2 + 3 + 3
    ab = 3 / 4 * 1 / 2 * 1 / 2
    assert result.nats == pytest.approx(-math.log(3 / 16) - math.log(1 / 64) - math.log(ab), rel=1e-12)
    assert result.right == 1 + 1 + 3
    assert result.written == ["ab", "ab", "ab"]
    assert result.exact == [False, False, True]
    assert result.exact_match == pytest.approx(1 / 3)
    assert result.perplexity == pytest.approx((16 / 3 * 64 / ab) ** (1 / 8), rel=1e-12)
    assert result.bits_per_byte is None


@pytest.mark.parametrize("length", [2, 3, 5, 6, 7, 10, 11, 12, 23])
@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_every_token_of_a_long_text_counts_once(length, batch_size):
    ids = np.random.default_rng(length).integers(A, B + 1, size=length)
    result = evaluate_tokens(chain(block=5), ids, batch_size=batch_size)
    assert result.tokens == length - 1
    losses = [-math.log(TABLE[a, b]) for a, b in pairwise(ids)]
    assert result.nats == pytest.approx(sum(losses), rel=1e-12)


def test_unknown_symbols_are_counted_and_leave_no_bytes():
    result = evaluate_text(chain(), "aXbYa")
    assert (result.unknown, result.tokens, result.bits_per_byte) == (2, 4, None)
    pairs = [("aX", "b"), ("b", "Xb"), ("b", "ab")]
    result = evaluate_pairs(chain_translator(), pairs)
    assert (result.unknown, result.tokens) == (2, 2 + 3 + 3)
    assert result.exact == [False, False, True]


def test_a_written_unknown_is_no_exact_match():
    run = chain_translator()
    run.model.table = TABLE.copy()
    run.model.table[BOS, 3] = 2.0  # it always begins with an unknown symbol
    run.model.table[3] = [0.01, 0.01, 0.9, 0.01, 0.01, 0.06]
    result = evaluate_pairs(run, [("a", "X")])
    assert result.written == ["\N{REPLACEMENT CHARACTER}"]
    assert result.exact == [False]


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_bytes_are_those_of_the_text_after_its_first_token(kind):
    text = "h\u00e9 \u20ac h\u00e9h\u00e9 " * 5
    vocab = make_vocabulary(kind, [text], 270)
    model = Chain(GPTConfig(len(vocab), max_len=7, d_model=4, num_heads=1, num_layers=1))
    model.table = np.full((len(vocab), len(vocab)), 1 / len(vocab))
    result = evaluate_text(Run(model, vocab, vocab, {"block": 7}), text)
    ids = vocab.encode(text)
    assert result.size == len(text.encode()) - {"char": 1, "byte": 1, "bpe": len(vocab.decode(ids[:1]).encode())}[kind]
    bits = (len(ids) - 1) * math.log2(len(vocab))
    assert result.bits_per_byte == pytest.approx(bits / result.size, rel=1e-6)


def test_perplexity_beyond_the_largest_number():
    run = chain()
    run.model.table = np.where(TABLE < 1e-200, 5e-324, TABLE)
    result = evaluate_tokens(run, [A, 0])  # padding never follows
    assert result.loss > 740
    assert result.perplexity == math.inf


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_beams_by_listing_all_translations(penalty):
    run = chain_translator()
    run.model.table = table = np.full((6, 6), 1e-300)
    table[BOS, [A, B]] = 0.6, 0.4
    table[A, [EOS, A, B]] = 0.30, 0.36, 0.34
    table[B, [EOS, A, B]] = 0.95, 0.03, 0.02
    best = {}
    for length in range(1, 6):  # 4 letters and the end, or 5 letters
        for row in product([A, B], repeat=length):
            path = [BOS, *row, *([EOS] if length < 5 else [])]
            total = sum(math.log(table[a, b]) for a, b in pairwise(path))
            best[VOCAB.decode(row)] = total / (len(path) - 1) ** penalty
    expected = max(best, key=best.get)
    assert (expected == "b") == (penalty < 2)  # the exponent decides: "b" or the longest
    assert evaluate_pairs(run, [("a", "b")]).written == ["aaaaa"]
    found = evaluate_pairs(run, [("a", "b"), ("aab", "b")], num_beams=64, length_penalty=penalty)
    assert found.written == [expected] * 2
    assert found.exact == [expected == "b"] * 2


# ---- against the model itself, one example at a time, without padding


def log_softmax(logits):
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def greedy(run, source, most):
    """The translation of one source, by whole forward passes."""
    src, ids = np.array([run.source_vocab.encode(source)]), [BOS]
    while len(ids) <= most and ids[-1] != EOS:
        ids.append(int(run.model(src, np.array([ids]))[0, -1].argmax()))
        run.model.clear()
    return run.target_vocab.decode(ids)


@pytest.fixture(scope="module")
def held_out(pairs_run):
    """The trained run in float64, unseen pairs of many lengths, and their losses and translations one by one."""
    trained, _, _ = pairs_run
    config = trained.model.config
    run = Run(Transformer(config, rng=0), trained.source_vocab, trained.target_vocab, trained.settings)
    run.model.load_state_dict(trained.model.state_dict())
    run.model.astype(np.float64).eval()
    pairs = [*sentences(30, seed=9), ("one", "eins"), ("two eleven", "zwei elf")]
    nats = tokens = right = 0
    for source, target in pairs:
        src, tgt = run.source_vocab.encode(source), run.target_vocab.encode(target)
        logp = log_softmax(run.model(np.array([src]), np.array([[BOS, *tgt]]))[0])
        run.model.clear()
        truth = [*tgt, EOS]
        nats -= sum(logp[t, i] for t, i in enumerate(truth))
        right += sum(logp[t].argmax() == i for t, i in enumerate(truth))
        tokens += len(truth)
    written = [greedy(run, source, run.settings["longest_target"] + 1) for source, _ in pairs]
    return run, pairs, (nats, tokens, right), written


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 32, 100])
def test_pairs_do_not_depend_on_the_batch_size(held_out, batch_size):
    run, pairs, (nats, tokens, right), written = held_out
    result = evaluate_pairs(run, pairs, batch_size=batch_size)
    assert result.nats == pytest.approx(nats, rel=1e-11)
    assert (result.tokens, result.right) == (tokens, right)
    assert result.unknown == 2  # eleven, elf
    assert result.written == written
    assert result.exact == [w == t for w, (_, t) in zip(written, pairs)]
    assert 0 < sum(result.exact) < len(pairs)


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_beams_do_not_depend_on_the_batch_size(held_out, batch_size):
    run, pairs, (nats, _, _), written = held_out
    alone = [run.translate([source], num_beams=3, length_penalty=0.5)[0] for source, _ in pairs]
    result = evaluate_pairs(run, pairs, batch_size=batch_size, num_beams=3, length_penalty=0.5)
    assert result.written == alone
    assert alone != written
    assert result.nats == pytest.approx(nats, rel=1e-11)


def test_bleu_and_chrf_are_those_of_sacrebleu(held_out):
    sacrebleu = pytest.importorskip("sacrebleu")
    run, pairs, _, written = held_out
    references = [target for _, target in pairs]
    result = evaluate_pairs(run, pairs)
    scores, signatures = corpus_scores(result.written, result.references)
    assert scores["BLEU"] == sacrebleu.corpus_bleu(written, [references]).score
    assert scores["chrF"] == sacrebleu.corpus_chrf(written, [references]).score
    assert 10 < scores["BLEU"] < 100
    assert signatures["BLEU"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "nc:6|nw:0" in signatures["chrF"]


def test_no_bleu_where_no_reference_has_four_words():
    pytest.importorskip("sacrebleu")
    scores, _ = corpus_scores(["12", "3 4"], ["12", "3 4"])
    assert scores == {"BLEU": None, "chrF": pytest.approx(100)}
    assert corpus_scores(["a b c d"], ["a b c d"])[0]["BLEU"] == pytest.approx(100)
    assert corpus_scores(["a"], ["a b c d"])[0]["BLEU"] == 0


def test_a_total_is_that_of_all_pairs_together(held_out):
    run, pairs, _, _ = held_out
    parts = [evaluate_pairs(run, part) for part in (pairs[:5], pairs[5:6], pairs[6:])]
    total, whole = add_up(parts), evaluate_pairs(run, pairs)
    assert total.name == "total"
    assert total.numbers() == pytest.approx(whole.numbers(), rel=1e-11)
    assert (total.written, total.references, total.exact) == (whole.written, whole.references, whole.exact)


def test_bytes_of_a_total():
    one, two, unknown = (evaluate_text(chain(), text) for text in ("abba", "aab", "aXb"))
    both = add_up([one, two])
    assert both.bits_per_byte == pytest.approx((one.nats + two.nats) / math.log(2) / (3 + 2))
    assert add_up([one, unknown]).bits_per_byte is None


def test_evaluation_has_no_dropout_and_leaves_the_model_as_it_was(pairs_run):
    run, task, _ = pairs_run
    calm = evaluate_pairs(run, task.test)
    run.model.train()
    try:
        assert evaluate_pairs(run, task.test).numbers() == calm.numbers()
        assert run.model.training
        with pytest.raises(BackwardError):
            run.model.backward(np.zeros((1, 1, len(run.target_vocab)), np.float32))
    finally:
        run.model.eval()


# ---- objectives


@pytest.mark.parametrize("length", [2, 23, 24, 25, 26, 100])
def test_hidden_tokens_and_the_others_are_the_text(length):
    ids = np.random.default_rng(length).integers(4, 20, size=length)
    masked = make_objective({"objective": "mlm", "block": 24}, range(20))
    spans = make_objective({"objective": "span", "block": 24}, range(20))
    end = length - (length % 24 == 1)  # one token by itself is left out
    read = []
    for (inputs,), labels in hidden_batches(masked, ids, 2):
        read += np.where(labels == IGNORE, inputs, labels).ravel().tolist()
        assert ((labels != IGNORE).sum(axis=1) == max(1, round(0.15 * inputs.shape[1]))).all()
    assert read == ids[:end].tolist()
    read = []
    for (source, _), target in hidden_batches(spans, ids, 2):
        for kept, cut in zip(source.tolist(), target.tolist()):
            for token in kept[:-1]:
                read += [token] if token < 20 else filled(cut, token)
    assert read == ids[:end].tolist()


def test_a_model_that_sees_one_token_at_a_time_is_asked_for_each():
    ids = np.arange(4, 9)
    batches = list(hidden_batches(make_objective({"objective": "mlm", "block": 1}, range(20)), ids, 2))
    assert [labels.shape for _, labels in batches] == [(2, 1), (2, 1), (1, 1)]
    assert np.concatenate([labels for _, labels in batches]).ravel().tolist() == ids.tolist()


def filled(target, sentinel):
    """What the target says in place of a sentinel."""
    start = target.index(sentinel) + 1
    return target[start : target.index(sentinel - 1)]


@pytest.mark.parametrize("objective", ["clm", "mlm", "span"])
def test_texts_do_not_depend_on_the_batch_size(text_runs, objective):
    from numtrans.runs import load_run

    run = load_run(text_runs / objective)
    run.model.astype(np.float64)
    text = "\n".join(source for source, _ in sentences(20, seed=5))
    results = [evaluate_text(run, text, batch_size=size) for size in (1, 2, 7, 64)]
    for result in results[1:]:
        assert result.numbers() == pytest.approx(results[0].numbers(), rel=1e-12)
    other = evaluate_text(run, text, seed=1)
    assert (other.nats == pytest.approx(results[0].nats, rel=1e-12)) == (objective == "clm")


def test_a_masked_text_against_one_row_at_a_time(text_runs):
    from numtrans.runs import load_run

    run = load_run(text_runs / "mlm")
    run.model.astype(np.float64)
    ids = np.array(run.target_vocab.encode("one two three four five six seven five"))
    nats = tokens = 0
    for (inputs,), labels in hidden_batches(make_objective(run.settings, run.target_vocab), ids, 1):
        logp = log_softmax(run.model(inputs)[0])
        run.model.clear()
        asked = np.flatnonzero(labels[0] != IGNORE)
        nats -= logp[asked, labels[0, asked]].sum()
        tokens += len(asked)
    result = evaluate_tokens(run, ids)
    assert result.tokens == tokens
    assert result.nats == pytest.approx(nats, rel=1e-12)
    assert result.bits_per_byte is None


# ---- the command


def numbers(path):
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def test_the_command_on_files(pairs_run, numtrans, tmp_path):
    sacrebleu = pytest.importorskip("sacrebleu")
    run, _, folder = pairs_run
    one, two = sentences(10, seed=1), [*sentences(7, seed=2), ("one eleven", "eins elf")]
    files = [write_pairs(tmp_path / "one.tsv", one), write_pairs(tmp_path / "two.tsv", two)]
    status, out, err = numtrans("evaluate", folder, "--data", *files, "--out", tmp_path / "all.json")
    assert status == 0
    lines = out.splitlines()
    assert " ".join(lines[0].split()) == "pairs tokens unknown loss perplexity accuracy exact match BLEU chrF"
    assert [line.split()[0] for line in lines[1:4]] == [str(files[0]), str(files[1]), "total"]
    assert lines[4].startswith("BLEU: nrefs:1|")
    assert f"{files[1]} holds 2 symbols that the model has never seen" in err
    found = numbers(tmp_path / "all.json")
    assert [row["pairs"] for row in found] == [10, 8, 18]
    expected = evaluate_pairs(run, one + two)
    assert found[2]["loss"] == pytest.approx(expected.loss, rel=1e-6)
    assert found[2]["perplexity"] == pytest.approx(math.exp(expected.loss), rel=1e-6)
    assert found[2]["BLEU"] == sacrebleu.corpus_bleu(expected.written, [expected.references]).score
    assert lines[3].split()[-2:] == [f"{found[2][name]:.2f}" for name in ("BLEU", "chrF")]
    assert [t["translation"] for row in found[:2] for t in row["translations"]] == expected.written
    assert "translations" not in found[2]

    assert numtrans("evaluate", folder, "--data", *files, "--out", tmp_path / "all.tsv")[0] == 0
    rows = [line.split("\t") for line in (tmp_path / "all.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["file", "source", "reference", "translation", "exact"]
    assert [tuple(row[1:3]) for row in rows[1:]] == one + two
    assert [row[3] for row in rows[1:]] == expected.written
    assert [row[4] for row in rows[1:]] == [str(int(right)) for right in expected.exact]
    assert {path.name for path in tmp_path.iterdir()} == {"one.tsv", "two.tsv", "all.json", "all.tsv"}


def test_the_command_on_two_files_side_by_side(pairs_run, numtrans, tmp_path):
    _, _, folder = pairs_run
    pairs = sentences(6, seed=3)
    both = write_pairs(tmp_path / "both.tsv", pairs)
    sides = [tmp_path / "source.txt", tmp_path / "target.txt"]
    for side, lines in zip(sides, zip(*pairs)):
        side.write_text("\n".join(lines) + "\n", encoding="utf-8")
    tables = []
    for data in (["--data", both], ["--source", both], ["--source", sides[0], "--target", sides[1]]):
        status, out, _ = numtrans("evaluate", folder, *data, "--batch", 3)
        assert status == 0
        header, row = out.splitlines()[:2]
        tables.append(row.split()[1 - len(header.split()) :])  # without the column of the names
    assert tables[0] == tables[1] == tables[2]


def test_the_command_with_beams(pairs_run, numtrans, tmp_path):
    run, _, folder = pairs_run
    pairs = sentences(12, seed=4)
    data = write_pairs(tmp_path / "pairs.tsv", pairs)
    beams = ["evaluate", folder, "--data", data, "--out", tmp_path / "out.json", "--beams", 3]
    for options, penalty in (([], 1.0), (["--length-penalty", -6], -6.0)):
        assert numtrans(*beams, *options)[0] == 0
        written = [pair["translation"] for pair in numbers(tmp_path / "out.json")[0]["translations"]]
        assert written == run.translate([source for source, _ in pairs], num_beams=3, length_penalty=penalty)
    assert written != run.translate([source for source, _ in pairs], num_beams=3)


def test_without_files_the_run_is_judged_by_its_own_test_pairs(pairs_run, numtrans, tmp_path):
    run, task, folder = pairs_run
    assert numtrans("evaluate", folder, "--out", tmp_path / "own.json")[0] == 0
    (found,) = numbers(tmp_path / "own.json")
    assert found["name"] == "test split"
    assert [(t["source"], t["reference"]) for t in found["translations"]] == task.test
    assert found["loss"] == pytest.approx(evaluate_pairs(run, task.test).loss, rel=1e-6)


def test_without_files_a_text_run_is_judged_by_its_validation_part(text_runs, numtrans, tmp_path):
    status, out, _ = numtrans("evaluate", text_runs / "clm", "--out", tmp_path / "own.json")
    assert status == 0
    assert "BLEU" not in out
    (found,) = numbers(tmp_path / "own.json")
    last = json.loads((text_runs / "clm" / "history.jsonl").read_text().splitlines()[-1])
    assert found["loss"] == pytest.approx(last["valid_loss"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2), rel=1e-6)  # one byte a character
    for objective in ("mlm", "span"):
        assert numtrans("evaluate", text_runs / objective)[0] == 0


def test_without_sacrebleu_the_other_numbers_are_there(pairs_run, numtrans, monkeypatch, tmp_path):
    _, _, folder = pairs_run
    data = write_pairs(tmp_path / "pairs.tsv", sentences(5))
    for name in ("sacrebleu", "sacrebleu.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    status, out, err = numtrans("evaluate", folder, "--data", data, "--out", tmp_path / "out.json")
    assert status == 0
    assert out.splitlines()[0].split()[-2:] == ["exact", "match"]
    assert 'BLEU and chrF need the package sacrebleu: pip install "numtrans[evaluate]"' in err
    assert numbers(tmp_path / "out.json")[0].keys() >= {"loss", "perplexity", "exact_match"}
    with pytest.raises(ImportError, match=r"numtrans\[evaluate\]"):
        corpus_scores(["a"], ["a"])


def test_a_written_line_break_does_not_break_the_table(tmp_path):
    from numtrans.cli.evaluate import write

    pairs = evaluate_pairs(chain_translator(), [("a", "ab")])
    pairs.written = ["a\tb\nc\\"]
    write(tmp_path / "a.tsv", [pairs], [pairs.numbers()], {})
    assert (tmp_path / "a.tsv").read_text().splitlines()[1] == "pairs\ta\tab\ta\\tb\\nc\\\\\t1"


def test_json_holds_no_infinity(tmp_path):
    from numtrans.cli.evaluate import write

    text = evaluate_text(chain(), "abba")
    text.nats = math.inf
    write(tmp_path / "a.json", [text], [text.numbers()], {})
    assert numbers(tmp_path / "a.json")[0]["perplexity"] is None


# ---- mistakes


def refuses(result, *parts):
    status, _, err = result
    assert status == 2
    assert err.startswith("numtrans: ")
    for part in parts:
        assert part in err


def test_mistakes_with_files(pairs_run, numtrans, tmp_path):
    _, _, folder = pairs_run
    refuses(numtrans("evaluate", tmp_path / "none"), "none", "not the folder of a run")
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    refuses(numtrans("evaluate", folder, "--data", empty), "empty.tsv", "is empty")
    refuses(numtrans("evaluate", folder, "--data", tmp_path / "no.tsv"), "there is no file", "no.tsv")
    (tmp_path / "bad.tsv").write_text("one\teins\n\ntwo zwei\n")
    refuses(numtrans("evaluate", folder, "--data", tmp_path / "bad.tsv"), "line 3 of", "bad.tsv", "0 tabs")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\0\0")
    refuses(numtrans("evaluate", folder, "--data", tmp_path / "picture.png"), "picture.png", "binary")
    good = write_pairs(tmp_path / "good.tsv", sentences(3))
    refuses(numtrans("evaluate", folder, "--data", good, "--source", good), "not both")
    refuses(numtrans("evaluate", folder, "--data", good, "--length-penalty", 2), "give --beams 2 or more")
    refuses(numtrans("evaluate", folder, "--data", good, "--beams", 2, "--length-penalty", "inf"), "finite")
    refuses(numtrans("evaluate", folder, "--target", good), "--target needs --source")
    refuses(numtrans("evaluate", folder, "--data", good, "--out", tmp_path / "out.csv"), ".tsv", ".json")
    (tmp_path / "file").write_text("x")
    refuses(numtrans("evaluate", folder, "--data", good, "--out", tmp_path / "file" / "out.tsv"), "not a folder")


def test_mistakes_with_text_runs(text_runs, numtrans, tmp_path):
    text, folder = text_runs / "text.txt", text_runs / "clm"
    refuses(numtrans("evaluate", folder, "--source", text, "--target", text), "--source is for pairs", "GPT")
    refuses(numtrans("evaluate", folder, "--data", text, "--out", tmp_path / "a.tsv"), "writes no translations")
    refuses(numtrans("evaluate", folder, "--beams", 4), "--beams", "translations", "GPT")
    refuses(numtrans("evaluate", folder, "--length-penalty", 0), "--length-penalty", "translations", "GPT")
    (tmp_path / "short.txt").write_text("o")
    refuses(numtrans("evaluate", folder, "--data", tmp_path / "short.txt"), "short.txt has 1 tokens", "at least 2")
    (tmp_path / "other.txt").write_text("\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 40, encoding="utf-8")
    refuses(numtrans("evaluate", text_runs / "mlm", "--data", tmp_path / "other.txt"), "other.txt has no token", "mlm")


def test_data_that_have_changed_since_the_training(pairs_run, tmp_path):
    run, task, _ = pairs_run
    with pytest.raises(DataError, match="changed since it was trained"):
        evaluate_task(run, SequenceTask("copy", n_train=10, n_valid=5, n_test=5))
    assert evaluate_task(run, task).name == "test split"


def test_functions_refuse_what_they_cannot_judge(tmp_path):
    text, pairs = chain(), chain_translator()
    with pytest.raises(ConfigError, match="holds a Chain, a model of texts"):
        evaluate_pairs(text, [("a", "b")])
    with pytest.raises(ConfigError, match="encoder-decoder of pairs"):
        evaluate_text(pairs, "ab")
    with pytest.raises(ConfigError, match="reads one text, no pairs"):
        evaluate_file(text, tmp_path / "a", tmp_path / "b")
    with pytest.raises(DataError, match="text has 1 tokens"):
        evaluate_text(text, "a")
    with pytest.raises(DataError, match="pairs has no pairs"):
        evaluate_pairs(pairs, [])
    for call in (lambda: evaluate_text(text, "ab", batch_size=0), lambda: evaluate_pairs(pairs, ["ab"], batch_size=0)):
        with pytest.raises(ConfigError, match="batch_size must be at least 1"):
            call()


def test_a_pair_longer_than_learned_positions():
    vocab = VOCAB
    config = TransformerConfig(6, 6, d_model=4, num_heads=1, num_encoder_layers=1, num_decoder_layers=1, d_ff=4,
                               max_len=5, position="learned")  # fmt: skip
    run = Run(Transformer(config, rng=0), vocab, vocab, {"longest_target": 4})
    assert evaluate_pairs(run, [("aaaaa", "bbbb")]).tokens == 5
    with pytest.raises(DataError, match="source of pair 2 of f has 6 tokens, but the model has positions for 5 only"):
        evaluate_pairs(run, [("a", "b"), ("aaaaaa", "b")], name="f")
    with pytest.raises(DataError, match="target of pair 1 of pairs has 6 tokens"):
        evaluate_pairs(run, [("a", "bbbbb")])
