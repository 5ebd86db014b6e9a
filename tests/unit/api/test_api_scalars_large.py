"""Large values that are no values are refused without large memory."""

import tracemalloc

import pytest

from dray.api.scalars import SCALAR_READERS, DecodeError


@pytest.mark.parametrize(
    ("text", "place"),
    [("=" * 2_000_000, 0), ("A" * 2_000_001, 2_000_000), ("A" * 1_999_998 + "=-", 1_999_998)],
)
def test_a_megabyte_that_is_not_base64_is_refused_in_little_memory(text, place):
    read = SCALAR_READERS["bytes"]
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=f"illegal base64 data at input byte {place}$"):
            read(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000, "200 MB when every byte became a pair"
