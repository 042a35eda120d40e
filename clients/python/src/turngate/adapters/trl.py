"""Rollouts in TRL's GRPOTrainer: pip install 'turngate[trl]'.

with SyncClient.connect(url, creds, "local") as client:
    rollouts = RolloutFunc(client, Task.load, TrainedModel(), agent="mini", sandbox="local")
    GRPOTrainer(model, reward_funcs=reward, rollout_func=rollouts, ...).train()
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch
from trl import GRPOTrainer

from ..client.sync import SyncClient
from ..schema import Reply
from ..serving.call import Call
from ..serving.policy import Policy
from ..serving.refusal import too_long
from ..trajectory.ending import TRUNCATED
from .chat import Chat, Parse
from .rollouts import Episode, Rollouts, Sample, ToTask


class TrainedModel:
    """TrainedModel answers calls with the trainer's own model in this process, one at a time.

    It is meant for one process and small models. A trainer with an engine answers from that engine instead.
    """

    def __init__(self, parse: Parse | None = None, **options: Any) -> None:
        """Prepare answers; see Chat for the arguments."""
        self._parse, self._options = parse, options
        self._lock = threading.Lock()
        self._chat: Chat | None = None

    trainer: GRPOTrainer
    """Set by RolloutFunc."""

    def __call__(self, call: Call) -> Reply:
        trainer = self.trainer
        with self._lock:
            self._chat = chat = self._chat or Chat(trainer.processing_class, self._parse, **self._options)
            prompt = chat.prompt_ids(call)
            ids, logprobs = self._generate(prompt)
        version = int(trainer.state.global_step)
        cut = len(ids) == trainer.max_completion_length and ids[-1] not in trainer.eos_token_ids
        return chat.reply(call, prompt, ids, logprobs, version=version, cut=cut)

    @torch.no_grad()
    def _generate(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        context = getattr(model.config, "max_position_embeddings", None)
        if context and len(prompt) >= context:
            raise too_long(f"the prompt has {len(prompt)} tokens, and the model's context {context}")
        config = copy.deepcopy(trainer.generation_config)
        config.return_dict_in_generate = config.output_logits = True
        training = model.training
        model.eval()
        try:
            out = model.generate(
                torch.tensor([prompt], device=model.device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
                generation_config=config,
            )
        finally:
            model.train(training)
        ids = out.sequences[0, len(prompt) :].tolist()
        logits = torch.stack([step[0] for step in out.logits]).float() / trainer.temperature
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(ids)), ids]
        return ids, chosen.tolist()


class RolloutFunc:
    """RolloutFunc is a rollout_func of GRPOTrainer: equal prompts beside each other become one group of rollouts.

    It returns one row per rollout: the one with the most tokens of the model. A rollout without rows has one masked
    token. turngate_reward is None where the reward is not known, and turngate_ended says why the rollout ended.
    TRL takes a completion for whole if it ends with a token that ends answers: one masked token is added where this
    says otherwise than the rollout.
    """

    def __init__(self, client: SyncClient, task: ToTask, policy: Policy | None = None, **options: Any) -> None:
        """Prepare rollouts.

        Args:
            client: A connected client. Each process of a training run has a trainer's name of its own.
            task: It returns the task of a prompt. With Task.load, prompts are paths of tasks.
            policy: It answers model calls, such as TrainedModel(). Default: the client serves already.
            options: agent, sandbox, image, labels, concurrency and max_lost of Rollouts.
        """
        self._client = client
        self._policy = policy
        self._rollouts = Rollouts(client.client, task, policy, **options)

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Run a rollout for each prompt."""
        if isinstance(self._policy, TrainedModel):
            self._policy.trainer = trainer
        groups = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        episodes = [e for group in self._client._run(self._rollouts.groups(groups)) for e in group]
        ends = [int(i) for i in trainer.eos_token_ids]
        samples = [_sample(e, ends, getattr(trainer.processing_class, "pad_token_id", None)) for e in episodes]
        return {
            "prompt_ids": [s.prompt_ids for s in samples],
            "completion_ids": [s.response_ids for s in samples],
            "logprobs": [s.logprobs for s in samples],
            "env_mask": [s.mask for s in samples],
            "turngate_reward": [e.reward for e in episodes],
            "turngate_ended": [e.ended for e in episodes],
            "turngate_rollout": [e.result.id for e in episodes],
            "turngate_rows": [len(e.rows) for e in episodes],
            "turngate_left_out": [e.left_out for e in episodes],
        }


def _sample(episode: Episode, ends: list[int], pad: int | None) -> Sample:
    sample = episode.main or Sample([ends[0]], [ends[0]], [0], [0.0], [-1])
    ids, whole = sample.response_ids, episode.ended not in TRUNCATED
    if (ids[-1] in (*ends, pad)) != whole:
        others = (i for i in [*sample.prompt_ids, *ids] if i not in (*ends, pad))
        mark = ends[0] if whole else next(others, None)
        if mark is not None:
            sample = sample.with_context(mark)
    return sample


def reward(turngate_reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return the rewards of the rollouts' verifiers, as a reward function of GRPOTrainer."""
    return list(turngate_reward)
