"""Models of Hugging Face folders, in and out."""

import json
import math
import os
from pathlib import Path

import numpy as np

from numtrans.checkpoint import check_folder, write_arrays, write_json
from numtrans.errors import CheckpointError, ConfigError, DtypeError, StateDictError
from numtrans.models import BERT, GPT, T5, Llama, ViT, count_parameters
from numtrans.pretrained.hf_config import read_config, write_config
from numtrans.pretrained.hf_names import NAMES, plain_names
from numtrans.pretrained.names import fill, write
from numtrans.pretrained.tensors import WEIGHTS, read_tensors

MODELS = {"bert": BERT, "gpt2": GPT, "t5": T5, "llama": Llama, "vit": ViT}
ARCHITECTURES = {
    "bert": ("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Model"),
    "t5": ("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    "llama": ("LlamaForCausalLM", "LlamaModel"),
    "vit": ("ViTForImageClassification", "ViTModel"),
}
HEADS = ("pooler.", "cls.", "classifier.", "qa_outputs.")  # what BERT's files hold besides the body


def from_pretrained(path, dtype=np.float32, head=None, ignore=()):
    """Read a pretrained model: BERT, GPT-2, T5, Llama or ViT.

    Parameters
    ----------
    path : str or Path
        A folder with ``config.json`` and ``model.safetensors`` (or several files and
        ``model.safetensors.index.json``), as Hugging Face's ``save_pretrained`` writes it; a ``.gguf`` file of a Llama;
        or the name of a package of `numtrans.pretrained.packages`, such as ``"minilm"``.
    dtype : dtype, default float32
        float32 or float64. Weights kept as float16 or bfloat16 are widened, which is exact.
    head : {None, "pooled", "mlm", "none"}
        For BERT, what the model returns. By default what the file is made for.
    ignore : collection of str
        Fields of ``config.json`` to pass over, for one that is refused but changes nothing.

    Returns
    -------
    BERT, GPT, T5, Llama or ViT
        In evaluation mode.

    Raises
    ------
    CheckpointError
        If the kind of model or a field of its config is not supported; if files are missing, truncated or corrupt, or
        hold a pickle only; if arrays are missing, unexpected or of the wrong shape. The message names all of them.
    """
    from numtrans.pretrained.gguf_file import read_gguf
    from numtrans.pretrained.packages import PACKAGES, locate

    check_dtype(dtype)
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"from_pretrained: path is {path!r}, expected a path or the name of a package")
    if isinstance(ignore, str) or not np.iterable(ignore):
        raise ConfigError(f"from_pretrained: ignore is {ignore!r}, expected names of fields in a list")
    if path in PACKAGES and not Path(path).exists():
        path = locate(path)
    path = Path(path)
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path}: expected a folder with config.json, or a .gguf file")
    if path.is_file():
        check_head("llama", head)
        return read_gguf(path, dtype)
    theirs = read_json(path / "config.json")
    kind = kind_of(theirs, path)
    check_head(kind, head)
    tensors = plain_names(kind, read_tensors(path))
    options = {}
    if kind == "bert":
        options["head"], tensors = choose_head(head, theirs, tensors, path)
    config = read_config(kind, theirs, path / "config.json", ignore, **options)
    check_parameters(config, tensors, path)
    rows = NAMES[kind].rows(config)
    tensors = merge_copies(kind, rows, tensors, path)
    if kind == "t5" and not config.tie_output and theirs.get("tie_word_embeddings") and "shared.weight" in tensors:
        tensors.setdefault("lm_head.weight", tensors["shared.weight"])  # one table, but the output is not scaled
    return make_model(MODELS[kind], config, rows, tensors, dtype, path)


def save_pretrained(model, folder):
    """Write a folder that Hugging Face's ``from_pretrained`` reads: ``config.json`` and ``model.safetensors``.

    Parameters
    ----------
    model : BERT, GPT, T5, Llama or ViT
    folder : str or Path
        Made if need be.

    Raises
    ------
    ConfigError
        If `model` has a part that the other library's model has not, such as a GPT with sinusoids.
    CheckpointError
        If the files cannot be written.
    """
    kinds = [kind for kind, model_class in MODELS.items() if type(model) is model_class]
    if not kinds:
        raise ConfigError(f"save_pretrained: {type(model).__name__} is not one of "
                          f"{', '.join(m.__name__ for m in MODELS.values())}")  # fmt: skip
    (kind,) = kinds
    if not isinstance(folder, (str, os.PathLike)):
        raise ConfigError(f"save_pretrained: folder is {folder!r}, expected a path")
    config, folder = write_config(kind, model.config), Path(folder)
    masked = kind == "bert" and model.config.head == "mlm"
    arrays = write(NAMES[kind].rows(model.config), model.state_dict())
    prefix = "" if kind == "bert" and not masked else NAMES[kind].prefix
    heads = (*HEADS, "lm_head.")
    arrays = {name if name.startswith(heads) else prefix + name: array for name, array in arrays.items()}
    check_folder(folder)
    write_arrays(folder / WEIGHTS, arrays, "huggingface", metadata={"format": "pt"})
    dtype = str(next(iter(arrays.values())).dtype)
    about = {"architectures": [ARCHITECTURES[kind][1 if masked else 0]], "model_type": kind, "torch_dtype": dtype}
    write_json(folder / "config.json", about | config)


