"""The vocabulary inside a GGUF file, as a tokenizer of the ``tokenizers`` package.

A GGUF file begins with named values ("metadata"), little-endian: ``GGUF``, the version, the number of tensors, the
number of values; and for each value its name (length and UTF-8), its type and itself. Then come, for each tensor, its
name, sizes (the last axis first), type and place. Names that begin with
``tokenizer.ggml.`` describe the vocabulary. Rules that no file spells out, such as how a text is cut into words before
merging, are those of llama.cpp, which ``tokenizer.ggml.pre`` names.
"""

import mmap
import struct

import numpy as np

from numtrans.errors import CheckpointError
from numtrans.pretrained.tokenizer_files import import_tokenizers

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of tokens; others are unknown (2), unused (5) and bytes (6)

# How a text is cut into words, by the name in the file. "gpt2": GPT-2's pattern. "digits": each digit first, then
# GPT-2's pattern, so that a run of blanks before a digit stays whole. Else a pattern of its own.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "default", "mpt", "olmo", "jais"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), "digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _LLAMA3.replace("{1,3}", "")),
}
_IDS = {  # llama.cpp spells "separator" so
    "bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "mask": "mask", "cls": "cls", "sep": "seperator",
}  # fmt: skip


def read_metadata(path):
    """The named values at the beginning of a GGUF file; the weights are not read.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    dict
        Name -> number, bool, string, list of strings or array of numbers.

    Raises
    ------
    CheckpointError
        If the file is missing, no GGUF file of version 2 or 3, or cut short.
    """
    return read_header(path)[0]


def read_header(path):
    """All that a GGUF file says before its weights.

    Parameters, errors and the first value are those of `read_metadata`.

    Returns
    -------
    metadata : dict
    tensors : dict
        Name -> (shape, number of the type, first byte in the file).
    """
    try:
        with open(path, "rb") as file:
            start = file.read(24)
            if start[:4] != b"GGUF":
                what = f"it begins with {start[:4]!r}" if start else "it is empty"
                raise CheckpointError(f"{path}: not a GGUF file: {what}")
            version, tensor_count, count = struct.unpack("<IQQ", start[4:])
            if version not in (2, 3):
                raise CheckpointError(f"{path}: GGUF version {version} (little-endian) cannot be read, only 2 and 3")
            values, tensors, place = {}, {}, 24
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for _ in range(count):
                    name, place = _value(data, place, _STRING)
                    (kind,) = struct.unpack_from("<I", data, place)
                    values[name], place = _value(data, place + 4, kind)
                for _ in range(tensor_count):
                    name, place = _value(data, place, _STRING)
                    (axes,) = struct.unpack_from("<I", data, place)
                    *shape, kind, offset = struct.unpack_from(f"<{axes}QIQ", data, place + 4)
                    tensors[name], place = (tuple(shape[::-1]), kind, offset), place + 16 + 8 * axes
            align = int(values.get("general.alignment", 32))
            begin = -(-place // align) * align
            return values, {name: (shape, kind, begin + offset) for name, (shape, kind, offset) in tensors.items()}
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, ArithmeticError, struct.error) as error:
        raise CheckpointError(f"{path}: the GGUF file is broken or cut short ({error})") from error


def _value(data, place, kind):
    """The value of type `kind` at `place`, and the place after it."""
    if kind in _NUMBERS:
        (value,) = struct.unpack_from("<" + _NUMBERS[kind], data, place)
        return value, place + struct.calcsize("<" + _NUMBERS[kind])
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, place)
        return _piece(data, place + 8, length).decode("utf-8", errors="replace"), place + 8 + length
    if kind != _ARRAY:
        raise ValueError(f"type {kind} is unknown")
    kind, length = struct.unpack_from("<IQ", data, place)
    place += 12
    if kind in _NUMBERS:
        dtype = np.dtype(_NUMBERS[kind]).newbyteorder("<")
        return np.frombuffer(_piece(data, place, length * dtype.itemsize), dtype), place + length * dtype.itemsize
    items = []
    for _ in range(length):
        item, place = _value(data, place, kind)
        items.append(item)
    return items, place


def _piece(data, place, size):
    if place + size > len(data):
        raise ValueError(f"{size} bytes are to follow at {place}, but the file has {len(data)}")
    return data[place : place + size]


