"""Tokens a second of SmolLM2-135M: the same float32 weights in numtrans and in transformers on PyTorch."""

import statistics
import tempfile

import numpy as np
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from transformers import LlamaForCausalLM

from benchmarks.interleaved import interleaved, median_ratio
from numtrans.generation import generate
from numtrans.memory import keep_freed_memory
from numtrans.pretrained import from_pretrained, load_tokenizer, save_pretrained
from numtrans.pretrained.packages import locate

PROMPT = "The capital of France is"


def run(tokens, rounds, threads):
    """Print tokens a second of both, and the median of the ratios."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    path = locate("smollm2")
    model = from_pretrained(path)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder)
        peer = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = np.array([load_tokenizer(path).encode(PROMPT)])
    written = {}

    def numtrans():
        written["numtrans"] = generate(model, ids, tokens, temperature=0)

    def pytorch():
        with torch.inference_mode():
            written["PyTorch"] = peer.generate(
                torch.from_numpy(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            ).numpy()  # fmt: skip

    with threadpool_limits(threads, "blas"):
        seconds = interleaved({"numtrans": numtrans, "PyTorch": pytorch}, rounds)
        blas = {p["internal_api"]: p.get("architecture") for p in threadpool_info() if p["user_api"] == "blas"}
    if not (written["numtrans"] == written["PyTorch"]).all():
        print("the two wrote different tokens")
        return 1
    print(f"SmolLM2-135M, float32, {ids.shape[1]} tokens of prompt, {tokens} written, greedy, with a cache")
    print(f"{threads} threads each, {rounds} turns, NumPy {np.__version__} {blas}, PyTorch {torch.__version__}")
    for name, times in seconds.items():
        rates = [tokens / t for t in times]
        print(f"{name:9s} {statistics.median(rates):6.1f} tokens/s (from {min(rates):.1f} to {max(rates):.1f})")
    ratio = median_ratio(seconds, "numtrans", "PyTorch")
    print(f"time of numtrans as a share of PyTorch's, median of {rounds}: {ratio:.2f}")
    return 0
