"""Messages as msgpack and as JSON."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import msgpack

from ..errors import InvalidError, ShapeError
from . import messages_generated as schema
from .fields import Wire
from .packed import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from .shape import check_shape

T = TypeVar("T")

_NO_BOUNDS = Wire()


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    attribute: str
    name: str
    wire: Wire
    bounded: bool
    of: type | None  # dataclass of the value, or of each entry
    shape: type | None  # list or dict around it
    leaf: type | None  # a type that needs no conversion
    optional: bool  # None is a value


@functools.cache
def _plan(cls: Hashable) -> tuple[_Field, ...]:
    assert isinstance(cls, type)
    assert dataclasses.is_dataclass(cls)
    hints = typing.get_type_hints(cls, vars(schema))
    out = []
    for f in dataclasses.fields(cls):
        described = f.metadata.get("wire", _NO_BOUNDS)
        inner, shape = hints[f.name], None
        optional = isinstance(inner, types.UnionType)
        if optional:
            inner = typing.get_args(inner)[0]
        if typing.get_origin(inner) in (list, dict):
            shape = typing.get_origin(inner)
            inner = typing.get_args(inner)[-1]
        of = inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None
        bounds = dataclasses.replace(described, name="", form="", keep=False)
        leaf = None if of or described.form else inner
        out.append(_Field(f.name, described.name or f.name, described, bounds != _NO_BOUNDS, of, shape, leaf, optional))
    return tuple(out)


def encode(message: Any) -> bytes:
    """Return a message as msgpack.

    Raises:
        InvalidError: A field has a wrong value.
    """
    return typing.cast(bytes, msgpack.packb(_to_wire(message, ""), use_bin_type=True))


def decode(cls: type[T], data: bytes) -> T:
    """Return the message that data has as msgpack. Input of any form is safe.

    Raises:
        ShapeError: The bytes are no msgpack map within the bounds.
        InvalidError: A field has a wrong type or value.
    """
    return _from_wire(cls, unpack_map(data), "")


def unpack_map(data: bytes) -> dict[str, Any]:
    """Return a msgpack map as a dict, without the types of a message.

    Raises:
        ShapeError: The bytes are no msgpack map within the bounds.
    """
    check_shape(data)
    try:
        return typing.cast("dict[str, Any]", msgpack.unpackb(data, raw=False, strict_map_key=True))
    except (ValueError, msgpack.UnpackException) as e:  # a text that is not UTF-8, a key that is no text
        raise ShapeError(f"malformed message: {e}") from None


def raw_json(value: Any, field: str = "json") -> bytes:
    """Return a JSON value as text. Bytes are JSON text already and stay as they are.

    Raises:
        InvalidError: The value cannot be written as JSON.
    """
    if isinstance(value, bytes):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as e:
        raise InvalidError(field, e, "want a JSON value, or bytes with JSON text") from None


def parse_json(text: bytes, field: str = "json") -> Any:
    """Return the value of JSON text.

    Raises:
        InvalidError: The bytes are not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise InvalidError(field, e, "want JSON") from None


def _to_wire(message: Any, at: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for f in _plan(typing.cast(Hashable, type(message))):
        value = getattr(message, f.attribute)
        described = f.wire
        if not described.form and value is not None:
            _check_types(f, value, at + f.name)
        if f.bounded:
            _check(described, value, at + f.name)
        if described.form:
            if value is None or (described.form != "json" and not len(value)):
                if described.keep:
                    out[f.name] = b"null" if described.form == "json" else b""
                continue
            value = _pack(f, value, at + f.name)
            if value or described.keep:
                out[f.name] = value
            continue
        whole = f.of is not None and f.shape is None and value is not None  # a part of the message is always sent
        if f.of is not None and value is not None:
            value = _map_entries(f, value, at)
        if value or whole or described.keep or (f.optional and value is not None):
            out[f.name] = value
    return out


def _check_types(f: _Field, value: Any, field: str) -> None:
    """Check that a value has the type of its field, so that a wrong one is named before it is sent."""
    entries: Any = ((field, value),)
    if f.shape is dict:
        if not isinstance(value, Mapping):
            raise InvalidError(field, value, "want a dict")
        for key in value:
            if not isinstance(key, str):
                raise InvalidError(field, key, "want texts as names")
        entries = ((f"{field}[{k!r}]", v) for k, v in value.items())
    elif f.shape is list:
        if not isinstance(value, list | tuple):
            raise InvalidError(field, value, "want a list")
        entries = ((f"{field}[{i}]", v) for i, v in enumerate(value))
    allowed = (f.of,) if f.of is not None else _TYPES.get(f.leaf, (object,))
    for name, entry in entries:
        if not isinstance(entry, allowed) or (isinstance(entry, bool) and f.leaf in (int, float)):
            want = f.of.__name__ if f.of is not None else _NAMES.get(f.leaf, "another type")
            raise InvalidError(name, entry, f"want {want}")


def _map_entries(f: _Field, value: Any, at: str) -> Any:
    if f.shape is list:
        return [_to_wire(v, f"{at}{f.name}[{i}].") for i, v in enumerate(value)]
    if f.shape is dict:
        return {k: _to_wire(v, f"{at}{f.name}.{k}.") for k, v in value.items()}
    return _to_wire(value, f"{at}{f.name}.")


def _pack(f: _Field, value: Any, field: str) -> Any:
    if f.wire.form == "ids":
        return pack_ids(value, field)
    if f.wire.form == "logprobs":
        return pack_logprobs(value, field)
    if f.shape is list:
        return [raw_json(v, field) for v in value]
    if f.shape is dict:
        return {k: raw_json(v, f"{field}.{k}") for k, v in value.items()}
    return raw_json(value, field)


def _check(b: Wire, value: Any, field: str) -> None:
    if b.required and (value is None or (not value and not isinstance(value, dict))):
        raise InvalidError(field, "", "it is required")
    if b.low is not None and b.high is not None and not b.low <= value <= b.high:
        raise InvalidError(field, value, f"want {b.low} to {b.high}")
    if b.one_of and value:
        for choice in value if isinstance(value, list) else (value,):
            if choice not in b.one_of:
                raise InvalidError(field, choice, "want one of " + ", ".join(b.one_of))
    if b.most and value is not None:
        size = len(value.encode()) if isinstance(value, str) else len(value)
        if size > b.most:
            raise InvalidError(field, f"{size} {'bytes' if isinstance(value, str) else 'entries'}", f"at most {b.most}")
    if b.each:
        for i, text in value.items() if isinstance(value, dict) else enumerate(value):
            if len(text.encode()) > b.each:
                raise InvalidError(f"{field}[{i}]", f"{len(text.encode())} bytes", f"at most {b.each}")


_TYPES: Mapping[Any, tuple[type, ...]] = {
    str: (str,), int: (int,), bool: (bool,), float: (int, float), bytes: (bytes, bytearray),
}  # fmt: skip
_NAMES: Mapping[Any, str] = {str: "a text", int: "a number without a fraction", bool: "True or False",
                             float: "a number", bytes: "bytes"}  # fmt: skip
_LEAVES: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), bool: (bool,), float: (int, float)}


