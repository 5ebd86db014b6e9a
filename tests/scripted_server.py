"""A server that answers byte by byte as told, with or without TLS; shared by the client's tests."""

import asyncio
import contextlib
import ssl


def ok(body, status="200 OK", extra=b""):
    return b"HTTP/1.1 " + status.encode() + b"\r\n" + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body


class AnsweringServer:
    """Calls `answer(head)` for each request and writes the bytes that it returns; None closes."""

    def __init__(self, answer, pair=None, folder=None):
        self.answer = answer
        self.heads = []
        self.peers = []  # client certificates, DER, one for each connection
        self._tasks = set()
        self._tls = None
        if pair is not None:
            (folder / "server.pem").write_bytes(pair.certificate + pair.key)
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(folder / "server.pem")

    def ask_for_client_certificates(self, *authorities):
        self._tls.verify_mode = ssl.CERT_OPTIONAL
        for authority in authorities:
            self._tls.load_verify_locations(cadata=authority.decode())

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        if self._tls:
            self.peers.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        # A task of the streams' own that is cancelled is logged as an error.
        quiet = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError)
        with contextlib.suppress(*quiet):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                answer = self.answer(head)
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()


class ConnectProxy:
    """An HTTP proxy that makes tunnels; `status` is what it answers to CONNECT."""

    def __init__(self, status=b"200 Connection established"):
        self.status = status
        self.heads = []
        self._tasks = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(b"HTTP/1.1 " + self.status + b"\r\n\r\n")
        if not self.status.startswith(b"2"):
            writer.close()
            return
        host, _, port = head.split()[1].rpartition(":")
        inner_reader, inner = await asyncio.open_connection(host, int(port))

        async def copy(source, target):
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    target.write(data)
                    await target.drain()
            target.close()

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(copy(reader, inner), copy(inner_reader, writer))