def check_parameters(config, tensors, path):
    """Raise if the config asks for a model far larger than the file: making it to name what is missing fills memory."""
    asked, held = count_parameters(config), sum(math.prod(tensor.shape) for tensor in tensors.values())
    if asked > 8 * held + 1_000_000:
        raise CheckpointError(
            f"{path}: config.json describes a model of {asked:,} parameters, but the weights hold {held:,}"
        )


def make_model(model_class, config, rows, arrays, dtype, path):
    """A new model with the weights `arrays`, in evaluation mode; `path` is named in errors."""
    model = model_class(config, rng=NoDraws()).astype(dtype).eval()
    try:
        fill(model, rows, arrays, stream=True)
    except StateDictError as error:
        raise CheckpointError(f"{path}: does not fit. {error}") from error
    return model


class NoDraws(np.random.Generator):
    """Draws zeros, for weights that are overwritten at once: drawing them takes longer than reading a large model."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size=None, *args, **kwargs):
        """Zeros that share one place in memory."""
        return np.broadcast_to(np.float32(0), () if size is None else size)

    def normal(self, loc=0.0, scale=1.0, size=None):
        """Zeros."""
        return self.standard_normal(size)

    def uniform(self, low=0.0, high=1.0, size=None):
        """Zeros."""
        return self.standard_normal(size)


def kind_of(theirs, path):
    """The kind of model that a ``config.json`` describes: a key of ``MODELS``."""
    kind, architectures = theirs.get("model_type"), architectures_of(theirs, path)
    if not isinstance(kind, str | None):
        raise CheckpointError(f"{path / 'config.json'}: model_type is {kind!r}, expected a string")
    if kind is None:
        kind = next((k for k, names in ARCHITECTURES.items() if set(architectures) & set(names)), None)
    if kind not in MODELS:
        raise CheckpointError(
            f"{path / 'config.json'}: architecture {kind or ', '.join(architectures) or 'unknown'} is not supported; "
            f"known are {', '.join(MODELS)}"
        )
    return kind


def architectures_of(theirs, path):
    """The ``architectures`` of a ``config.json``, a list of strings."""
    names = theirs.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{path / 'config.json'}: architectures is {names!r}, expected a list of strings")
    return names


def check_dtype(dtype):
    """Raise `DtypeError` unless `dtype` is float32 or float64."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found not in (np.float32, np.float64):
        raise DtypeError(f"from_pretrained: dtype is {dtype if found is None else found}, expected float32 or float64")


def check_head(kind, head):
    """Raise unless `head` is one that a model of this kind can have."""
    known = (None, "pooled", "mlm", "none") if kind == "bert" else (None,)
    if head not in known:
        raise ConfigError(f"from_pretrained: head is {head!r}, expected one of {known} for {kind}")


def choose_head(head, theirs, tensors, path):
    """The head of a BERT, and `tensors` without what other heads need."""
    if head is None:
        unknown = [name for name in architectures_of(theirs, path) if name not in ARCHITECTURES["bert"]]
        if unknown:
            raise CheckpointError(
                f"{path}: {', '.join(unknown)} has a head that numtrans has not; for the body alone say head='none' or "
                "head='pooled'"
            )
        head = next((h for h, part in (("mlm", "cls.predictions."), ("pooled", "pooler."))
                     if any(name.startswith(part) for name in tensors)), "none")  # fmt: skip
    own = {"pooled": ("pooler.",), "mlm": ("cls.predictions.",), "none": ()}[head]
    others = tuple(part for part in HEADS if part not in own)
    return head, {name: t for name, t in tensors.items() if name.startswith(own) or not name.startswith(others)}


def merge_copies(kind, rows, tensors, path):
    """`tensors` with tied arrays once, under their main name.

    Raises
    ------
    CheckpointError
        If two that the config ties are not equal: one of the two, config or file, is wrong.
    """
    needed, tensors = {row.theirs for row in rows}, dict(tensors)
    for copy, main in NAMES[kind].copies.items():
        if copy in needed or copy not in tensors:
            continue
        tensor = tensors.pop(copy)
        if main not in tensors:
            tensors[main] = tensor
        elif not np.array_equal(np.asarray(tensor), np.asarray(tensors[main])):
            raise CheckpointError(f"{path}: {copy} and {main} differ, but config.json says that they are tied")
    return tensors


def read_json(path):
    """The dict in a JSON file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; expected a Hugging Face folder or a .gguf file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
