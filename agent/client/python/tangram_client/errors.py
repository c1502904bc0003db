"""Exceptions of calls: the library's message, and a class per code of ``tg_code``."""

from __future__ import annotations


class TangramError(Exception):
    """A call failed; the text is the library's."""


class AgainError(TangramError):
    """Not now: try again at the next step boundary."""


class RefusedError(TangramError):
    """The agent rejected the call."""


class DisconnectedError(TangramError):
    """The agent is gone. Memory stays mapped; `Client.poll` checks for a new agent."""


class InvalidError(TangramError, ValueError):
    """The caller's mistake, or an agent of another version."""


class NoRoomError(TangramError):
    """The KV has no room in the target: decline the flip."""


# By tg_code.
CLASSES: dict[int, type[TangramError]] = {
    1: AgainError,
    2: RefusedError,
    3: DisconnectedError,
    4: InvalidError,
    5: NoRoomError,
}
