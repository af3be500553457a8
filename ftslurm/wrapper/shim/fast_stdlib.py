"""Of the standard library, the C modules themselves.

One shim a task starts at once on every core, and the Python halves of these (re, enum, selectors, OpenSSL) would double
its start-up time and add 4 MB. What is used of them is documented API that the public modules pass through as it is.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which would cost as much again
if TYPE_CHECKING:
    import signal
    import socket
    from collections import deque
    from hashlib import blake2s
    from hmac import compare_digest as same_digest
    from json.encoder import c_make_encoder as make_encoder  # type: ignore[attr-defined]
    from json.encoder import encode_basestring_ascii
    from json.scanner import make_scanner
    from operator import itemgetter
else:
    import _signal as signal
    import _socket as socket
    from _blake2 import blake2s
    from _collections import deque
    from _json import encode_basestring_ascii, make_encoder, make_scanner
    from _operator import _compare_digest as same_digest
    from _operator import itemgetter

__all__ = [
    "TYPE_CHECKING", "blake2s", "deque", "encode_basestring_ascii", "itemgetter", "make_encoder", "make_scanner", "same_digest",
    "signal", "socket",
]  # fmt: skip
