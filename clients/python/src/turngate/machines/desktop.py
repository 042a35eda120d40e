"""The desktop of a machine: its screen, pointer and keyboard."""

from __future__ import annotations

import asyncio
import json
import struct
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidError, MachineError, OperationError, ShapeError
from .fleet import Fleet
from .line import Line
from .message import plain

CAPABILITY = "desktop"

HERE_WITHIN = 15.0
"""Seconds that an operation waits for its machine, which announces itself every 2 s."""

DO_WITHIN = 120.0
"""Seconds for an operation, with a minute without a connection."""

MOST_PNG = 32 << 20
"""Bytes of a screenshot."""

_MOST_ANSWER = 64 << 10
_MOST_POINT = 32767
_REFUSALS = ("unsupported", "full", "draining", "fenced")


@dataclass(frozen=True, slots=True)
class Screenshot:
    """Screenshot is a picture of a display."""

    png: bytes
    width: int
    """Pixels of the display, which the picture may have scaled."""
    height: int


class Desktop:
    """Desktop is the display of a machine that its owner offers with `turngate machine serve --desktop`.

    Points are pixels from the upper left corner, in a screenshot with the same max_side. max_side bounds the longer
    side of a screenshot; 0: it has the size of the display. Each method raises MachineError if the machine is not
    there or offers no desktop, and OperationError if the operation fails: its code is consent without the owner's
    `--desktop-input`, invalid for an argument, display, or no_answer: the machine may have carried it out.
    """

    def __init__(self, name: str, fleet: Fleet) -> None:
        self._name, self._fleet = name, fleet

    async def screenshot(self, *, max_side: int = 0) -> Screenshot:
        """Return a picture of the display."""
        return await self._do("screenshot", max_side=max_side)

    async def move(self, x: int, y: int, *, max_side: int = 0) -> None:
        """Move the pointer."""
        await self._do("move", x=x, y=y, max_side=max_side)

    async def click(self, x: int, y: int, *, button: str = "left", count: int = 1, max_side: int = 0) -> None:
        """Click with a button, which is left, middle or right, up to three times."""
        await self._do("click", x=x, y=y, button=button, count=count, max_side=max_side)

    async def drag(self, x: int, y: int, to_x: int, to_y: int, *, button: str = "left", max_side: int = 0) -> None:
        """Press a button at a point, and release it at another."""
        await self._do("drag", x=x, y=y, to_x=to_x, to_y=to_y, button=button, max_side=max_side)

    async def type(self, text: str) -> None:
        """Type a text of at most 4096 characters. A newline is the key Return."""
        await self._do("type", text=text)

    async def key(self, *keys: str) -> None:
        """Press keys one after another, such as ctrl+c, alt+F4, Return or plus; at most 32."""
        await self._do("key", keys=list(keys))

    async def scroll(self, x: int, y: int, direction: str, steps: int = 3, *, max_side: int = 0) -> None:
        """Scroll up, down, left or right at a point, at most 50 steps."""
        await self._do("scroll", x=x, y=y, direction=direction, steps=steps, max_side=max_side)

    async def _do(self, op: str, **fields: Any) -> Screenshot:
        order = order_of(op, fields)
        machine = await self._fleet.present(self._name, CAPABILITY, HERE_WITHIN)
        line = self._fleet.open(machine, CAPABILITY)
        try:
            answer, png = await asyncio.wait_for(self._exchange(line, order), DO_WITHIN)
            failed = bool(answer.get("code"))
            shown = Screenshot(b"", 0, 0)
            if op == "screenshot" and not failed:
                shown = picture_of(answer, png, fields["max_side"])
        except asyncio.TimeoutError:
            line.cancel("the client ends")
            raise OperationError(op, "no_answer", f"no answer within {DO_WITHIN:g} s") from None
        except (ConnectionError, ShapeError) as e:
            line.cancel("the client ends")
            if line.over.is_set() and line.end.reason in _REFUSALS:
                raise MachineError(self._name, line.end.reason, line.end.text or line.end.reason) from None
            ended = "" if isinstance(e, ShapeError) else line.end.text or line.end.reason
            raise OperationError(op, "no_answer", ended or str(e)) from None
        except BaseException:
            line.cancel("the client ends")
            raise
        line.finish()
        if failed:
            raise OperationError(op, plain(str(answer["code"])), plain(str(answer.get("error", ""))))
        return shown

    async def _exchange(self, line: Line, order: bytes) -> tuple[dict[str, Any], bytes]:
        await line.write(order)
        answer, size = answer_of(await line.text(_MOST_ANSWER))
        return answer, await line.exactly(size)


def order_of(op: str, fields: dict[str, Any]) -> bytes:
    """Return the line of an order, without the fields that are 0 or empty."""
    order = {"op": op} | {name: value for name, value in fields.items() if value}
    data = json.dumps(order, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(data) > _MOST_ANSWER:
        raise InvalidError("order", op, f"want at most {_MOST_ANSWER} bytes")
    return data


def picture_of(answer: dict[str, Any], png: bytes, max_side: int) -> Screenshot:
    """Return the picture behind an answer.

    Raises:
        ShapeError: It is no picture of the answer's display.
    """
    try:
        width, height = int(answer.get("width", 0)), int(answer.get("height", 0))
    except (ValueError, TypeError, OverflowError) as e:
        raise ShapeError(f"the machine's answer cannot be read: {e}") from None
    if not (0 < width <= _MOST_POINT and 0 < height <= _MOST_POINT):
        raise ShapeError(f"a display has {width} x {height} pixels")
    want, longer = (width, height), max(width, height)
    if 0 < max_side < longer:
        want = max((width * max_side + longer // 2) // longer, 1), max((height * max_side + longer // 2) // longer, 1)
    if len(png) < 24 or png[:8] != b"\x89PNG\r\n\x1a\n" or png[12:16] != b"IHDR":
        raise ShapeError("the screenshot is no PNG")
    if (got := struct.unpack(">II", png[16:24])) != want:
        raise ShapeError(f"the screenshot has {got[0]} x {got[1]} pixels, want {want[0]} x {want[1]}")
    return Screenshot(png, width, height)


def answer_of(text: bytes) -> tuple[dict[str, Any], int]:
    """Return an answer, and the number of bytes of the picture behind it.

    Raises:
        ShapeError: It is no answer.
    """
    try:
        answer: dict[str, Any] = json.loads(text)
        size = int(answer.get("bytes", 0))
    except (ValueError, AttributeError, TypeError, RecursionError, OverflowError) as e:
        raise ShapeError(f"the machine's answer cannot be read: {e}") from None
    if not 0 <= size <= MOST_PNG:
        raise ShapeError(f"a screenshot has {size} bytes")
    return answer, size
