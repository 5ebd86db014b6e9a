"""Remember what was computed from a text, if the text is short.

Paths, queries, headers, label keys and times come from clients, and the same few come again and again,
so it pays to remember what they mean. But a cache that is bounded in entries only is not bounded: a
client that sends a thousand different texts of a megabyte fills a gigabyte. So long texts,
which nobody repeats honestly, are computed every time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["remembers_short_texts"]

Rest = ParamSpec("Rest")
Result = TypeVar("Result")
OfText = Callable[Concatenate[str, Rest], Result]


def remembers_short_texts(
    maxsize: int, longest: int
) -> Callable[[OfText[Rest, Result]], OfText[Rest, Result]]:
    """Make a function of a text remember `maxsize` results, of texts up to `longest` characters.

    >>> calls = []
    >>> @remembers_short_texts(maxsize=8, longest=3)
    ... def shout(text: str) -> str:
    ...     calls.append(text)
    ...     return text.upper()
    >>> [shout(text) for text in ("abc", "abc", "abcd", "abcd")]
    ['ABC', 'ABC', 'ABCD', 'ABCD']
    >>> calls
    ['abc', 'abcd', 'abcd']
    """

    def decorate(function: OfText[Rest, Result]) -> OfText[Rest, Result]:
        remembered = lru_cache(maxsize)(function)

        @wraps(function)
        def call(text: str, /, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
            if len(text) <= longest:
                return remembered(text, *args, **kwargs)  # type: ignore[arg-type]
            return function(text, *args, **kwargs)

        return call

    return decorate
