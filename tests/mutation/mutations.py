"""Mistakes that a person who writes a Transformer by hand makes, each as one edit of the package.

`run.py` plants them one at a time and shows that the gradient checker or a test notices. ``old`` occurs exactly once in
its file; where ``nth`` is given it occurs more often and that occurrence, counted from 1, is meant.
`test_mutations_apply.py` keeps the list in step with the code.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A file under numtrans/, the components that the gradient checker runs on, and the test files (under tests/)."""

    file: str
    components: tuple = ()
    tests: tuple = ()


@dataclass(frozen=True)
class Mutation:
    """One wrong edit. ``components`` and ``tests`` replace those of the place."""

    id: str
    place: Place
    old: str
    new: str
    mistake: str
    nth: int | None = None
    components: tuple | None = None
    tests: tuple | None = None

    @property
    def file(self):
        return self.place.file

    def checked(self):
        return self.place.components if self.components is None else self.components

    def tested(self):
        return self.place.tests if self.tests is None else self.tests

    def apply(self, text):
        """`text` of the file with the edit; ValueError if ``old`` is not there as promised."""
        count = text.count(self.old)
        if (self.nth is None and count != 1) or (self.nth is not None and count < max(self.nth, 2)):
            raise ValueError(f"{self.id}: {count} times in {self.file} (nth={self.nth}): {self.old!r}")
        start = -1
        for _ in range(self.nth or 1):
            start = text.index(self.old, start + 1)
        return text[:start] + self.new + text[start + len(self.old) :]


GOLDEN = "golden/test_golden.py"
FAULTS = "faults/test_faults_layers.py"

LINEAR = Place("layers/linear.py", ("Linear", "TiedLinear"), ("layers/test_linear.py",))
EMBEDDING = Place("layers/embedding.py", ("Embedding", "Embedding, scaled"), ("layers/test_embedding.py",))
ACTIVATIONS = Place("layers/activations.py", ("ReLU", "GELU", "GELU, tanh form", "SiLU", "Sigmoid", "Tanh"),
                    ("layers/test_activations.py", GOLDEN))  # fmt: skip
DROPOUT = Place("layers/dropout.py", ("Dropout",), ("layers/test_dropout.py",))
SOFTMAX = Place("layers/softmax.py", ("Softmax", "Softmax, axis 1", "LogSoftmax"), ("layers/test_softmax.py", FAULTS))
MASKS = Place("layers/masks.py", (), ("layers/test_masks.py", "layers/test_attention.py"))
ATTENTION = Place("layers/attention.py", ("ScaledDotProductAttention", "Attention, causal", "Attention, dropout"),
                  ("layers/test_attention.py", "layers/test_multi_head_attention.py", "layers/test_relative.py",
                   GOLDEN))  # fmt: skip
MULTI_HEAD = Place("layers/multi_head_attention.py", ("MultiHeadAttention, self", "Multi-query attention"),
                   ("layers/test_multi_head_attention.py", "layers/test_rotary.py", GOLDEN))  # fmt: skip
POSITIONAL = Place("layers/positional.py", ("SinusoidalPositionalEncoding", "LearnedPositionalEncoding"),
                   ("layers/test_positional.py",))  # fmt: skip
ROTARY = Place("layers/rotary.py",
               ("RotaryPositionalEncoding", "Rotary, interleaved", "Rotary, partial width"),
               ("layers/test_rotary.py",))  # fmt: skip
SHAW = Place("layers/relative.py", ("ShawRelativePosition", "Attention with Shaw positions"),
             ("layers/test_relative.py",))  # fmt: skip
BIAS = Place("layers/relative_bias.py", ("T5RelativeBias", "Attention with T5 bias"), ("layers/test_relative.py",))
NORM = Place("layers/normalization.py", ("LayerNorm", "RMSNorm", "BatchNorm", "BatchNorm, masked",
             "BatchNorm, evaluation"), ("layers/test_normalization.py", GOLDEN))  # fmt: skip
FEEDFORWARD = Place("layers/feedforward.py", ("FeedForward, GELU", "SwiGLU"), ("layers/test_feedforward.py",))
RESIDUAL = Place("layers/residual.py", ("Residual, pre-norm", "Residual, post-norm"), ("layers/test_residual.py",))
BLOCKS = Place("blocks.py", ("EncoderLayer, pre-norm", "Encoder, pre-norm"), (GOLDEN, FAULTS))
TRANSFORMER = Place("models/transformer.py", ("Transformer, ReLU",), (GOLDEN, FAULTS))
GPT = Place("models/gpt.py", ("GPT",), (GOLDEN, FAULTS))
TOKENS = Place("models/embeddings.py", ("GPT",), (GOLDEN,))
LOSSES = Place("losses.py", ("CrossEntropyLoss", "CrossEntropyLoss, smoothed", "CrossEntropyLoss, sum",
               "CrossEntropyLoss, none", "MSELoss"), ("test_losses.py",))  # fmt: skip
OPTIM_TESTS = ("optim/test_optimizers.py", "faults/test_faults_losses_optim.py")
ADAM = Place("optim/adam.py", (), OPTIM_TESTS)
SGD = Place("optim/sgd.py", (), OPTIM_TESTS)
OPTIMIZER = Place("optim/optimizer.py", (), OPTIM_TESTS)
GROUPS = Place("optim/groups.py", (), OPTIM_TESTS)
CLIPPING = Place("optim/clipping.py", (), ("optim/test_clipping.py",))
SCHEDULES = Place("optim/schedules.py", (), ("optim/test_schedules.py",))
MODULE = Place("module.py", ("Linear",), ("test_module.py",))
REDUCTIONS = Place("reductions.py", ("LayerNorm", "RMSNorm"), ("layers/test_normalization.py",))
TRAINING = Place("training.py", (), ("training/test_training.py",))

