"""Hashes of the parts of a call in their normal form.

The normal form is RFC 8785 JSON without cache_control, with a content of a
single text part written as a string.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any

NO_TOOLS = b"[]"


class _Number(str):
    """The canonical text of a number."""

    __slots__ = ()


def _number(text: str) -> _Number:
    if len(text) <= 15 and text.lstrip("-").isdigit() and text != "-0":
        return _Number(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        value = 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308
    return _Number(write_number(value))


def write_number(value: float) -> str:
    """Write a number as ECMAScript does (ECMA-262, Number::toString)."""
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + ("" if fraction == "0" else fraction)).lstrip("0")
    point = len(whole) + int(exponent or 0)
    if whole == "0":
        point = int(exponent or 0) - (len(fraction) - len(fraction.lstrip("0")))
    digits = digits.rstrip("0") or "0"
    n = len(digits)
    if n <= point <= 21:
        text = digits + "0" * (point - n)
    elif 0 < point <= 21:
        text = digits[:point] + "." + digits[point:]
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        e = point - 1
        text = digits[0] + ("." + digits[1:] if n > 1 else "") + ("e+" if e > 0 else "e-") + str(abs(e))
    return "-" + text if value < 0 else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name is repeated")
    return out


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_number, parse_int=_number, parse_constant=_constant)


def _units(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _canonical(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, dict):
        names = sorted(value) if all(name.isascii() for name in value) else sorted(value, key=_units)
        return "{" + ",".join([f"{encode_basestring(name)}:{_canonical(value[name])}" for name in names]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_canonical(v) for v in value]) + "]"
    return "null" if value is None else "true" if value else "false"


def _parse(raw: bytes) -> Any:
    text = raw.decode().strip(" \t\n\r")
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("something follows the value")
    return value


def _hash(raw: bytes, change: Any) -> bytes:
    try:
        normal = _canonical(change(_parse(raw))).encode()
    except (ValueError, RecursionError):  # no JSON, a repeated name, or characters that are not valid Unicode
        normal = raw
    return hashlib.sha256(normal).digest()


def _plain(value: Any) -> Any:
    """Return an element or part without cache_control."""
    if isinstance(value, dict) and "cache_control" in value:
        return {k: v for k, v in value.items() if k != "cache_control"}
    return value


def _normal_message(value: Any) -> Any:
    value = _plain(value)
    if not isinstance(value, dict) or not isinstance(value.get("content"), list):
        return value
    parts = [_plain(part) for part in value["content"]]
    content: Any = parts
    if len(parts) == 1 and isinstance(parts[0], dict) and len(parts[0]) == 2:
        part = parts[0]
        text = part.get("text")
        if part.get("type") == "text" and isinstance(text, str) and not isinstance(text, _Number):
            content = text
    return {**value, "content": content}


def hash_message(raw: bytes) -> bytes:
    """Return the hash of one message."""
    return _hash(raw, _normal_message)


def hash_tools(raw: bytes) -> bytes:
    """Return the hash of a list of tools. No tools hash as an empty list."""
    return _hash(raw or NO_TOOLS, lambda v: [_plain(tool) for tool in v] if isinstance(v, list) else v)


def hash_params(params: Mapping[str, bytes]) -> bytes:
    """Return the hash of the parameters as one object."""
    members = [json.dumps(name, ensure_ascii=False).encode() + b":" + value for name, value in params.items()]
    return _hash(b"{" + b",".join(members) + b"}", lambda v: v)


def digest(messages: Iterable[bytes], tools: bytes, params: bytes) -> bytes:
    """Return the digest of a call from the hashes of its parts."""
    total = hashlib.sha256()
    for message in messages:
        total.update(message)
    total.update(tools)
    total.update(params)
    return total.digest()
