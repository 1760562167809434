"""Keys and values of the tokens so far, so that a next token costs one row of attention and not all of them.

Shapes: ``B`` batch, ``G`` key-value heads, ``T`` new tokens, ``n`` tokens so far, ``d`` features of a head.
"""

import numpy as np

from numtrans.backend import get_xp
from numtrans.checks import check_sizes
from numtrans.errors import BackwardError, ConfigError, ShapeError
from numtrans.module import grad_enabled


class KVCache:
    r"""Keys and values of one attention layer.

    Under a causal mask the key and the value of a token depend on it and on earlier tokens only, so they stay as they
    are when the sequence grows:

    .. math::

        K_{n+1} = [K_n;\; k_{n+1}], \qquad V_{n+1} = [V_n;\; v_{n+1}], \qquad
        o_{n+1} = \mathrm{softmax}(q_{n+1} K_{n+1}^\top)\, V_{n+1}

    The arrays are larger than needed and double when they are full, so that a new token is written into its place:
    no step copies what is there, but for the few that double. Keys are kept as attention compares them, with RoPE after
    the rotation.

    Parameters
    ----------
    capacity : int, default 64
        Tokens that the arrays start with room for.
    fixed : bool, default False
        For cross-attention: the keys and values of the memory, computed once and never added to.

    Attributes
    ----------
    length : int
        Tokens so far.
    """

    def __init__(self, capacity=64, *, fixed=False):
        check_sizes(self, capacity=capacity)
        self.capacity, self.fixed = capacity, fixed
        self.keys = self.values = None
        self.length = 0

    def append(self, k, v):
        """Add `k` (B, G, T, d) and `v` (B, G, T, dv); return all keys (B, G, n, d) and values, as views.

        Raises
        ------
        ShapeError
            If batch, heads or features are not those of the first call.
        ConfigError
            If the cache is fixed and filled.
        """
        if self.keys is None:
            if self.fixed:
                self.capacity = k.shape[2]
            self.keys, self.values = self._room(k), self._room(v)
        elif self.fixed:
            raise ConfigError("KVCache: a fixed cache that is filled takes no more; make another for another memory")
        self._check("keys", k, self.keys)
        self._check("values", v, self.values)
        n, end = self.length, self.length + k.shape[2]
        if end > self.capacity:
            self.capacity = max(2 * self.capacity, end)
            old, self.keys, self.values = (self.keys, self.values), self._room(k), self._room(v)
            self.keys[:, :, :n], self.values[:, :, :n] = (array[:, :, :n] for array in old)
        self.keys[:, :, n:end], self.values[:, :, n:end] = k, v
        self.length = end
        return self.views()

    def views(self):
        """All keys (B, G, n, d) and values (B, G, n, dv), without a copy."""
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def select(self, rows):
        """Make row ``i`` of the batch what row ``rows[i]`` was; a row may go on several times, or not at all."""
        if self.keys is None:
            return
        B, n, rows = self.keys.shape[0], self.length, np.asarray(rows)
        if len(rows) == B and (rows == np.arange(B)).all():
            return
        if rows.size and not 0 <= rows.min() <= rows.max() < B:
            raise ShapeError(f"KVCache: rows {rows.tolist()} selected from a batch of {B}")
        chosen = [array[get_xp(array).asarray(rows), :, :n] for array in (self.keys, self.values)]
        if len(rows) != B:
            self.keys, self.values = self._room(chosen[0]), self._room(chosen[1])
        self.keys[:, :, :n], self.values[:, :, :n] = chosen

    def _room(self, x):
        """An empty array like `x`, with room for ``capacity`` tokens."""
        return get_xp(x).empty((*x.shape[:2], self.capacity, x.shape[3]), x.dtype)

    def _check(self, name, x, there):
        """Raise unless `x` can be written into `there`."""
        get_xp(x, there)
        if x.shape[:2] != there.shape[:2] or x.shape[3] != there.shape[3] or x.dtype != there.dtype:
            raise ShapeError(
                f"KVCache: new {name} have shape {tuple(x.shape)} and dtype {x.dtype}, expected batch "
                f"{there.shape[0]}, {there.shape[1]} heads, {there.shape[3]} features and {there.dtype}: a cache "
                "belongs to one batch of sequences and to one layer"
            )


class StackCache:
    """The caches of a stack of layers, made by ``model.make_cache()`` for one batch of sequences.

    It belongs to the stack that uses it first. Begin another text with another cache.

    Parameters
    ----------
    num_layers : int
        Layers of the stack.
    cross : bool, default False
        Whether there is a fixed cache for each layer's cross-attention.
    capacity : int, default 64
        Tokens that the arrays start with room for.

    Attributes
    ----------
    layers : list
        A `KVCache` for each layer; with `cross` a pair, that of self-attention and that of cross-attention.
    """

    def __init__(self, num_layers, *, cross=False, capacity=64):
        self.own = [KVCache(capacity) for _ in range(num_layers)]
        self.cross = [KVCache(fixed=True) for _ in range(num_layers)] if cross else []
        self.layers = list(zip(self.own, self.cross)) if cross else self.own
        self.owner, self.before = None, None

    @property
    def length(self):
        """Tokens so far."""
        return self.own[0].length

    @property
    def nbytes(self):
        """Bytes of all arrays, with the room that is not used yet."""
        parts = [array for part in (*self.own, *self.cross) for array in (part.keys, part.values)]
        return sum(array.nbytes for array in parts if array is not None)

    def select(self, rows, *, memory=True):
        """Re-rank the batch in every layer, see `KVCache.select`. Without `memory` cross-attention stays as it is."""
        for part in (*self.own, *(self.cross if memory else ())):
            part.select(rows)

    def claim(self, owner):
        """Bind the cache to the stack `owner`, or raise if it cannot be used there.

        Raises
        ------
        BackwardError
            With gradients on: forward with a cache saves nothing for backward.
        ConfigError
            If the cache is that of another stack, or was left half filled by an error.
        """
        name = type(owner).__name__
        check_no_grad(name)
        if len(self.own) != len(owner.layers) or self.owner not in (None, owner):
            raise ConfigError(
                f"{name}: the cache of {len(self.own)} layers belongs to another stack, this one has "
                f"{len(owner.layers)}. Make one with make_cache() for each model and each text."
            )
        held = sorted({part.length for part in self.own})
        if len(held) > 1 or self.before not in (None, self.length):
            expected = "one number" if self.before is None else self.before
            raise ConfigError(
                f"{name}: the layers of the cache hold {held} tokens, expected {expected}: a forward broke off in the "
                "middle. Make another cache with make_cache()."
            )
        self.owner, self.before = owner, self.length

    def release(self):
        """Say that the forward has come to its end: what the layers hold now is what the cache is to hold."""
        self.before = None


def check_no_grad(name):
    """Raise `BackwardError` if gradients are on."""
    if grad_enabled():
        raise BackwardError(
            f"{name}: a cache was given and gradients are on, but forward with a cache saves nothing for backward. "
            "Call it within numtrans.no_grad()."
        )
