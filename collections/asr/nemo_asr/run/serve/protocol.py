"""Websockets of uvicorn that tell the client why they close, also while it is sending. No messages in here."""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_QUIET_SECONDS, _MOST_SECONDS = 0.5, 10.0  # without a byte from the client, and in all


class LingeringWebSocket(WebSocketsSansIOProtocol):
    """After a message that is too large or damaged, reads on for a while and drops what comes.

    Where a connection is closed with bytes unread, TCP resets it, and the client may lose the closing frame.
    """

    _until = 0.0

    def handle_parser_exception(self) -> None:
        """Send the closing frame; called again for all that comes behind it."""
        now = self.loop.time()
        if not self._until:
            self._until = now + _MOST_SECONDS
            close = self.conn.close_sent
            code, reason = (close.code, close.reason) if close else (1002, "")
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            if self.read_paused:
                self.read_paused = False
                self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_at(min(now + _QUIET_SECONDS, self._until), self.transport.close)