def make_tokenizer(metadata, path):
    """The tokenizer that the metadata describe, and its special ids.

    Parameters
    ----------
    metadata : dict
        As `read_metadata` returns.
    path : str or Path
        Named in errors.

    Returns
    -------
    tokenizer : tokenizers.Tokenizer
    ids : dict
        ``bos``, ``eos``, ``unk``, ``pad``, ``mask``, ``cls``, ``sep`` -> id, of those that the file has.

    Raises
    ------
    CheckpointError
        If the file holds no vocabulary, or one of a kind that is not supported.
    """
    tokenizers = import_tokenizers()

    def get(name, default=None):
        return metadata.get(f"tokenizer.ggml.{name}", default)

    tokens, model, pre = get("tokens"), get("model"), get("pre", "default")
    if not tokens or model is None:
        raise CheckpointError(f"{path}: the GGUF file holds no vocabulary (tokenizer.ggml.tokens and .model)")
    if model not in ("gpt2", "llama"):
        raise CheckpointError(f"{path}: vocabularies of the kind {model!r} are not supported, only 'gpt2' and 'llama'")
    if model == "gpt2" and pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise CheckpointError(f"{path}: how {pre!r} cuts a text into words is not known, only {known}")
    ids = {"bos": 1, "eos": 2, "unk": 0} if model == "llama" else {}
    ids.update({name: get(f"{full}_token_id") for name, full in _IDS.items() if get(f"{full}_token_id") is not None})
    wrong = [f"{name} {i}" for name, i in ids.items() if not 0 <= i < len(tokens)]
    if wrong:
        raise CheckpointError(f"{path}: special ids outside of the {len(tokens)} tokens: {', '.join(wrong)}")
    try:
        if model == "gpt2":
            tokenizer = _byte_level(tokens, get("merges", []), pre)
        else:
            tokenizer = _sentencepiece(tokens, get, ids["unk"])
    except Exception as error:  # what `tokenizers` raises has no class of its own
        raise CheckpointError(f"{path}: the vocabulary of the GGUF file cannot be used: {error}") from error
    for token, kind in zip(tokens, get("token_type", ())):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False)])
    # llama.cpp begins a text with bos, unless the file says otherwise, for these two kinds.
    add = {"bos": get("add_bos_token", model == "llama" or PRE_TOKENIZERS.get(pre) == _LLAMA3),
           "eos": get("add_eos_token", False)}  # fmt: skip
    around = {name: tokens[ids[name]] for name in add if add[name] and name in ids}
    if around:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*([around["bos"]] if "bos" in around else []), "$A", *([around["eos"]] if "eos" in around else [])],
            special_tokens=[(token, ids[name]) for name, token in around.items()],
        )
    return tokenizer, ids


def _byte_level(tokens, merges, pre):
    """Byte-pair encoding as of GPT-2."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    rule = PRE_TOKENIZERS[pre]
    vocab = {token: i for i, token in enumerate(tokens)}
    # Llama 3 takes a word that is a token as it is, even if no merges lead to it.
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in merges], ignore_merges=rule == _LLAMA3))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule in ("gpt2", "digits"))
    if rule == "gpt2":
        tokenizer.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(Regex(r"\p{N}" if rule == "digits" else rule), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens, get, unk):
    """SentencePiece's byte-pair encoding: the pair whose token has the highest score is merged first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in get("merges", [])] or _merges_of(tokens, vocab, get)
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=tokens[unk], fuse_unk=True, byte_fallback=True))
    blank = normalizers.Replace(" ", "\u2581")
    prefix = get("add_space_prefix", True)  # a blank before the first word, so that it is the same token as elsewhere
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), blank]) if prefix else blank
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(back + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tokenizer


def _merges_of(tokens, vocab, get):
    """Every way to make a token of two others, the highest score of the token first."""
    kinds, merges = get("token_type", [_NORMAL] * len(tokens)), []
    plain = {token for token, kind in zip(tokens, kinds) if kind in (_NORMAL, _USER_DEFINED)}
    for token, score, kind in zip(tokens, get("scores"), kinds):
        if kind == _NORMAL:
            ways = [(token[:i], token[i:]) for i in range(1, len(token))]
            ways = [way for way in ways if plain.issuperset(way)]
            ways.sort(key=lambda way: (vocab[way[0]], vocab[way[1]]))
            merges += [(-float(score), -len(left), -len(right), left, right) for left, right in ways]
    merges.sort(key=lambda merge: merge[:3])
    return [merge[3:] for merge in merges]