def _from_wire(cls: type[T], values: Mapping[str, Any], at: str) -> T:
    return _build(cls, values, at, _from_packed)


def _build(cls: type[T], values: Mapping[str, Any], at: str, unpack: Callable[[_Field, Any, str], Any]) -> T:
    given: dict[str, Any] = {}
    for f in _plan(typing.cast(Hashable, cls)):
        value = values.get(f.name)
        if value is None:
            continue
        name = at + f.name
        if f.shape is not None and not isinstance(value, f.shape):
            raise InvalidError(name, type(value).__name__, f"want a {f.shape.__name__}")
        if f.wire.form or f.leaf is bytes:
            given[f.attribute] = unpack(f, value, name)
        elif f.of is not None:
            given[f.attribute] = _build_entries(f, value, name, unpack)
        else:
            given[f.attribute] = _leaf(f, value, name)
    return cls(**given)


def _build_entries(f: _Field, value: Any, name: str, unpack: Callable[[_Field, Any, str], Any]) -> Any:
    assert f.of is not None
    if f.shape is list:
        return [_build(f.of, _mapping(v, name), f"{name}[{i}].", unpack) for i, v in enumerate(value)]
    if f.shape is dict:
        return {k: _build(f.of, _mapping(v, name), f"{name}.{k}.", unpack) for k, v in value.items()}
    return _build(f.of, _mapping(value, name), name + ".", unpack)


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidError(name, type(value).__name__, "want a map")
    return value


def _leaf(f: _Field, value: Any, name: str) -> Any:
    allowed = _LEAVES.get(f.leaf)
    if allowed is None:
        return value
    entries = [value] if f.shape is None else value if f.shape is list else value.values()
    for entry in entries:
        if not isinstance(entry, allowed) or (isinstance(entry, bool) and f.leaf is not bool):
            raise InvalidError(name, type(entry).__name__, f"want {f.leaf.__name__ if f.leaf else ''}")
    return value


def _from_packed(f: _Field, value: Any, name: str) -> Any:
    entries = [value] if f.shape is None else value if f.shape is list else value.values()
    for entry in entries:
        if not isinstance(entry, bytes):
            raise InvalidError(name, type(entry).__name__, "want a bin")
    if f.wire.form == "ids":
        return unpack_ids(value)
    if f.wire.form == "logprobs":
        return unpack_logprobs(value)
    if not f.wire.form:
        return value
    if f.shape is list:
        return [parse_json(v, name) for v in value]
    if f.shape is dict:
        return {k: parse_json(v, f"{name}.{k}") for k, v in value.items()}
    return parse_json(value, name) if value else None


def to_json(message: Any) -> dict[str, Any]:
    """Return a message as a JSON object: raw JSON in its place, token data as lists, bytes as base64."""
    out: dict[str, Any] = {}
    for f in _plan(typing.cast(Hashable, type(message))):
        value = getattr(message, f.attribute)
        if f.wire.form == "json":
            value = json.loads(value) if isinstance(value, bytes) else value
        elif f.wire.form:
            value = [v if math.isfinite(v) else None for v in value]
        elif f.of is not None and value is not None:
            if f.shape is list:
                value = [to_json(v) for v in value]
            elif f.shape is dict:
                value = {k: to_json(v) for k, v in value.items()}
            else:
                value = to_json(value)
        elif f.leaf is bytes:
            value = base64.b64encode(value).decode()
        if value or f.wire.keep or (f.optional and value is not None):
            out[f.name] = value
    return out


def from_json(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return the message that values has in the form of to_json.

    Raises:
        InvalidError: A field has a wrong type.
    """
    return _build(cls, values, "", _from_text)


def _from_text(f: _Field, value: Any, name: str) -> Any:
    try:
        if f.wire.form == "ids":
            return unpack_ids(pack_ids(value))
        if f.wire.form == "logprobs":
            return unpack_logprobs(pack_logprobs([-math.inf if v is None else v for v in value]))
        if not f.wire.form:
            return base64.b64decode(value)
    except (TypeError, ValueError) as e:
        raise InvalidError(name, e, "want the JSON form of a message") from None
    return value
