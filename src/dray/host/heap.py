"""Settings of the C library's heap for processes that live for months.

glibc gives every thread a heap of its own and, once a large block was freed, takes later ones of that size from the heap
instead of the kernel. Both are good for speed and bad for a server that reads a large body in a thread now and then:
what is freed stays with the process in pieces. Measured with hostile requests, see docs/security.md.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_HEAPS = 2
_LARGE = 256 << 10  # bytes; blocks of this size come from the kernel and go back to it


def keep_heap_compact() -> bool:
    """Bound what the heap keeps of freed memory; returns whether the C library knows how (glibc does)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_ARENA_MAX, _HEAPS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, 2 * _LARGE))
    outcomes = [mallopt(parameter, value) for parameter, value in settings]
    return all(outcomes)
