"""One table of a task.toml, with typed reads."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InvalidError
from ..wire import names


class Table:
    """Table reads keys of a table. It collects mistakes, and the keys that were not read."""

    def __init__(self, at: str, values: dict[str, Any], problems: list[str], warnings: list[str]) -> None:
        self.at = at
        self.used: set[str] = set()
        self._values = values
        self._problems = problems
        self._warnings = warnings
        self._inner: dict[str, Table] = {}

    def name(self, key: str) -> str:
        """Return the full name of a key."""
        return f"{self.at}.{key}" if self.at else key

    def free(self) -> dict[str, Any]:
        """Return the values; the table may have any keys."""
        return self._values

    def _get(self, key: str, kinds: tuple[type, ...], want: str, default: Any) -> Any:
        self.used.add(key)
        value = self._values.get(key)
        if value is None:
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self._problems.append(f"{self.name(key)}: {value!r} is not valid: want {want}")
            return default
        return value

    def text(self, key: str) -> str:
        return str(self._get(key, (str,), "text", ""))

    def user(self, key: str) -> str:
        """Read a user's name or uid."""
        value = str(self._get(key, (str, int), "a user name or uid", ""))
        try:
            return names.check_user(self.name(key), value)
        except InvalidError as e:
            self._problems.append(str(e))
            return ""

    def flag(self, key: str) -> bool:
        return bool(self._get(key, (bool,), "true or false", False))

    def number(self, key: str) -> float:
        value = float(self._get(key, (int, float), "a number", 0))
        if value < 0 or math.isnan(value) or math.isinf(value):
            self._problems.append(f"{self.name(key)}: {value} is not valid: want a number of 0 or more")
            return 0
        return value

    def milliseconds(self, key: str, zero: bool = False) -> int:
        """Read a duration in seconds. With zero, 0 means the default."""
        value = self.number(key)
        there = key in self._values
        if there and (value > 30 * 24 * 3600 or (not value and not zero)):
            self._problems.append(f"{self.name(key)}: {value} is not valid: want seconds above 0, at most 30 days")
            return 0
        return max(int(value * 1000), 1) if value else 0

    def items(self, key: str) -> list[Any]:
        return list(self._get(key, (list,), "a list", []))

    def strings(self, key: str) -> list[str]:
        values = self.items(key)
        if not all(isinstance(v, str) for v in values):
            self._problems.append(f"{self.name(key)}: want a list of text")
            return []
        return values

    def texts(self, key: str) -> dict[str, str]:
        values = self._get(key, (dict,), "a table of text", {})
        if not all(isinstance(v, str) for v in values.values()):
            self._problems.append(f"{self.name(key)}: want a table of text")
            return {}
        return dict(values)

    def table(self, key: str) -> Table:
        if key not in self._inner:
            values = self._get(key, (dict,), "a table", {})
            self._inner[key] = Table(self.name(key), values, self._problems, self._warnings)
        return self._inner[key]

    def tables(self, key: str) -> list[Table]:
        out = []
        for i, value in enumerate(self.items(key)):
            at = f"{key}[{i}]"
            if isinstance(value, dict):
                self._inner[at] = Table(self.name(at), value, self._problems, self._warnings)
                out.append(self._inner[at])
            else:
                self._problems.append(f"{self.name(at)}: want a table")
        return out

    def report_unknown(self) -> None:
        """Warn of the keys that were not read, here and inside."""
        for key in self._values.keys() - self.used:
            self._warnings.append(f"task.toml: {self.name(key)} is an unknown key and has no effect")
        for key, inner in self._inner.items():
            if key not in ("task", "metadata", "steps"):
                inner.report_unknown()
