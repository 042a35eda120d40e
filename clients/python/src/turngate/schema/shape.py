"""The bounds of every msgpack body, checked before it is decoded."""

from __future__ import annotations

from ..errors import ShapeError

MAX_BODY = 32 << 20
"""Largest body in bytes, after decompression."""

MAX_DEPTH = 16
MAX_VALUES = 1 << 20

# Bytes of the length field, and further bytes, by the first byte of a value.
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}


def check_shape(data: bytes) -> None:
    """Check that data is one msgpack map, nested at most MAX_DEPTH deep, with all lengths inside the data.

    It neither recurses nor allocates, so input of any form is safe.

    Raises:
        ShapeError: It is not.
    """
    size = len(data)
    if size > MAX_BODY:
        raise ShapeError(f"malformed message: {size} bytes, at most {MAX_BODY} are read")
    if not size or not (0x80 <= data[0] <= 0x8F or data[0] in (0xDE, 0xDF)):
        raise ShapeError("malformed message: not a map")
    left: list[int] = []
    values = pos = 0
    while True:
        if pos >= size:
            raise ShapeError("malformed message: cut off")
        c = data[pos]
        pos += 1
        children = 0
        if c <= 0x7F or c >= 0xE0:
            pass
        elif c <= 0x8F:
            children = 2 * (c & 0x0F)
        elif c <= 0x9F:
            children = c & 0x0F
        elif c <= 0xBF:
            pos += c & 0x1F
        elif c in _FIXED:
            pos += _FIXED[c]
        elif c in _SIZED:
            width = _SIZED[c]
            pos += width + int.from_bytes(data[pos : pos + width], "big") + (0xC7 <= c <= 0xC9)
        elif 0xDC <= c <= 0xDF:
            width = 4 if c & 1 else 2
            children = int.from_bytes(data[pos : pos + width], "big") * (2 if c >= 0xDE else 1)
            pos += width
        else:
            raise ShapeError(f"malformed message: byte 0x{c:02x} starts no value")
        if pos > size or children > size - pos:  # every child has at least one byte
            raise ShapeError("malformed message: cut off")
        values += children + 1
        if values > MAX_VALUES:
            raise ShapeError(f"malformed message: more than {MAX_VALUES} values")
        if left:
            left[-1] -= 1
        if children:
            if len(left) == MAX_DEPTH:
                raise ShapeError(f"malformed message: nested deeper than {MAX_DEPTH}")
            left.append(children)
        while left and not left[-1]:
            left.pop()
        if not left:
            break
    if pos != size:
        raise ShapeError(f"malformed message: {size - pos} bytes behind the end")
