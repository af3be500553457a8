"""A reliable stream over several connections: every message arrives, in order and once."""

from __future__ import annotations

from ftslurm.wrapper.shim.fast_stdlib import deque
from ftslurm.wrapper.shim.protocol.messages import Message
from ftslurm.wrapper.shim.protocol.signed import LinkError


class ReliableStream:
    """One side of a reliable stream, without its connections: messages are numbered, kept
    until the other side has them, and sent again after a break; duplicates are dropped."""

    def __init__(self) -> None:
        self.heard = 0  # number of the last message that came in
        self._said = 0
        self._kept: deque[Message] = deque()

    def say(self, message: Message) -> Message:
        """`message` with its number, to be sent if there is a connection."""
        self._said += 1
        self._kept.append({**message, "n": self._said})
        return self._kept[-1]

    def hear(self, message: Message) -> bool:
        """Is it a new one? Raises: LinkError when one before it is missing."""
        number = message.get("n")
        if type(number) is not int or number > self.heard + 1:
            raise LinkError(f"after message {self.heard} came message {str(number)[:20]}")
        new = number == self.heard + 1
        self.heard = max(self.heard, number)
        return new

    def has(self, number: object) -> None:
        """The other side has everything up to `number`. Raises: LinkError when it cannot."""
        if type(number) is not int or not 0 <= number <= self._said:
            raise LinkError(f"message {str(number)[:20]} of {self._said} was acknowledged")
        while self._kept and self._kept[0]["n"] <= number:
            self._kept.popleft()

    @property
    def kept(self) -> list[Message]:
        """The messages that the other side may not have yet, in order."""
        return list(self._kept)
