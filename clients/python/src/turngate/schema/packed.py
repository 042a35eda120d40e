"""Token ids and log-probs, packed in four bytes each."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from ..errors import InvalidError

_SWAP = sys.byteorder == "big"


def pack_ids(ids: Sequence[int], field: str = "token data") -> bytes:
    """Return token ids as little-endian int32.

    Raises:
        InvalidError: A value is no int32.
    """
    return _pack("i", ids, field, "token ids of 32 bits")


def pack_logprobs(values: Sequence[float], field: str = "token data") -> bytes:
    """Return log-probs as little-endian float32.

    Raises:
        InvalidError: A value is no number.
    """
    return _pack("f", values, field, "numbers")


def unpack_ids(data: bytes) -> Sequence[int]:
    """Return packed token ids as an array of int32, which numpy and torch read without a copy."""
    return _unpack("i", data)


def unpack_logprobs(data: bytes) -> Sequence[float]:
    """Return packed log-probs as an array of float32."""
    return _unpack("f", data)


def _pack(code: str, values: Sequence[float], field: str, want: str) -> bytes:
    if isinstance(values, array) and values.typecode == code:
        packed = values
    else:
        flat = values.tolist() if hasattr(values, "tolist") else values  # numpy and torch
        try:
            packed = array(code, flat)
        except (TypeError, OverflowError, ValueError) as e:
            raise InvalidError(field, e, f"want a list of {want}") from None
    if _SWAP:
        packed = array(code, packed)
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> array:  # type: ignore[type-arg]
    if len(data) % 4:
        raise InvalidError("token data", f"{len(data)} bytes", "a packed array has 4 bytes a value")
    out = array(code)
    out.frombytes(data)
    if _SWAP:
        out.byteswap()
    return out
