"""The files that a tokenizer comes in: ``tokenizer.json``, BERT's ``vocab.txt``, GPT-2's ``vocab.json`` and
``merges.txt``."""

import json

from numtrans.errors import CheckpointError

SPECIAL = ("bos", "eos", "pad", "unk", "mask", "cls", "sep")
# What special tokens are called where no file beside the tokenizer says so.
_USUAL = {
    "bos": ("<s>", "<|begin_of_text|>", "<|endoftext|>"), "eos": ("</s>", "<|end_of_text|>", "<|endoftext|>"),
    "pad": ("[PAD]", "<pad>"), "unk": ("[UNK]", "<unk>"), "mask": ("[MASK]", "<mask>"), "cls": ("[CLS]",),
    "sep": ("[SEP]",),
}  # fmt: skip


def import_tokenizers():
    """The ``tokenizers`` package with its parts."""
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.processors
    except ImportError as error:
        raise ImportError('load_tokenizer needs the tokenizers package: pip install "numtrans[pretrained]"') from error
    return tokenizers


def find_file(folder):
    """The file of the tokenizer in a folder."""
    for name in ("tokenizer.json", "vocab.txt", "vocab.json"):
        if (folder / name).is_file():
            return folder / name
    ggufs, spm = sorted(folder.glob("*.gguf")), sorted(folder.glob("*.model"))
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        raise CheckpointError(f"{folder}: holds {len(ggufs)} GGUF files; give the path of one")
    if spm:
        raise CheckpointError(_not_read(spm[0]))
    raise CheckpointError(f"{folder}: no tokenizer: expected tokenizer.json, vocab.txt, vocab.json and merges.txt, or "
                          "a .gguf file")  # fmt: skip


def read_file(file):
    """The tokenizer in a file, and its special ids by name.

    Parameters
    ----------
    file : Path
        ``tokenizer.json``, ``vocab.txt``, ``vocab.json`` or ``merges.txt``.

    Returns
    -------
    tokenizer : tokenizers.Tokenizer
    ids : dict
        ``bos``, ``eos``, ``pad``, ``unk``, ``mask``, ``cls``, ``sep`` -> id, of those that there are.
    """
    tokenizers = import_tokenizers()
    config = _read_json(file.with_name("tokenizer_config.json"))
    try:
        if file.name == "vocab.txt":
            tokenizer = _wordpiece(tokenizers, file, config)
        elif file.name in ("vocab.json", "merges.txt"):
            tokenizer = _gpt2(tokenizers, file.with_name("vocab.json"), file.with_name("merges.txt"))
        elif file.suffix == ".json":
            tokenizer = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8-sig"))
        else:
            raise CheckpointError(_not_read(file))
    except CheckpointError:
        raise
    except BaseException as error:  # what `tokenizers` raises has no class of its own, and is at times no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{file}: cannot be read as a tokenizer: {error}") from error
    return tokenizer, _special_ids(tokenizer, file, config)


def _not_read(file):
    if file.suffix == ".model":
        return (f"{file}: files of SentencePiece are not read. Convert it: AutoTokenizer.from_pretrained(folder)"
                ".save_pretrained(folder) of transformers writes tokenizer.json")  # fmt: skip
    return f"{file}: not a tokenizer: expected tokenizer.json, vocab.txt, vocab.json, merges.txt or a .gguf file"


def _read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _wordpiece(tokenizers, file, config):
    """BERT's tokenizer from its list of tokens."""
    lines = file.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    vocab = {token: i for i, token in enumerate(lines)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]
    if missing:
        raise CheckpointError(f"{file}: not a vocabulary of BERT, it lacks {', '.join(missing)}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        handle_chinese_chars=config.get("tokenize_chinese_chars", True), strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )  # fmt: skip
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    special = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token in vocab]
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return tokenizer


def _gpt2(tokenizers, vocab, merges):
    """GPT-2's tokenizer from its two files."""
    for file in (vocab, merges):
        if not file.is_file():
            raise CheckpointError(f"{file}: no such file; the tokenizer of GPT-2 is vocab.json and merges.txt")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if tokenizer.token_to_id("<|endoftext|>") is not None:
        tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _special_ids(tokenizer, file, config):
    """Name -> id of the special tokens, from the files beside the tokenizer, or from the usual names."""
    said = {**_read_json(file.with_name("special_tokens_map.json")), **config}
    named = {}
    for name in SPECIAL:
        token = said.get(f"{name}_token")
        named[name] = token.get("content") if isinstance(token, dict) else token
        if not isinstance(named[name], str | None):
            raise CheckpointError(f"{file}: the files beside it name {token!r} as {name}_token, expected a string")
    if not any(named.values()):
        named = {name: next((t for t in usual if tokenizer.token_to_id(t) is not None), None)
                 for name, usual in _USUAL.items()}  # fmt: skip
    return {name: tokenizer.token_to_id(token) for name, token in named.items() if token}
