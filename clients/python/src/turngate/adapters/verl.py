"""An agent loop of verl whose agent is any agent of turngate: pip install ./clients/python beside verl.

verl makes an agent loop for each row, from the entry of a file that agent_loop_config_path names:

    - name: turngate
      _target_: my_loop.AgentLoop
      url: nats://127.0.0.1:4222
      creds: trainer-local.nk
      sandbox: docker

    class AgentLoop(TurngateAgentLoop):          # my_loop.py
        def task(self, row):
            return Task.load(row["extra_info"]["task"])
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from ..schema import Request
from ..serving.call import Call
from ..tasks.task import Task
from ..wire.link import log
from .chat import Chat, read_tool_calls
from .engine import Generated, policy
from .rollouts import Connection, ConnectionOptions, Rollouts, Sample


class TurngateAgentLoop(AgentLoopBase):
    """TurngateAgentLoop runs one rollout for a row. verl's own servers answer its model calls.

    Each process of agent loops is a trainer, so actor_rollout_ref.rollout.agent.num_workers is 1, or each has
    credentials of its own. The loop returns the row with the most tokens of the model, within prompt_length and
    response_length: the rest of a longer prompt is context at the beginning of the response. Tokens of the model
    that do not fit are logged and counted in turngate_left_out, and a row without any has no reward. turngate_ended
    says why the rollout ended, since verl has no word for it.
    """

    _open: ClassVar[dict[tuple[Any, ...], Connection]] = {}  # verl makes a loop for each row

    def __init__(
        self,
        *args: Any,
        url: str = "nats://127.0.0.1:4222",
        creds: str | None = None,
        name: str = "local",
        agent: str = "mini",
        sandbox: str = "docker",
        image: str = "",
        max_lost: int = 0,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._options: ConnectionOptions = {
            "url": url, "creds": creds, "name": name,
            "agent": agent, "sandbox": sandbox, "image": image, "max_lost": max_lost,
        }  # fmt: skip

    def task(self, row: dict[str, Any]) -> Task | Request:
        """Return the task of a row of the data set.

        Raises:
            NotImplementedError: Override it.
        """
        raise NotImplementedError("TurngateAgentLoop.task: return the task of a row")

    def parse(self, text: str, call: Call) -> Mapping[str, Any]:
        """Return the assistant message that a generated text means."""
        return read_tool_calls(text, call)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """Run a rollout to its end."""
        rollouts = await self._rollouts()
        chat = Chat(self.tokenizer, self.parse, **self.apply_chat_template_kwargs)
        versions: list[int] = []

        async def generate(call: Call, prompt: list[int]) -> Generated:
            out = await self.server_manager.generate(
                request_id=call.rollout, prompt_ids=prompt, sampling_params=dict(sampling_params)
            )
            step = out.extra_fields.get("global_steps")
            if step is not None:
                versions.append(int(step))
            ids, end = out.token_ids, getattr(out, "stop_reason", None) or "stop"
            if ids and ids[-1] != self.tokenizer.eos_token_id and len(ids) >= self._bound(sampling_params, prompt):
                end = "length"
            return Generated(ids, out.log_probs or (), step, end)

        episode = await rollouts.run(_Row(self, kwargs), policy(chat, generate))
        messages = await asyncio.to_thread(lambda: episode.messages)
        sample = episode.main
        if sample is None:
            end = self.tokenizer.eos_token_id
            sample = Sample([end], [end], [0], [0.0], [-1])
        sampled, ended, size = sample.trained, episode.ended, len(sample.prompt_ids) + len(sample.response_ids)
        lengths = (self.rollout_config.prompt_length, self.rollout_config.response_length)
        sample = sample.within(*lengths)
        lost = sampled - sample.trained
        if ended == "stop" and len(sample.prompt_ids) + len(sample.response_ids) < size:
            ended = "length"
        if lost:
            log.warning(
                "rollout %s: %d of its %d trained tokens are left out, beyond prompt_length %d and response_length %d",
                episode.result.id, lost, sampled, *lengths,
            )  # fmt: skip
        extra: dict[str, Any] = {"turn_scores": [], "tool_rewards": [], "turngate_rollout": episode.result.id}
        extra |= {"turngate_ended": ended, "turngate_left_out": episode.left_out + lost}
        if versions:
            extra |= {"min_global_steps": min(versions), "max_global_steps": max(versions)}
        return AgentLoopOutput(
            prompt_ids=sample.prompt_ids,
            response_ids=sample.response_ids,
            response_mask=sample.mask,
            response_logprobs=sample.logprobs,
            reward_score=episode.reward if sample.trained else None,  # a reward without tokens moves the baseline
            num_turns=len(messages),
            metrics=AgentLoopMetrics(),
            extra_fields=extra,
        )

    def _bound(self, sampling: Mapping[str, Any], prompt: list[int]) -> int:
        """Return the largest length of an answer. verl's vLLM server calls an answer of this length completed, too."""
        most, response = self.rollout_config.prompt_length, self.rollout_config.response_length
        limits = [int(sampling[name]) for name in ("max_tokens", "max_new_tokens") if name in sampling]
        limits = limits or [int(response), int(most + response) - len(prompt)]
        context = getattr(self.rollout_config, "max_model_len", None)
        return max(1, min([*limits, int(context) - len(prompt)] if context else limits))

    async def aclose(self) -> None:
        """Close the connection of the loops with these settings. A later loop opens another one."""
        opened = self._open.pop(self._key(), None)
        if opened is not None:
            await opened.close()

    def _key(self) -> tuple[Any, ...]:
        return (*self._options.values(), id(asyncio.get_running_loop()))

    async def _rollouts(self) -> Rollouts:
        return await self._open.setdefault(self._key(), Connection(_Row.task, self._options)).rollouts()


class _Row:
    """A row with the loop that knows its task."""

    def __init__(self, loop: TurngateAgentLoop, values: dict[str, Any]) -> None:
        self._loop, self._values = loop, values

    def task(self) -> Task | Request:
        return self._loop.task(self._values)
