"""Text out of a language model while it is written.

A token may end inside a character: bytes of "é" or of an emoji can lie in two tokens. What is shown never holds half of
one, nor the beginning of what may become a stop string.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from numtrans.errors import CheckpointError, ConfigError
from numtrans.generation import lay_out_weights, stream
from numtrans.pretrained.huggingface import from_pretrained
from numtrans.pretrained.packages import PACKAGES, locate
from numtrans.pretrained.tokenizer import load_tokenizer

BROKEN = "\ufffd"  # what bytes that are no character are decoded to


@dataclass
class Writer:
    """A decoder-only model and what it takes to write text with it.

    Parameters
    ----------
    model : GPT or Llama
    tokenizer : Tokenizer
    eos_id : int or None
        Ends a text.
    suppress : tuple of int
        Ids that are never written.
    count : int
        Tokens written so far.
    """

    model: object
    tokenizer: object
    eos_id: int | None = None
    suppress: tuple = ()
    count: int = 0

    def write(self, prompt, max_new_tokens, *, stop=(), **options):
        """Yield the continuation of `prompt` piece by piece, each piece whole characters.

        Parameters
        ----------
        prompt : str
            At least one token.
        max_new_tokens : int
        stop : sequence of str
            The text ends before the first of them.
        **options
            ``temperature``, ``top_k``, ``rng`` and so on, see `numtrans.generation.generate`.
        """
        ids = self.tokenizer.encode(prompt)
        if not ids:
            raise ConfigError("generate: the prompt is empty, expected at least one token")
        tokens = stream(
            self.model, [ids], max_new_tokens, eos_id=self.eos_id, suppress=self.suppress, stop=stop,
            decode=self.tokenizer.decode, **options,
        )  # fmt: skip
        return pieces(self.counted(tokens), self.tokenizer.decode, self.eos_id, stop)

    def counted(self, tokens):
        """The only row of each of `tokens`, counted."""
        for token in tokens:
            self.count += 1
            yield int(token[0])


def pieces(tokens, decode, eos_id=None, stop=()):
    """Yield the text of `tokens`, an iterator of ids, as far as it is certain.

    All ids are decoded anew each time, since some tokenizers write the first token of a text otherwise than later
    ones; what has been yielded is cut off.
    """
    ids, done, text = [], 0, ""
    for token in tokens:
        if token == eos_id:
            break
        ids.append(token)
        text = decode(ids)
        ends = [place for place in (text.find(end) for end in stop) if place >= 0]
        if ends:
            text = text[: min(ends)]
            break
        sure = len(text) - max(held_back(text, stop), len(text) - len(text.rstrip(BROKEN)))
        if sure > done:
            yield text[done:sure]
            done = sure
    text = text.rstrip(BROKEN)  # the rest of the last character has not been written
    if len(text) > done:
        yield text[done:]


def held_back(text, stop):
    """How many characters at the end of `text` may be the beginning of one of `stop`."""
    return max((n for end in stop for n in range(1, len(end)) if text.endswith(end[:n])), default=0)


def load_writer(path):
    """The model and tokenizer of `path`, for writing text.

    Parameters
    ----------
    path : str or Path
        A name of `numtrans.pretrained.packages` (``"smollm2"``), a ``.gguf`` file, a Hugging Face folder with weights
        and a tokenizer, or the folder of a run of numtrans.

    Returns
    -------
    Writer

    Raises
    ------
    CheckpointError, DataError
        If it cannot be read.
    ConfigError
        If the model does not continue text.
    """
    if path in PACKAGES and not Path(path).exists():
        path = locate(path)
    path = Path(path)
    if is_run(path):
        from numtrans.data import BOS, EOS, PAD, UNK
        from numtrans.runs import load_run

        run = load_run(path)
        check_writes(run.model, path)
        return Writer(run.model, run.target_vocab, None, (PAD, BOS, EOS, UNK))
    model = from_pretrained(path)
    check_writes(model, path)
    lay_out_weights(model)
    tokenizer = load_tokenizer(path)
    return Writer(model, tokenizer, tokenizer.eos_id)


def check_writes(model, path):
    """Raise `ConfigError` unless `model` continues text."""
    from numtrans.models import GPT, Llama

    if not isinstance(model, (GPT, Llama)):
        raise ConfigError(f"{path}: a {type(model).__name__} does not continue text, expected a GPT or a Llama")


def is_run(path):
    """Whether `path` is the folder of a run of numtrans: its ``config.json`` names a task and no ``model_type``."""
    config = path / "config.json"
    if not config.is_file():
        return False
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{config}: cannot be read: {error}") from error
    return isinstance(content, dict) and "settings" in content and "model_type" not in content
