"""Websockets that pass through the server: `kubectl exec`, from the client to a node agent and back.

Frames are carried one at a time in each direction: the next one is read only when the
last one is written, so a side that does not read holds up the other side and costs no
memory beyond one message (at most `MESSAGE_BYTES`) and the sockets' buffers. The agent
must finish its handshake within `node_agents.ANSWER_SECONDS` and must answer pings.
"""

from __future__ import annotations

import asyncio

from aiohttp import ClientError, ClientWebSocketResponse, ClientWSTimeout, WSMsgType, web
from aiohttp.web_request import BaseRequest

from dray.server.http.node_agents import ANSWER_SECONDS, unreachable
from dray.server.http.outgoing import checked_session
from dray.server.requests import Response, Tunnel

MESSAGE_BYTES = 1 << 20
PING_SECONDS = 30.0
CLOSE_SECONDS = 5.0

Socket = web.WebSocketResponse | ClientWebSocketResponse


async def join(incoming: BaseRequest, tunnel: Tunnel) -> web.WebSocketResponse | Response:
    """Carry frames between the client and a node agent until one side ends; an error is returned as Response."""
    wanted = [
        name.strip() for name in incoming.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()
    ]
    async with checked_session() as session:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                far = await session.ws_connect(
                    tunnel.url,
                    protocols=wanted,
                    ssl=tunnel.tls or False,
                    max_msg_size=MESSAGE_BYTES,
                    heartbeat=PING_SECONDS,
                    timeout=ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
        except (ClientError, OSError, ValueError) as problem:
            return unreachable(problem).response()
        near = web.WebSocketResponse(
            protocols=[far.protocol] if far.protocol else [],
            max_msg_size=MESSAGE_BYTES,
            timeout=CLOSE_SECONDS,
        )
        try:
            await near.prepare(incoming)
            await _carry_both(near, far)
        finally:
            await far.close()
            if near.prepared:
                await near.close()
    return near


async def _carry_both(near: Socket, far: Socket) -> None:
    carriers = {asyncio.create_task(_carry(near, far)), asyncio.create_task(_carry(far, near))}
    try:
        await asyncio.wait(carriers, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


async def _carry(source: Socket, target: Socket) -> None:
    async for message in source:
        if message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
