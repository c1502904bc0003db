"""A session with the gateway (front.proto): requests of clients go there, and tokens come back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from .messages import SESSION, FrontReply, FrontRequest

MOST_BYTES = 64 << 20  # of a message: prompts are long


class Ended(Exception):
    """The gateway ended the session; the message has the reason."""


class Session:
    """Made by `open`. For one event loop."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, world: Any) -> None:
        self.max_tokens: int = world.max_tokens
        self.vocabulary: int = world.vocabulary
        self._channel, self._call = channel, call
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())

    @classmethod
    async def open(cls, socket: str) -> Session:
        """Waits for the gateway and for its world, without a limit."""
        while True:
            sizes = [("grpc.max_send_message_length", MOST_BYTES), ("grpc.max_receive_message_length", MOST_BYTES)]
            channel = grpc.aio.insecure_channel(f"unix:{socket}", options=sizes)
            call = channel.stream_stream(SESSION, request_serializer=FrontRequest.SerializeToString, response_deserializer=FrontReply.FromString)()
            with contextlib.suppress(grpc.aio.AioRpcError):
                first = await call.read()
                if first is not grpc.aio.EOF:
                    return cls(channel, call, first.world)
            await channel.close()
            await asyncio.sleep(0.2)

    def submit(self, submit: Any) -> None:
        self._out.put_nowait(FrontRequest(submit=submit))

    def cancel(self, request: str) -> None:
        out = FrontRequest()
        out.cancel.request = request
        self._out.put_nowait(out)

    async def pieces(self) -> list[Any]:
        """The next pieces, of any requests. Ended: the session has ended."""
        try:
            reply = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise Ended(error.details() or str(error.code())) from None
        if reply is grpc.aio.EOF:
            raise Ended("the gateway ended the session")
        return list(reply.pieces.pieces)

    async def close(self) -> None:
        self._writer.cancel()
        await self._channel.close()

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # `pieces` reports it
            while True:
                await self._call.write(await self._out.get())
