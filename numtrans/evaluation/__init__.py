"""How good a trained model is on data: loss, perplexity, bits per byte, exact match, BLEU, chrF."""

from numtrans.evaluation.measure import evaluate_file, evaluate_pairs, evaluate_task, evaluate_text, evaluate_tokens
from numtrans.evaluation.result import Evaluation, add_up, corpus_scores

__all__ = [
    "Evaluation", "add_up", "corpus_scores", "evaluate_file", "evaluate_pairs", "evaluate_task", "evaluate_text",
    "evaluate_tokens",
]  # fmt: skip
