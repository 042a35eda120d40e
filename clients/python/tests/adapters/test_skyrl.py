"""SkyRL's generator with a real worker; its engines are a stand-in with the form of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from turngate import Result, Rows

pytest.importorskip("skyrl", reason="SKIPPED: skyrl is not installed; make adapters installs it")

import endings
import tiny
from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInput
from skyrl.train.generators.base import GeneratorInterface, GeneratorOutput, TrajectoryID
from skyrl.train.generators.utils import apply_overlong_filtering
from test_verl import GOOD, read

from turngate.adapters.rollouts import Episode
from turngate.adapters.skyrl import TurngateGenerator, _rewards


class Engines:
    asked: list[dict[str, Any]]
    way = "stop"

    async def generate(self, input_batch: dict[str, Any]) -> dict[str, Any]:
        assert set(input_batch) <= set(InferenceEngineInput.__annotations__)
        self.asked.append(input_batch)
        first = sum(a["session_ids"] == input_batch["session_ids"] for a in self.asked) == 1
        if not first and self.way in ("context", "agent"):
            raise endings.RefusedError(endings.TOO_LONG if self.way == "context" else "top_p must be above 0")
        if not first and self.way == "timeout":
            await asyncio.Event().wait()
        return {
            "responses": ["good"],
            "response_ids": [[GOOD]],
            "stop_reasons": ["length" if first and self.way == "length" else "stop"],
            "response_logprobs": [[-0.5]],
        }


@pytest.fixture
async def generator(server: Server) -> AsyncIterator[TurngateGenerator]:
    engines = Engines()
    engines.asked = []
    generator = TurngateGenerator(
        engines, tiny.tokenizer(), lambda row: endings.task(row["task"], row.get("way", "stop")), url=server.url,
        creds=server.creds("trainer-alpha"), name="alpha", parse=read, sandbox="local",
    )  # fmt: skip
    yield generator
    await generator.aclose()


def test_an_unknown_reward_is_the_mean_of_its_group() -> None:
    known, unknown = Episode(Result(reward=0.5), Rows(Result()), b""), Episode(Result(), Rows(Result()), b"")
    assert _rewards([known, unknown, unknown], ["a", "a", "b"]) == [0.5, 0.5, 0.0]


async def test_trajectories_are_rollouts(generator: TurngateGenerator, tasks: Path) -> None:
    assert isinstance(generator, GeneratorInterface)
    names = ["hello", "broken-setup", "hello"]
    out = await generator.generate(
        {
            "prompts": [[{"role": "user", "content": "x"}]] * 3, "env_classes": ["turngate"] * 3,
            "env_extras": [{"task": tasks / name} for name in names], "sampling_params": {"temperature": 0.5},
            "trajectory_ids": [TrajectoryID(name, i) for i, name in enumerate(names)], "batch_metadata": None,
        }
    )  # fmt: skip
    assert set(out) <= set(GeneratorOutput.__annotations__)
    assert out["rewards"] == [1.0, 0.0, 1.0]  # the second one is not known, and has no others in its group
    assert out["loss_masks"][1] == [0]
    assert out["stop_reasons"] == ["stop", "error", "stop"]
    assert [t.repetition_id for t in out["trajectory_ids"]] == [0, 1, 2]
    for i in (0, 2):
        assert sum(out["loss_masks"][i]) == 2
        assert out["response_ids"][i][0] == out["response_ids"][i][-1] == GOOD
        assert out["rollout_logprobs"][i] == [-0.5 * m for m in out["loss_masks"][i]]
    asked = generator._engines.asked
    assert len(asked) == 4
    rollouts = sorted({a["session_ids"][0] for a in asked})  # of one group
    assert rollouts[0][:-1] == rollouts[1][:-1]
    assert [r[-1] for r in rollouts] == ["0", "1"]
    assert asked[0]["sampling_params"] == {"temperature": 0.5}
    assert asked[0]["prompt_token_ids"][0] in out["prompt_token_ids"]


WORDS = dict.fromkeys(("length", "context", "cap", "timeout"), "length") | {
    "stop": "stop",
    "agent": "error",
    "fault": "error",
}


@pytest.mark.parametrize("way", endings.WAYS)
async def test_a_trajectory_has_the_word_of_its_end(generator: TurngateGenerator, tasks: Path, way: str) -> None:
    generator._engines.way = way
    out = await generator.generate(
        {
            "prompts": [[{"role": "user", "content": "x"}]], "env_classes": ["turngate"], "sampling_params": None,
            "env_extras": [{"task": tasks / "hello", "way": way}], "trajectory_ids": None, "batch_metadata": None,
        }
    )  # fmt: skip
    assert out["stop_reasons"] == [WORDS[way]]
    ended = {name: out["rollout_metrics"][f"turngate/ended_{name}"] for name in endings.WAYS}
    assert ended == {name: int(name == way) for name in endings.WAYS}
    [filtered] = apply_overlong_filtering(out["loss_masks"], out["stop_reasons"])
    assert (1 in filtered) == (way == "stop")
