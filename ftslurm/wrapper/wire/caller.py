"""One shim or agent as the controller knows it: its session, over one connection after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model.settings.tree import BEATS
from ftslurm.policies.node import NodeClock
from ftslurm.wrapper.shim.protocol.session import ReliableStream
from ftslurm.wrapper.shim.protocol.signed import LinkError
from ftslurm.wrapper.wire.channel import Peer

# Messages kept for an absent caller; one that misses more does not come back.
MAX_KEPT = 10_000

Message = Mapping[str, Any]


class Caller:
    """owner: rank or node name. let_go: its messages are ignored, and its lease is not renewed. paused: it will be suspended with
    the whole job, and its lease is guaranteed until it is heard again. place: of a rank, its slot and local rank.
    """

    def __init__(self, owner: int | str, node: str, talk: str, lease_s: float, silence_s: float, grace_s: float) -> None:
        self.owner = owner
        self.node = node
        self.let_go = self.paused = False
        self.place = (0, 0)
        self.clock = NodeClock()
        self._name = talk
        self._talk = ReliableStream()
        self._lease_s = lease_s
        self._beat_s = min(lease_s, silence_s) / BEATS
        self._grace_s = grace_s
        self._peer: Peer | None = None

    @property
    def connected(self) -> bool:
        return self._peer is not None

    def is_called(self, talk: str) -> bool:
        return talk == self._name

    def use(self, peer: Peer, heard: Any, cut_off: bool = False) -> Peer | None:
        """Continue over `peer`; gives the previous connection, if it is not known to be broken. cut_off: no lease is renewed.

        Raises: WireError.
        """
        before, self._peer, self.paused = self._peer, peer, False
        self._has(heard)
        times = {"lease_s": self._lease_s, "beat_s": self._beat_s, "grace_s": self._grace_s}
        peer.send({"t": "welcome", "a": self._talk.heard, **times, **self._word(cut_off)})
        for message in self._talk.kept:
            peer.send(message)
        return before

    def left(self, peer: Peer) -> bool:
        """The connection broke. False if it had been replaced."""
        if peer is not self._peer:
            return False
        self._peer = None
        return True

    def send(self, message: Message) -> None:
        """Send the message. It arrives sooner or later, unless the other side has ended."""
        numbered = self._talk.say(dict(message))
        if len(self._talk.kept) > MAX_KEPT:
            self.close("too much waits for it")
        elif self._peer is not None:
            self._peer.send(numbered)

    def hear(self, message: Message, cut_off: bool = False) -> bool:
        """Is it a valid, new message? A beat is answered, which renews the lease unless we are cut off.

        Raises: WireError.
        """
        if message.get("t") == "beat":
            self._has(message.get("a"))
            if type(message.get("k")) is not int:
                raise WireError(f"{self.owner}: a beat without a number")
            self.paused = message.get("pause") is True and not self.let_go
            if self._peer is not None:
                promise = {"paused": True} if self.paused and not cut_off else {}
                self._peer.send({"t": "beat", "k": message["k"], "a": self._talk.heard, **self._word(cut_off), **promise})
            return False
        try:
            return self._talk.hear(dict(message))
        except LinkError as error:
            raise WireError(f"{self.owner}: {error}") from None

    def close(self, why: str) -> None:
        if self._peer is not None:
            self._peer.drop(why)

    def _word(self, cut_off: bool) -> dict[str, bool]:
        if self.let_go:
            return {"let_go": True}
        return {"cut_off": True} if cut_off else {}

    def _has(self, number: Any) -> None:
        try:
            self._talk.has(number)
        except LinkError as error:
            raise WireError(f"{self.owner}: {error}") from None
