"""Posting reviews to admission webhooks.

The address of a webhook is checked like that of a node agent and redirects are not followed
(see `outgoing`); its answer is bounded in size, and by the caller in time. Its certificate
must be signed by an authority of the configuration's `caBundle`, or of this machine where
there is none.
"""

from __future__ import annotations

import base64
import ssl

import aiohttp
from yarl import URL

from dray.api.caching import BoundedCache
from dray.api.media_types import JSON_TYPE
from dray.server.admission import ANSWER_BYTES
from dray.server.http.outgoing import DIAL_SECONDS, checked_host, checked_session


class WebhookTransport:
    """Posts to webhooks; connections are kept for the next review."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._tls: BoundedCache[str, ssl.SSLContext] = BoundedCache(256)

    async def close(self) -> None:
        """Drop connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(self, url: str, body: bytes, authorities: str) -> tuple[int, bytes]:
        """Return status and body of the answer; raise OSError or ValueError."""
        target = URL(url)
        if target.scheme != "https" or not target.host:
            raise ValueError(f"{url} is not an https URL")
        checked_host(target.host)
        if self._session is None:
            self._session = checked_session()
        try:
            return await self._post(self._session, target, body, self._context(authorities))
        except aiohttp.ClientError as problem:
            raise ConnectionError(str(problem)) from None

    async def _post(
        self, session: aiohttp.ClientSession, url: URL, body: bytes, tls: ssl.SSLContext
    ) -> tuple[int, bytes]:
        async with session.post(
            url,
            data=body,
            headers={"Content-Type": JSON_TYPE, "Accept": JSON_TYPE},
            ssl=tls,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=DIAL_SECONDS),
            allow_redirects=False,
        ) as answer:
            pieces: list[bytes] = []
            size = 0
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                size += len(piece)
                if size > ANSWER_BYTES:
                    raise ValueError(f"the answer has more than {ANSWER_BYTES} bytes")
            return answer.status, b"".join(pieces)

    def _context(self, authorities: str) -> ssl.SSLContext:
        found = self._tls.get(authorities)
        if found is None:
            text = base64.b64decode(authorities).decode(errors="replace") if authorities else None
            found = ssl.create_default_context(cadata=text)
            self._tls.add(authorities, found)
        return found
