"""PURE: the stored form of a password, and the comparison with it.

Stores scrypt of what clients send, which is a hash already (gangline.domain.user.hash_password). Both functions take
some 0.2 s and 16 MiB on purpose, so callers run them in a thread and limit how many run at a time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

# The parameters that OWASP's Password Storage Cheat Sheet lists for 16 MiB.
_LOG2_COST, _BLOCK_SIZE, _PARALLELISM = 14, 8, 5
_NUM_BYTES = 32
# A stored form with larger ones is no form of ours, and would take the machine's memory.
_MAX_LOG2_COST, _MAX_FACTOR = 20, 64
SALT_BYTES = 16
# The stored form of no password. Comparing with it takes as long as with a real one.
UNKNOWN = f"scrypt${_LOG2_COST}${_BLOCK_SIZE}${_PARALLELISM}${'A' * 22}==${'A' * 43}="


def store_password(password: str, salt: bytes) -> str:
    """Returns the stored form. password: as clients send it. salt: SALT_BYTES random bytes."""
    digest = _scrypt(password, salt, _LOG2_COST, _BLOCK_SIZE, _PARALLELISM)
    parts = ("scrypt", _LOG2_COST, _BLOCK_SIZE, _PARALLELISM, _encode(salt), _encode(digest))
    return "$".join(str(part) for part in parts)


def is_password(stored: str, password: str) -> bool:
    """Returns whether the password has this stored form. A form that cannot be read belongs to no password."""
    try:
        name, log2_cost, block_size, parallelism, salt, digest = stored.split("$")
        costs = int(log2_cost), int(block_size), int(parallelism)
        expected, salt_bytes = base64.b64decode(digest, validate=True), base64.b64decode(salt, validate=True)
    except (ValueError, binascii.Error):
        return False
    if name != "scrypt" or not 0 < costs[0] <= _MAX_LOG2_COST or not all(0 < cost <= _MAX_FACTOR for cost in costs[1:]):
        return False
    return hmac.compare_digest(_scrypt(password, salt_bytes, *costs), expected)


def _scrypt(password: str, salt: bytes, log2_cost: int, block_size: int, parallelism: int) -> bytes:
    cost = 1 << log2_cost
    most_bytes = 128 * block_size * (cost + parallelism + 2) + (1 << 20)
    return hashlib.scrypt(
        password.encode(), salt=salt, n=cost, r=block_size, p=parallelism, maxmem=most_bytes, dklen=_NUM_BYTES
    )


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()
