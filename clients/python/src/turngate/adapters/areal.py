"""A workflow of AReaL whose episodes are rollouts: pip install ./clients/python beside areal.

workflow = TurngateWorkflow(config.gconfig, tokenizer, lambda row: Task.load(row["task"]), creds="trainer-local.nk")
trainer.train(workflow=workflow, ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from areal import workflow_context
from areal.api.io_struct import ModelRequest
from areal.api.workflow_api import RolloutWorkflow
from areal.utils import stats_tracker

from ..serving.call import Call
from ..serving.refusal import too_long
from ..trajectory.ending import ENDINGS
from .chat import Chat, Parse
from .engine import Generated, policy
from .rollouts import Connection, ConnectionOptions, ToTask

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TurngateWorkflow(RolloutWorkflow):
    """TurngateWorkflow runs a rollout for each row. AReaL's engine answers its model calls.

    Each row of a rollout is one sequence of the batch. An episode without a row, or with an unknown reward, is
    rejected. AReaL's batch has no word for the end of a rollout: its statistics turngate/ended_… have the shares of the
    reasons.
    """

    def __init__(
        self,
        gconfig: Any,
        tokenizer: Any,
        task: ToTask,
        *,
        parse: Parse | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        """Prepare rollouts.

        Args:
            gconfig: AReaL's GenerationHyperparameters for each model call.
            tokenizer: The policy's tokenizer.
            task: It returns the task of a row.
            parse: It reads the model's texts; see Chat.
            options: The server, the trainer, the agent and its sandbox; see ConnectionOptions.
        """
        self._gconfig, self._tokenizer = gconfig, tokenizer
        self._chat = Chat(tokenizer, parse)
        self._connection = Connection(task, options)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        """Run a rollout to its end."""

        async def ask(call: Call, prompt: list[int]) -> Generated:
            request = ModelRequest(
                rid=str(call.key), input_ids=prompt, gconfig=self._gconfig.new(n_samples=1), tokenizer=self._tokenizer
            )
            context = self._gconfig.max_tokens
            if len(prompt) >= context:  # AReaL's client keeps no words of an engine's refusal
                raise too_long(f"the prompt has {len(prompt)} tokens, and gconfig.max_tokens is {context}")
            out = await engine.agenerate(request)
            return Generated(out.output_tokens, out.output_logprobs, out.output_versions, out.stop_reason)

        rollouts = await self._connection.rollouts()
        episode = await rollouts.run(data, policy(self._chat, ask))
        stats = {f"turngate/ended_{name}": float(name == episode.ended) for name in ENDINGS}
        stats_tracker.get(workflow_context.stat_scope()).scalar(**stats)
        rows = [row for row in episode.rows if 1 in row.loss_mask]
        if not rows or episode.reward is None:
            return None
        longest = max(map(len, rows))
        columns = {name: [getattr(row, name).tolist() for row in rows] for name in _TYPES if name != "attention_mask"}
        columns["attention_mask"] = [[1] * len(row) for row in rows]
        out = {name: _padded(values, longest, _TYPES[name]) for name, values in columns.items()}
        return {**out, "rewards": torch.full((len(rows),), episode.reward, dtype=torch.float32)}

    async def aclose(self) -> None:
        """Close the connection. A later episode opens another one."""
        await self._connection.close()


_TYPES = {
    "input_ids": torch.int32,
    "loss_mask": torch.int32,
    "logprobs": torch.float32,
    "versions": torch.int32,
    "attention_mask": torch.bool,
}


def _padded(values: list[list[Any]], size: int, kind: torch.dtype) -> torch.Tensor:
    return torch.tensor([v + [0] * (size - len(v)) for v in values], dtype=kind)
