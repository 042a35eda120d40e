"""A bar of the results so far."""

from __future__ import annotations

from typing import Any

from ..errors import MissingPackageError
from ..schema import Result


class Progress:
    """Progress shows the number of results, their mean reward, and the number of those that failed.

    Raises:
        MissingPackageError: tqdm is not installed.
    """

    def __init__(self, outstanding: int) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise MissingPackageError("progress", "tqdm") from None
        self._bar: Any = tqdm(total=outstanding, unit="rollout")
        self._rewards: list[float] = []
        self._failed = 0

    def add(self, result: Result, outstanding: int) -> None:
        """Count a result. Rollouts may have been submitted since the one before."""
        if result.reward is not None:
            self._rewards.append(result.reward)
        self._failed += result.status != "done"
        said: dict[str, object] = {"failed": self._failed} if self._failed else {}
        if self._rewards:
            said["reward"] = f"{sum(self._rewards) / len(self._rewards):.3f}"
        self._bar.total = self._bar.n + 1 + outstanding
        self._bar.set_postfix(said, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
