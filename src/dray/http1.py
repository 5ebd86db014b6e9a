"""HTTP/1.1 messages, taken apart by llhttp (`httptools`): for the server's fast path and the client.

llhttp refuses what is ambiguous (two lengths, a length beside chunks, bare line feeds, folded
lines, characters that do not belong in a name or value), which is where request smuggling begins.
It has no bounds of its own: `MessageReader` counts headers, and whoever feeds it counts bytes.
docs/adr/0020-one-http-parser.md has the measurement.
"""

from __future__ import annotations

Headers = dict[str, str]  # names in lower case


class MessageReader:
    """Collect the headers of one message; a base for what `httptools` calls back.

    A header that comes twice is joined with a comma, as RFC 9110 has it, except the `SINGLE` ones.
    """

    SINGLE = frozenset({"host", "content-length"})

    def __init__(self, most_headers: int) -> None:
        self.most_headers = most_headers
        self.headers: Headers = {}
        self.n_headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; raises ValueError for too many, and for a second one of a `SINGLE` name."""
        self.n_headers += 1
        if self.n_headers > self.most_headers:
            raise ValueError(f"it has more than {self.most_headers} headers")
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        headers = self.headers
        if key in headers:
            if key in self.SINGLE:
                raise ValueError(f"it has two headers {key}")
            text = f"{headers[key]}, {text}"
        headers[key] = text
