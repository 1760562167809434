"""Writing with a trained model, one token after another: sampling, greedy decoding, beam search."""

from numtrans.generation.beam import beam_search
from numtrans.generation.continuation import Continuation, evaluating
from numtrans.generation.sampling import draw, penalize, probabilities
from numtrans.generation.writing import generate, stream, translate
from numtrans.layers.side_by_side import lay_out_weights

__all__ = [
    "Continuation", "beam_search", "draw", "evaluating", "generate", "lay_out_weights", "penalize",
    "probabilities", "stream", "translate",
]  # fmt: skip
