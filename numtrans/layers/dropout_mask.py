"""Masks of dropout as functions of a key, a counter and the place in the array (Salmon et al. 2011)."""

import math

_MASK32 = 0xFFFFFFFF


def keep_mask(xp, shape, p, key, counter, start=0):
    """Boolean array that is True with probability ``1 - p``: a hash of (key, counter, index) above a threshold.

    Indices count from `start`, modulo 2^32.
    """
    h = xp.arange(math.prod(shape), dtype=xp.uint32)
    h += start & _MASK32
    return _keep(h, p, key, counter).reshape(shape)


def keep_part(xp, shape, index, p, key, counter, start=0):
    """The part ``[index]`` of `keep_mask`, made alone; `index` has a slice with a start and a stop for each axis."""
    h, stride = xp.zeros((1,) * len(shape), xp.uint32), 1
    for axis in reversed(range(len(shape))):
        places = xp.arange(index[axis].start, index[axis].stop, dtype=xp.uint32)
        places *= stride & _MASK32
        h = h + places.reshape(-1, *(1,) * (len(shape) - 1 - axis))
        stride *= shape[axis]
    h += start & _MASK32
    return _keep(h, p, key, counter)


def _keep(h, p, key, counter):
    """Hash the indices `h`, in place, and compare with the threshold."""
    first, second = _mix(key ^ _mix(counter)), _mix(counter + _mix(key))
    h += first
    h ^= h >> 16  # the lowbias32 hash of C. Wellons, with the second word put in
    h ^= second
    h *= 0x7FEB352D
    h ^= h >> 15
    h *= 0x846CA68B
    h ^= h >> 16
    return h >= int(p * 2**32)


def _mix(word):
    """The same hash for one Python integer."""
    word = (word + 0x9E3779B9) & _MASK32
    word = ((word ^ (word >> 16)) * 0x7FEB352D) & _MASK32
    word = ((word ^ (word >> 15)) * 0x846CA68B) & _MASK32
    return word ^ (word >> 16)
