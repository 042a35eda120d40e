"""Transcripts: what the agent asked and what it was answered, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import zstandard

from ..errors import ShapeError
from ..schema import TranscriptLine, codec
from ..wire.tame import tame

MOST_LINE = 64 << 20
"""Longest line in bytes. The largest request and the token ids of an answer are shorter."""

MOST_DECODED = 4 << 30
"""Most bytes of a transcript that are read."""

MOST_WINDOW = 8 << 20
"""Largest window of zstd in bytes. The recorder uses 1 MB."""

_READ = 2 << 10
"""Bytes that are decompressed at once: these can become 128 MB."""


def lines(data: bytes) -> Iterator[TranscriptLine]:
    """Yield the lines of a transcript in its stored form, JSON lines compressed with zstd.

    Raises:
        ShapeError: It is none.
    """
    for number, line in enumerate(raw_lines(data), 1):
        yield _line(number, line)


def raw_lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a transcript as JSON text.

    Raises:
        ShapeError: It is no zstd frame, is cut off, or is larger than the bounds.
    """
    rest = bytearray()
    total = 0
    for piece in _unpacked(data):
        total += len(piece)
        if total > MOST_DECODED:
            raise ShapeError(f"a transcript has more than {MOST_DECODED} bytes")
        if b"\n" not in piece:
            rest += piece
        else:
            first, *middle, last = piece.split(b"\n")
            for line in (bytes(rest) + first, *middle):
                _check_length(line)
                yield line
            rest = bytearray(last)
        _check_length(rest)
    if rest:
        yield bytes(rest)


def _check_length(line: bytes | bytearray) -> None:
    if len(line) > MOST_LINE:
        raise ShapeError(f"a line of a transcript has more than {MOST_LINE} bytes")


def _unpacked(data: bytes) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=MOST_WINDOW)
    view, at = memoryview(data), 0
    while at < len(data):
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at >= len(data):
                raise ShapeError("a transcript ends in the middle of a zstd frame")
            try:
                yield frame.decompress(view[at : at + _READ])
            except zstandard.ZstdError as e:
                raise ShapeError(f"a transcript is no zstd frame: {e}") from None
            at += min(_READ, len(data) - at)
        at -= len(frame.unused_data)


def _line(number: int, line: bytes) -> TranscriptLine:
    try:
        try:
            value = json.loads(line)
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError):
            value = json.loads(tame(line.decode(errors="replace")))
        return codec.from_json(TranscriptLine, value)
    except (ValueError, AttributeError, RecursionError) as e:
        raise ShapeError(f"line {number} of a transcript: {e}") from None
