"""What the error channel of a websocket says about the end of a command."""

import pytest

from dray.cli.output import CommandError
from dray.cli.terminal import outcome_code


@pytest.mark.parametrize(
    "piece",
    [b"", b"no json", b"[]", b"null", b"{}", b'{"status":"Failure"}', b'{"status":"Failure","details":{"causes":[1]}}',
     b'{"status":"Failure","details":{"causes":[{"reason":"ExitCode"}]}}', b"\xff" * 1000],
)  # fmt: skip
def test_an_outcome_without_an_exit_code_is_an_error(piece):
    with pytest.raises(CommandError) as found:
        outcome_code(piece)
    assert found.value.code == 1
    assert len(str(found.value)) < 1000
