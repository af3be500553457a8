"""The secret of an ftrun as a credential of munge's, by libmunge."""

from __future__ import annotations

import ctypes
import os
import time

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING
from ftslurm.wrapper.shim.protocol.secret_file import secret_at

if TYPE_CHECKING:
    from typing import Any

# Of libmunge, munge.h.
MUNGE_LIBRARY = "libmunge.so.2"
MUNGE_CIPHER, MUNGE_SOCKET, MUNGE_UID = 0, 8, 9  # options
MUNGE_AES128 = 4
MUNGE_NO_SOCKET, MUNGE_TIMEOUT = 6, 7  # munged does not answer
# Expired, ahead of our clock, decoded here before (by the next rank): all that is no matter where a key is handed over, which
# is given all the same. Who may not have it gets another answer, and nothing (seen on 0.5.15).
MUNGE_GIVES = (0, 15, 16, 17)
MUNGED_S = 10.0  # for munged to come back


class Munge:
    """munged on this node, at `socket` (empty: where munge has it)."""

    def __init__(self, socket: str) -> None:
        """Raises: OSError."""
        self._library = library = ctypes.CDLL(MUNGE_LIBRARY)
        library.munge_ctx_create.restype = ctypes.c_void_p
        library.munge_strerror.restype = ctypes.c_char_p
        self._context = ctypes.c_void_p(library.munge_ctx_create())
        if socket:
            self._set(MUNGE_SOCKET, ctypes.c_char_p(os.fsencode(socket)))

    def encode(self, payload: bytes, user_id: int) -> bytes:
        """For processes of this user alone. Raises: OSError."""
        self._set(MUNGE_CIPHER, ctypes.c_int(MUNGE_AES128))
        self._set(MUNGE_UID, ctypes.c_int(user_id))
        text = ctypes.c_char_p()
        self._check(self._library.munge_encode(ctypes.byref(text), self._context, payload, ctypes.c_int(len(payload))), (0,))
        return text.value or b""

    def decode(self, credential: bytes) -> tuple[bytes, int]:
        """Payload, and whose process has encoded it. Raises: OSError."""
        data, size, user, group = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_uint()
        deadline = time.monotonic() + MUNGED_S
        while True:
            status = self._library.munge_decode(credential, self._context, *map(ctypes.byref, (data, size, user, group)))
            if status not in (MUNGE_NO_SOCKET, MUNGE_TIMEOUT) or time.monotonic() >= deadline:
                break
            time.sleep(0.2)
        self._check(status, MUNGE_GIVES)
        return ctypes.string_at(data, size.value), user.value

    def _set(self, option: int, value: Any) -> None:
        self._check(self._library.munge_ctx_set(self._context, ctypes.c_int(option), value), (0,))

    def _check(self, status: int, good: tuple[int, ...]) -> None:
        if status not in good:
            raise OSError(f"munge: {self._library.munge_strerror(status).decode(errors='replace')}")


def munge_word(secret: bytes, user_id: int, socket: str) -> str:
    """As Channel reads it. Raises: OSError."""
    text = Munge(socket).encode(secret, user_id).decode()
    return f"munge.{os.fsencode(socket).hex()}.{text.removeprefix('MUNGE:').removesuffix(':')}"


def handed_over(word: str) -> bytes:
    """The secret. Raises: OSError where munge or the file does not give it, ValueError for what is none of our user's."""
    if word.startswith("file."):
        return secret_at(os.fsdecode(bytes.fromhex(word.removeprefix("file."))))
    if not word.startswith("munge."):
        return bytes.fromhex(word)
    _, socket, text = word.split(".", 2)
    secret, user_id = Munge(os.fsdecode(bytes.fromhex(socket))).decode(f"MUNGE:{text}:".encode())
    if user_id != os.geteuid():
        raise ValueError(f"its secret belongs to user {user_id}, not to user {os.geteuid()}")
    return secret