MUTATIONS = [
    # ---- linear
    Mutation("linear-dW-transposed", LINEAR, "self.W.add_grad(rows(x).T @ rows(dy))",
             "self.W.add_grad((rows(dy).T @ rows(x)).reshape(self.W.data.shape))",
             "dW is dy^T x, pressed into the shape of W"),
    Mutation("linear-dW-no-sum", LINEAR, "self.W.add_grad(rows(x).T @ rows(dy))", "self.W.add_grad(x[0].T @ dy[0])",
             "dW of the first sequence of the batch only"),
    Mutation("linear-dx-not-transposed", LINEAR, "(rows(dy) @ self.W.data.T)",
             "(rows(dy) @ self.W.data.reshape(self.d_out, self.d_in))", "dx uses W where it needs W^T"),
    Mutation("linear-db-mean", LINEAR, "self.b.add_grad(sum_rows(dy))",
             "self.b.add_grad(sum_rows(dy) / rows(dy).shape[0])", "db is a mean over tokens, not a sum"),
    Mutation("linear-bias-not-added", LINEAR, "y += self.b.data", "y += 0 * self.b.data", "forward leaves out b"),
    Mutation("linear-xavier-gain", LINEAR, "bound = (6 / (d_in + d_out)) ** 0.5", "bound = (6 / d_in) ** 0.5",
             "initial bound from the inputs only"),
    Mutation("tied-dE-missing", LINEAR, "self.E.add_grad(rows(dy).T @ rows(x))", "pass",
             "the tied output adds nothing to the gradient of the table"),
    Mutation("tied-dE-assigned", LINEAR, "self.E.add_grad(rows(dy).T @ rows(x))", "self.E.grad = rows(dy).T @ rows(x)",
             "the tied output overwrites the gradient of the table"),
    # ---- embedding
    Mutation("embedding-backward-scale", EMBEDDING, "dE *= self.scale", "dE *= 1", "sqrt(D) missing in backward"),
    Mutation("embedding-scale-D", EMBEDDING, "d_model**0.5 if scale", "float(d_model) if scale",
             "scaled by D, not by its root"),
    Mutation("embedding-repeats-lost", EMBEDDING, "return one_hot.T @ dy",
             "total = xp.zeros((n, dy.shape[1]), dy.dtype)\n        total[ids] += dy\n        return total",
             "dE[ids] += dy keeps only the last of repeated tokens"),
    Mutation("embedding-sort-forgotten", EMBEDDING, "np.add.reduceat(dy[order], first, axis=0)",
             "np.add.reduceat(dy, first, axis=0)", "segment sums over rows that were not sorted"),
    Mutation("embedding-range-off-by-one", EMBEDDING, "int(ids.max()) >= self.vocab_size",
             "int(ids.max()) > self.vocab_size", "the id V is let through"),
    # ---- activations
    Mutation("relu-backward-all", ACTIVATIONS, "return dy * positive", "return dy * 1", "ReLU's backward cuts nothing"),
    Mutation("sigmoid-derivative", ACTIVATIONS, "dy * y * (1 - y)", "dy * (1 - y)",
             "derivative of the sigmoid is 1 - y"),
    Mutation("sigmoid-forward", ACTIVATIONS, "tanh(x * 0.5)", "tanh(x)", "sigmoid(2x) for sigmoid(x)"),
    Mutation("tanh-derivative", ACTIVATIONS, "dy * (1 - y * y)", "dy * (1 - y)", "y not squared"),
    Mutation("silu-product-rule", ACTIVATIONS, "dy * (s + y * (1 - s))", "dy * s",
             "second term of the product rule lost"),
    Mutation("gelu-density-without-x", ACTIVATIONS, "density *= x\n", "density *= 1\n", "x missing before the density"),
    Mutation("gelu-root-two", ACTIVATIONS, "erf(x * math.sqrt(0.5))", "erf(x)", "x not divided by sqrt 2"),
    Mutation("gelu-tanh-cube", ACTIVATIONS, "square *= 3 * 0.044715 * k", "square *= 0.044715 * k",
             "derivative of the cube without its 3"),
    Mutation("gelu-tanh-constant", ACTIVATIONS, "u = square * (0.044715 * k)", "u = square * (0.44715 * k)",
             "constant with a slipped point"),
    # ---- dropout
    Mutation("dropout-backward-scale", DROPOUT, "dx *= 1 / (1 - self.p)", "dx *= 1", "1 / (1 - p) missing in backward"),
    Mutation("dropout-forward-scale", DROPOUT, "y *= 1 / (1 - self.p)", "y *= 1", "1 / (1 - p) missing in forward"),
    Mutation("dropout-p-inverted", DROPOUT, "(h >= int(p * 2**32))", "(h < int(p * 2**32))",
             "keeps with probability p"),
    Mutation("dropout-same-mask", DROPOUT, "self.counter += 1", "self.counter += 0", "the same mask in every step"),
    Mutation("dropout-in-evaluation", DROPOUT, "if not self.training or self.p == 0:", "if self.p == 0:",
             "drops in evaluation too"),
    Mutation("dropout-new-mask-backward", DROPOUT, "dx = dy * keep",
             "dx = dy * keep_mask(get_xp(dy), shape, self.p, self.key, self.counter + 1)",
             "backward draws another mask"),
    Mutation("dropout-shared-mask", DROPOUT, "_mix(key ^ _mix(counter)), _mix(counter + _mix(key))",
             "_mix(counter), _mix(counter + 1)", "all layers drop the same places"),
    # ---- softmax
    Mutation("softmax-backward-axis", SOFTMAX, "(dp * p).sum(axis=self.axis, keepdims=True)",
             "(dp * p).sum(axis=-1, keepdims=True)", "sum over the last axis whatever the axis"),
    Mutation("softmax-dropped-sum", SOFTMAX, "return p * (dp - (dp * p).sum(axis=self.axis, keepdims=True))",
             "return p * dp", "the path through the denominator is lost"),
    Mutation("softmax-diagonal-only", SOFTMAX, "return p * (dp - (dp * p).sum(axis=self.axis, keepdims=True))",
             "return dp * p * (1 - p)", "only the diagonal of the Jacobian"),
    Mutation("softmax-overflow", SOFTMAX, "scores -= xp.maximum(largest, float(limits.min))", "scores -= 0",
             "largest score not subtracted"),
    Mutation("softmax-masked-row-nan", SOFTMAX, "scores -= xp.maximum(largest, float(limits.min))", "scores -= largest",
             "a fully masked row gives NaN"),
    Mutation("log-softmax-backward", SOFTMAX, "get_xp(y).exp(y) * dy.sum(axis=self.axis, keepdims=True)",
             "get_xp(y).exp(y) * dy", "dy not summed"),
    Mutation("log-softmax-axis", SOFTMAX, "xp.exp(y).sum(axis=axis, keepdims=True)",
             "xp.exp(y).sum(axis=-1, keepdims=True)", "sum over the last axis whatever the axis"),
    Mutation("log-softmax-overflow", SOFTMAX, "y = s - s.max(axis=axis, keepdims=True)", "y = s.copy()",
             "largest score not subtracted"),
    # ---- masks
    Mutation("causal-mask-strict", MASKS, "np.arange(Tk) <= np.arange(Tq)", "np.arange(Tk) < np.arange(Tq)",
             "a query does not see itself"),
    Mutation("causal-mask-one-ahead", MASKS, "+ (Tk - Tq)", "+ (Tk - Tq + 1)", "a query sees the next token"),
    Mutation("causal-mask-top-left", MASKS, "np.arange(Tq)[:, None] + (Tk - Tq)", "np.arange(Tq)[:, None]",
             "with more keys than queries aligned top left"),
    Mutation("causal-bias-strict", MASKS, "-xp.inf, dtype), 1)", "-xp.inf, dtype), 0)", "triangle hides the diagonal"),
    Mutation("causal-bias-one-ahead", MASKS, "-xp.inf, dtype), 1)", "-xp.inf, dtype), 2)",
             "triangle shows the next token"),
    Mutation("causal-bias-top-left", MASKS, "_triangles[key][Tk - Tq : Tk, :Tk]", "_triangles[key][:Tq, :Tk]",
             "triangle aligned top left"),
    Mutation("causal-bias-more-queries", MASKS, "bias[: Tq - Tk] = -xp.inf", "bias[: Tq - Tk] = 0",
             "queries before all keys see them"),
    Mutation("padding-inverted", MASKS, "(ids != pad_id)", "(ids == pad_id)", "attends to the padding only"),
    Mutation("padding-lengths", MASKS, "np.arange(max_len) < lengths", "np.arange(max_len) <= lengths",
             "one padded token is seen"),
    Mutation("mask-inverted", MASKS, "bias[~mask] = -xp.inf", "bias[mask] = -xp.inf", "True hides"),
    Mutation("mask-leaks", MASKS, "bias[~mask] = -xp.inf", "bias[~mask] = -10.0", "masked keys keep a small weight"),
    # ---- attention
    Mutation("attention-scale-forward", ATTENTION, "q = query * scale", "q = query * 1", "scores not scaled"),
    Mutation("attention-scale-backward", ATTENTION, "dquery *= scale", "dquery *= 1", "scale missing in dquery"),
    Mutation("attention-dkey-unscaled", ATTENTION, "dkey = matmul_by_token(dS.swapaxes(-1, -2), q)",
             "dkey = matmul_by_token(dS.swapaxes(-1, -2), q / scale)", "scale missing in dkey"),
    Mutation("attention-scale-power", ATTENTION, "query.shape[-1] ** -0.5", "query.shape[-1] ** -1.0", "divided by d"),
    Mutation("attention-scale-of-value", ATTENTION, "query.shape[-1] ** -0.5", "value.shape[-1] ** -0.5",
             "scale from the width of the values"),
    Mutation("attention-dropped-sum", ATTENTION, "dS -= dot_last(dS, P)", "dS -= 0",
             "softmax backward without its sum"),
    Mutation("attention-sum-axis", ATTENTION, "dS -= dot_last(dS, P)", "dS -= (dS * P).sum(-2, keepdims=True)",
             "softmax backward sums over the queries"),
    Mutation("attention-softmax-axis", ATTENTION, "softmax_(S)", "softmax_(S.swapaxes(-1, -2)).swapaxes(-1, -2)",
             "softmax over the queries"),
    Mutation("attention-dvalue-before-dropout", ATTENTION, "matmul_by_token(D.swapaxes(-1, -2), dO)",
             "matmul_by_token(P.swapaxes(-1, -2), dO)", "dvalue from the weights before dropout"),
    Mutation("attention-dropout-backward", ATTENTION, "dS = self.dropout.backward(dD)",
             "self.dropout.backward(dD)\n        dS = dD", "gradient does not pass through dropout"),
    Mutation("attention-dkey-of-weights", ATTENTION, "dkey = matmul_by_token(dS.swapaxes(-1, -2), q)",
             "dkey = matmul_by_token(P.swapaxes(-1, -2), q)", "dkey from P in place of dS"),
    Mutation("attention-two-inputs", ATTENTION, "(dquery, dkey + dvalue)", "(dquery, dkey)",
             "key used as value: only the key's gradient", components=()),
    Mutation("attention-one-input", ATTENTION, "return dquery + dkey + dvalue", "return dquery + dkey",
             "self-attention: dvalue dropped", components=()),
    Mutation("attention-relative-values", ATTENTION, "dD = dD if relative is None else dD + relative", "pass",
             "relative values give nothing to the weights", components=("Attention with Shaw positions",)),
    Mutation("attention-relative-scale", ATTENTION, "dquery += relative", "dquery += relative / scale",
             "relative scores pass back unscaled", components=("Attention with Shaw positions",)),
    Mutation("attention-offset", ATTENTION, "offset = Tk - Tq if self.causal else 0", "offset = 0",
             "relative positions of a cached step counted from 0", components=()),
    # ---- multi-head attention
    Mutation("heads-split-without-swap", MULTI_HEAD,
             "x.reshape(B, T, num_heads, width // num_heads).transpose(0, 2, 1, 3)",
             "x.reshape(B, num_heads, T, width // num_heads)", "heads split by reshape alone"),
    Mutation("heads-merge-without-swap", MULTI_HEAD, "x.transpose(0, 2, 1, 3).reshape(B, T, H * d)",
             "x.reshape(B, T, H * d)", "heads merged by reshape alone"),
    Mutation("heads-order", MULTI_HEAD, "x.reshape(B, T, num_heads, width // num_heads).transpose(0, 2, 1, 3)",
             "x.reshape(B, T, width // num_heads, num_heads).transpose(0, 3, 1, 2)",
             "features before heads in the split"),
    Mutation("groups-mean", MULTI_HEAD, ".sum(axis=2)", ".mean(axis=2)", "a shared key gets the mean of its group"),
    Mutation("groups-order", MULTI_HEAD, "dx.reshape(B, self.num_kv_heads, -1, T, d).sum(axis=2)",
             "dx.reshape(B, -1, self.num_kv_heads, T, d).sum(axis=1)", "groups are strided in backward",
             components=("Grouped-query attention",)),
    Mutation("groups-repeat-order", MULTI_HEAD, "x.repeat(self.num_heads // self.num_kv_heads, axis=1)",
             "x[:, list(range(self.num_kv_heads)) * (self.num_heads // self.num_kv_heads)]",
             "keys tiled, not repeated", components=("Grouped-query attention",)),
    Mutation("self-attention-dquery-only", MULTI_HEAD, "return dquery + dkey + dvalue", "return dquery",
             "one input collects one gradient of three"),
    Mutation("cross-attention-dkey-only", MULTI_HEAD, "(dquery, dkey + dvalue)", "(dquery, dkey)",
             "the memory loses the gradient of the values"),
    Mutation("three-inputs-order", MULTI_HEAD, "else (dquery, dkey, dvalue)", "else (dquery, dvalue, dkey)",
             "gradients of key and value exchanged", components=("MultiHeadAttention, cross",)),
    Mutation("values-of-keys", MULTI_HEAD, "self.v_proj(value)", "self.v_proj(key)", "values projected from the keys",
             components=("MultiHeadAttention, cross",)),
    Mutation("rotary-backward-order", MULTI_HEAD,
             "dk = self.rotary.backward(dk)\n            dq = self.rotary.backward(dq)",
             "dq = self.rotary.backward(dq)\n            dk = self.rotary.backward(dk)",
             "two uses of one module undone first in, first out", components=("Attention with RoPE",)),
    Mutation("rotary-query-offset", MULTI_HEAD, "key.shape[1] - query.shape[1] if self.attention.causal else 0", "0",
             "queries of a cached step rotated from position 0", components=()),
    # ---- positions
    Mutation("sinusoid-exponent", POSITIONAL, "(-np.arange(0, self.d_model, 2) / self.d_model)",
             "(-np.arange(0, self.d_model, 2) / (2 * self.d_model))", "frequencies with i / D for 2i / D",
             components=()),
    Mutation("sinusoid-sine-cosine", POSITIONAL, "table[:, 0::2] = np.sin(angle)", "table[:, 0::2] = np.cos(angle)",
             "cosines in the even columns", components=()),
    Mutation("sinusoid-offset", POSITIONAL, "self._table_like(x, end)[offset:end]",
             "self._table_like(x, end)[: end - offset]", "offset ignored", components=()),
    Mutation("sinusoid-backward-zero", POSITIONAL, "# 1. y = x + constant\n        return dy",
             "# 1. y = x + constant\n        return 0 * dy", "nothing passes the positions"),
    Mutation("learned-no-batch-sum", POSITIONAL, "sum_rows(dy.reshape(-1, T * D))", "dy.reshape(-1, T * D)[0]",
             "dW of the first sequence only"),
    Mutation("learned-backward-offset", POSITIONAL, "dW[offset : offset + T]", "dW[:T]", "offset ignored in backward",
             components=()),
    Mutation("rotary-backward-sign", ROTARY, "self._rotate(dy, cos, -sin)", "self._rotate(dy, cos, sin)",
             "backward turns forward once more"),
    Mutation("rotary-not-a-rotation", ROTARY, "x1 * cos - x2 * sin", "x1 * cos + x2 * sin", "sign of one sine"),
    Mutation("rotary-pairs", ROTARY, "if interleaved:", "if not interleaved:", "the two pairings exchanged",
             components=()),
    Mutation("rotary-rest-zero", ROTARY, "y[..., self.rotary_dim :] = x[..., self.rotary_dim :]",
             "y[..., self.rotary_dim :] = 0", "features outside the rotation are lost"),
    Mutation("rotary-frequency", ROTARY, "np.arange(0, self.rotary_dim, 2) / self.rotary_dim",
             "np.arange(0, self.rotary_dim, 2) / self.d_head", "frequencies by the head's width", components=()),
    Mutation("rotary-offset", ROTARY, "start = 0 if positions is None else check_offset(self, positions)", "start = 0",
             "position of the first token ignored", components=()),
    Mutation("shaw-distance-sign", SHAW, "xp.clip(distances(xp, Tq, Tk, offset), -k, k) + k",
             "xp.clip(-distances(xp, Tq, Tk, offset), -k, k) + k", "distance is query minus key in the scores"),
    Mutation("shaw-clip-end", SHAW, "(distance >= k)", "(distance > k)", "keys at the clip distance lost"),
    Mutation("shaw-daV-missing", SHAW, "self.aV.add_grad(rows(w).T @ rows(do))", "pass",
             "table of the values not learned"),
    Mutation("t5-batch-mean", BIAS, "self.backward(dS.sum(axis=0))", "self.backward(dS.mean(axis=0))",
             "mean over the batch, not sum"),
    Mutation("t5-direction", BIAS, "num_buckets * (distance > 0)", "num_buckets * (distance < 0)",
             "past and future exchanged", components=()),
    Mutation("t5-causal-sign", BIAS, "np.maximum(-distance, 0)", "np.maximum(distance, 0)",
             "one-directional buckets look ahead", components=()),
    Mutation("t5-diagonals", BIAS, "wide[:, :, :Tk] = x[:, ::-1]", "wide[:, :, :Tk] = x", "sums along anti-diagonals"),
    Mutation("alibi-sign", BIAS, "xp.asarray(-self.slopes", "xp.asarray(self.slopes", "distance is rewarded",
             components=()),
    Mutation("alibi-slopes", BIAS, "np.arange(1, 2 * power + 1, 2)", "np.arange(2, 2 * power + 2, 2)",
             "extra slopes start at the second", components=()),
    # ---- norms
    Mutation("layer-norm-mean-path", NORM, "dx -= mean_last(dx)", "dx -= 0", "path through the mean dropped"),
    Mutation("layer-norm-sigma-path", NORM, "dx -= xhat * along", "dx -= 0", "path through the deviation dropped"),
    Mutation("layer-norm-unbiased", NORM, "xp.sqrt(dot_last(xhat, xhat) / self.d_model + self.eps)",
             "xp.sqrt(dot_last(xhat, xhat) / (self.d_model - 1) + self.eps)", "variance over D - 1"),
    Mutation("layer-norm-eps-outside", NORM, "xp.sqrt(dot_last(xhat, xhat) / self.d_model + self.eps)",
             "xp.sqrt(dot_last(xhat, xhat) / self.d_model) + self.eps", "eps outside the root"),
    Mutation("layer-norm-dgamma", NORM, "self.gamma.add_grad(sum_rows(dy * xhat))", "self.gamma.add_grad(sum_rows(dy))",
             "dgamma without xhat", nth=1),
    Mutation("layer-norm-gamma-missing", NORM, "dx = dy * self.gamma.data", "dx = dy * 1", "dx without gamma", nth=1),
    Mutation("layer-norm-axis", NORM, "xhat = x - mean_last(x)", "xhat = x - x.mean(axis=-2, keepdims=True)",
             "centred over the tokens"),
    Mutation("rms-norm-path", NORM, "dx -= xhat * (dot_last(dx, xhat) / self.d_model)", "dx -= 0",
             "path through the root mean square dropped"),
    Mutation("rms-norm-dgamma", NORM, "self.gamma.add_grad(sum_rows(dy * xhat))",
             "self.gamma.add_grad(sum_rows(dy * xhat * r))", "dgamma with x for xhat", nth=2),
    Mutation("batch-norm-mean-path", NORM, "(dbeta + xhat * dgamma)", "(xhat * dgamma)",
             "path through the mean dropped"),
    Mutation("batch-norm-sigma-path", NORM, "(dbeta + xhat * dgamma)", "dbeta", "path through the deviation dropped"),
    Mutation("batch-norm-unbiased", NORM, "var = sum_rows(xhat * xhat) / n", "var = sum_rows(xhat * xhat) / (n - 1)",
             "normalizes with the unbiased variance"),
    Mutation("batch-norm-momentum", NORM, "(1 - self.momentum) * self.running_mean + self.momentum * mu",
             "self.momentum * self.running_mean + (1 - self.momentum) * mu", "weights of old and new exchanged"),
    Mutation("batch-norm-running-biased", NORM, "self.momentum * n / (n - 1) * var", "self.momentum * var",
             "running variance biased"),
    Mutation("batch-norm-mask-count", NORM, "n = int(mask.sum())", "n = tokens", "divides by all tokens"),
    Mutation("batch-norm-mask-forward", NORM, "xhat = (x2 - mu) * weight", "xhat = x2 - mu",
             "padding counts in the variance"),
    Mutation("batch-norm-mask-backward", NORM, "dx *= weight", "dx *= 1", "padding gets a gradient"),
    Mutation("batch-norm-eval-backward", NORM, "n if self.training else None", "n",
             "evaluation's backward as in training"),
    # ---- feed-forward, residual
    Mutation("feedforward-activation", FEEDFORWARD, "self.linear1.backward(self.activation.backward(dh))",
             "self.linear1.backward(dh)", "activation skipped in backward"),
    Mutation("feedforward-dropout", FEEDFORWARD, "dh = self.dropout.backward(self.linear2.backward(dy))",
             "dh = self.linear2.backward(dy)", "dropout skipped in backward"),
    Mutation("gated-branch", FEEDFORWARD, "return dx_gate + dx_up", "return dx_gate", "x collects from one branch"),
    Mutation("gated-product-rule", FEEDFORWARD, "self.up_proj.backward(dh * g)", "self.up_proj.backward(dh * u)",
             "du from u"),
    Mutation("gated-gate", FEEDFORWARD, '"silu", **kwargs', '"gelu", **kwargs', "SwiGLU gated by GELU"),
    Mutation("residual-skip-lost", RESIDUAL, "dx = dsum + dx", "dx = dx.copy()", "straight path dropped in backward"),
    Mutation("residual-skip-before-norm", RESIDUAL, "dx = dsum + dx", "dx = dy + dx",
             "post-norm: the straight path goes round the norm"),
    Mutation("residual-skip-of-norm", RESIDUAL,
             "return x + self.dropout(self.sublayer(self.norm(x), *others, **kwargs))",
             "x = self.norm(x)\n            return x + self.dropout(self.sublayer(x, *others, **kwargs))",
             "pre-norm: the skip takes norm(x)"),
    Mutation("residual-dropout-on-sum", RESIDUAL, "self.norm(x + self.dropout(self.sublayer(x, *others, **kwargs)))",
             "self.norm(self.dropout(x + self.sublayer(x, *others, **kwargs)))", "dropout on the sum"),
    Mutation("residual-norm-of-sum", RESIDUAL, "dx = self.norm.backward(dx)\n        dx = dsum + dx",
             "dx = self.norm.backward(dsum + dx)\n        else:\n            dx = dsum + dx",
             "pre-norm: the straight path goes back through the norm"),
    # ---- blocks
    Mutation("decoder-dmemory-overwritten", BLOCKS, "dm if dmemory is None else dmemory + dm", "dm",
             "memory's gradient of the first layer only", components=("Decoder, pre-norm",)),
    Mutation("decoder-cross-query", BLOCKS, "self.cross_attention(x, memory", "self.cross_attention(tgt, memory",
             "cross-attention skips self-attention", components=("DecoderLayer, post-norm",)),
    Mutation("decoder-not-causal", BLOCKS, "causal_mask(tgt.shape[-2]) if tgt_mask is None else tgt_mask", "tgt_mask",
             "no causal mask by default", components=()),
    Mutation("decoder-memory-mask", BLOCKS, "mask=memory_mask)", "mask=None)", "padding of the memory seen",
             components=()),
    Mutation("decoder-dmemory-order", BLOCKS, "return self.self_attention.backward(dx), dmemory",
             "return self.self_attention.backward(dx), 0 * dmemory", "memory gets nothing",
             components=("DecoderLayer, post-norm",)),
    Mutation("encoder-mask", BLOCKS, "self.self_attention(x, mask=mask)", "self.self_attention(x, mask=None)",
             "padding of the source seen", components=()),
    Mutation("encoder-closing-norm-missing", BLOCKS,
             'make_norm(norm, d_model) if norm_placement == "pre" else None', "None",
             "pre-norm encoder without closing norm", nth=1, components=()),
    Mutation("decoder-closing-norm-post", BLOCKS,
             'make_norm(norm, d_model) if norm_placement == "pre" else None', "make_norm(norm, d_model)",
             "post-norm decoder with a second norm", nth=2, components=()),
    Mutation("encoder-backward-order", BLOCKS, "for layer in reversed(self.layers):", "for layer in self.layers:",
             "layers undone in forward's order", nth=1),
    Mutation("encoder-closing-norm-backward", BLOCKS, "dx = dy if self.norm is None else self.norm.backward(dy)",
             "dx = dy", "closing norm skipped in backward", nth=1),
    Mutation("gpt-not-causal", BLOCKS, "position=place, causal=causal", "position=place, causal=False",
             "decoder-only model sees the future", components=()),
    Mutation("t5-table-each-layer", BLOCKS, "[make()] * num_layers", "[make() for _ in range(num_layers)]",
             "T5's bias not shared by the layers", components=()),
    Mutation("t5-bidirectional-decoder", BLOCKS, "bidirectional=not causal", "bidirectional=True",
             "causal stack with two-sided buckets", components=()),
    # ---- models
    Mutation("transformer-target-scale", TRANSFORMER, "Embedding(c.tgt_vocab_size, c.d_model, scale=True",
             "Embedding(c.tgt_vocab_size, c.d_model, scale=False", "target embeddings not scaled", components=()),
    Mutation("transformer-tied-to-source", TRANSFORMER, "TiedLinear(target.E)", "TiedLinear(source.E)",
             "output tied to the source's table", components=()),
    Mutation("transformer-memory-mask", TRANSFORMER, "memory, mask, src_mask)", "memory, mask, None)",
             "decoder sees the source's padding", components=()),
    Mutation("transformer-source-mask", TRANSFORMER, "self.encoder(self.src_embedding(src), src_mask)",
             "self.encoder(self.src_embedding(src), None)", "encoder sees the padding", components=()),
    Mutation("transformer-encoder-skipped", TRANSFORMER, "self.src_embedding.backward(self.encoder.backward(dmemory))",
             "self.src_embedding.backward(dmemory)", "encoder skipped in backward"),
    Mutation("transformer-source-lost", TRANSFORMER, "self.src_embedding.backward(self.encoder.backward(dmemory))",
             "self.encoder.backward(dmemory)", "source embeddings not learned"),
    Mutation("gpt-residual-init", GPT, "(2 * self.config.num_layers) ** 0.5", "1.0",
             "residual projections not scaled down", components=()),
    Mutation("gpt-mask-ignored", GPT, "self.output(self.layers(x, mask))", "self.output(self.layers(x))",
             "mask not passed on", components=()),
    Mutation("tokens-dropout-backward", TOKENS, "dx = self.dropout.backward(dy)", "dx = dy",
             "dropout of the embeddings skipped in backward"),
    # ---- losses
    Mutation("loss-mean-of-all", LOSSES, "count = counts.sum()", "count = counts.size",
             "ignored targets in the divisor"),
    Mutation("loss-smoothing-classes", LOSSES, "(eps / e.shape[-1] * weight)", "(eps / (e.shape[-1] - 1) * weight)",
             "smoothing over the K - 1 other classes in backward"),
    Mutation("loss-smoothing-target", LOSSES, "-= (1 - eps) * weight", "-= weight", "target not lowered in backward"),
    Mutation("loss-smoothing-forward", LOSSES, "linear += eps * mean_last(e)[:, 0]",
             "linear += eps * mean_last(z)[:, 0]",
             "mean of the logits before the shift"),
    Mutation("loss-ignored-gradient", LOSSES, "e[~counts] = 0", "e[~counts] *= 1", "ignored targets get a gradient"),
    Mutation("loss-ignored-value", LOSSES, "xp.where(counts, xp.log(total) - linear, 0)", "xp.log(total) - linear",
             "ignored targets count as class 0"),
    Mutation("loss-divisor-backward", LOSSES, "weight /= divisor", "weight /= 1", "mean forgotten in backward"),
    Mutation("loss-overflow", LOSSES, "e = z - z.real.max(-1, keepdims=True)", "e = z * 1",
             "largest logit not subtracted"),
    Mutation("loss-dy-ignored", LOSSES, "weight *= _flat_dy(self, dy, shape)", "_flat_dy(self, dy, shape)",
             "gradient of the loss taken as 1"),
    Mutation("loss-normalizer", LOSSES, "return _at_least_one(self, xp, normalizer)",
             "normalizer = _at_least_one(self, xp, normalizer)", "count of the whole batch ignored"),
    Mutation("mse-factor", LOSSES, "difference *= 2", "difference *= 1", "2 of the square lost"),
    Mutation("mse-rows", LOSSES, "targets.size if normalizer is None", "targets.shape[0] if normalizer is None",
             "mean over rows, not numbers"),
    # ---- optimizers
    Mutation("adam-bias-m", ADAM, 'step_size = lr / (1 - beta1 ** state["step"])', "step_size = lr",
             "bias correction of m missing"),
    Mutation("adam-bias-v", ADAM, 'math.sqrt(1 - beta2 ** state["step"])', "1.0", "bias correction of v missing"),
    Mutation("adam-bias-step", ADAM, 'beta1 ** state["step"]', 'beta1 ** (state["step"] + 1)', "steps counted from 2"),
    Mutation("adam-eps-before", ADAM, "u /= root2\n            u += eps", "u += eps\n            u /= root2",
             "eps before the correction"),
    Mutation("adam-eps-inside", ADAM, "xp.sqrt(v, out=u)", "xp.sqrt(v + eps, out=u)", "eps inside the root as well"),
    Mutation("adam-v-beta", ADAM, "u *= 1 - beta2", "u *= 1 - beta1", "second moment with beta1"),
    Mutation("adam-m-weights", ADAM, "u *= 1 - beta1", "u *= beta1", "weights of old and new exchanged"),
    Mutation("adamw-coupled", ADAM, "    decoupled = True", "    decoupled = False", "decay goes through the moments"),
    Mutation("adamw-decay-without-lr", ADAM, "p *= 1 - lr * decay", "p *= 1 - decay", "decay not times the rate"),
    Mutation("sgd-damped", SGD, "m[0] += g", "m[0] += (1 - momentum) * g", "momentum with damping"),
    Mutation("sgd-nesterov", SGD, "g + momentum * m[0]", "g + m[0]", "looks ahead without momentum"),
    Mutation("sgd-decay-sign", SGD, "g = g + decay * p", "g = g - decay * p", "weights grow"),
    Mutation("optimizer-tied-twice", OPTIMIZER, 'list(dict.fromkeys(group["params"]))', 'list(group["params"])',
             "a parameter given twice is stepped twice"),
    Mutation("optimizer-frozen", OPTIMIZER, "if parameter.requires_grad and parameter.grad is not None:",
             "if parameter.grad is not None:", "frozen parameters are stepped"),
    Mutation("optimizer-blocks", OPTIMIZER, "gradient[piece]", "gradient[: values[piece].size]",
             "later pieces of a large parameter use the first piece's gradient"),
    Mutation("optimizer-step-lost", OPTIMIZER, '{"step": int(step)}', '{"step": 0}', "step counts not loaded"),
    Mutation("optimizer-group-rates", OPTIMIZER, 'group["lr"] = self._lr * group["lr_scale"]', 'group["lr"] = self._lr',
             "groups lose their own rates"),
    Mutation("optimizer-state-reference", OPTIMIZER, 'np.array(to_numpy(value), order="C")', "to_numpy(value)",
             "state dict shares the moments"),
    Mutation("no-decay-threshold", GROUPS, "p.data.ndim >= 2", "p.data.ndim >= 3", "matrices do not decay"),
    Mutation("clip-each", CLIPPING, "gradient *= factor",
             "gradient *= min(1.0, max_norm / (float(_square(gradient)) ** 0.5 + 1e-6))", "each tensor clipped alone",
             nth=2),
    Mutation("clip-sum-of-norms", CLIPPING, "math.sqrt(sum(float(square) for square in squares))",
             "sum(math.sqrt(float(square)) for square in squares)", "sum of norms for the norm of all"),
    Mutation("clip-scales-up", CLIPPING, "if norm + 1e-6 > max_norm:", "if norm > 0:", "small gradients are scaled up"),
    # ---- schedules
    Mutation("noam-power", SCHEDULES, "warmup**-1.5", "warmup**-0.5", "wrong power of the warm-up"),
    Mutation("noam-width", SCHEDULES, "d_model**-0.5", "d_model**0.5", "grows with the width"),
    Mutation("cosine-period", SCHEDULES, "math.cos(math.pi *", "math.cos(2 * math.pi *", "a whole cosine"),
    Mutation("cosine-final", SCHEDULES, "return final + (peak - final)", "return (peak - final)",
             "final rate left out"),
    Mutation("warmup-off-by-one", SCHEDULES, "min(1.0, step / warmup)", "min(1.0, (step - 1) / warmup)",
             "first step has rate 0"),
    Mutation("progress-length", SCHEDULES, "(step - warmup) / (total - warmup)", "(step - warmup) / total",
             "fall longer than the run"),
    # ---- module
    Mutation("add-grad-assigns", MODULE, "else:\n            self.grad += grad", "else:\n            self.grad = grad",
             "= for +="),
    Mutation("stack-fifo", MODULE, "return self._stack.pop()", "return self._stack.pop(0)", "first in, first out"),
    Mutation("no-grad-saves", MODULE, "if grad_enabled():", "if True:", "no_grad still saves"),
    Mutation("no-grad-nested", MODULE, "_mode.grad = before", "_mode.grad = True", "inner no_grad ends the outer one"),
    Mutation("frozen-gradient", MODULE, "if not self.requires_grad:\n            return",
             "if not self.requires_grad:\n            pass", "frozen parameters collect gradients"),
    Mutation("state-dict-references", MODULE, "np.array(to_numpy(parameter.data))", "to_numpy(parameter.data)",
             "state dict shares the parameters' memory"),
    Mutation("state-dict-buffers-referenced", MODULE, "np.array(to_numpy(buffer))", "to_numpy(buffer)",
             "state dict shares the buffers' memory"),
    Mutation("load-references", MODULE, "return xp.array(to_device", "return xp.asarray(to_device",
             "the module keeps the loaded arrays themselves"),
    Mutation("tied-named-twice", MODULE, "isinstance(value, Parameter) and id(value) not in seen",
             "isinstance(value, Parameter)", "tied parameters counted twice"),
    Mutation("eval-not-recursive", MODULE, "for module in self.modules():\n            module.training = mode",
             "self.training = mode", "parts stay in training mode"),
    Mutation("clear-not-recursive", MODULE, "for module in self.modules():\n            module._stack.clear()",
             "for module in [self]:\n            module._stack.clear()", "parts keep saved values"),
    Mutation("astype-forgets-gradients", MODULE, "parameter.grad = function(parameter.grad)", "pass",
             "gradients keep the old dtype"),
    Mutation("astype-forgets-buffers", MODULE, "setattr(module, name, function(getattr(module, name)))", "pass",
             "buffers keep the old dtype"),
    Mutation("reductions-mean", REDUCTIONS, "mean *= 1 / x.shape[-1]", "mean *= 1 / (x.shape[-1] - 1)",
             "mean over D - 1"),
    # ---- training
    Mutation("training-batches-weighted", TRAINING,
             '{"normalizer": self.loss.count(targets)} if len(pieces) > 1 else {}', "{}",
             "each micro-batch takes its own mean"),
    Mutation("training-padding-counted", TRAINING, "self.loss.count(targets)", "targets.size",
             "ignored tokens in the divisor of micro-batches"),
    Mutation("training-gradients-kept", TRAINING, "# 2. gradients\n            self.model.zero_grad()",
             "# 2. gradients",
             "gradients of earlier steps not cleared"),
    Mutation("training-schedule-step", TRAINING, "self.schedule(step)", "self.schedule(step + 1)",
             "rate of the next step"),
    Mutation("training-not-clipped", TRAINING, "self.max_grad_norm or math.inf", "math.inf", "gradients not clipped"),
    Mutation("training-evaluates-in-training", TRAINING, "self.model.eval()", "self.model.train()",
             "dropout on in evaluation"),
    Mutation("training-stays-in-evaluation", TRAINING, "finally:\n            self.model.train()",
             "finally:\n            pass", "dropout off after the first evaluation"),
    Mutation("training-best-sign", TRAINING, "sign = 1 if", "sign = -1 if", "keeps the worst"),
    Mutation("training-resume-step", TRAINING, 'settings["step"], settings["records"]',
             'settings["step"] - 1, settings["records"]', "one step done twice after a resume"),
    Mutation("training-resume-random", TRAINING, 'self.model.load_random_state(settings["random"])', "pass",
             "dropout's counters not restored"),
    Mutation("training-failed-step-random", TRAINING, "self.model.load_random_state(counters)", "pass",
             "a failed step leaves the counters advanced"),
    Mutation("training-split-tail", TRAINING, "size * (i + 1) // pieces)", "size * i // pieces + size // pieces)",
             "last rows of an uneven split dropped"),
]  # fmt: skip
