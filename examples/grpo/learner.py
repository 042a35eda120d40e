"""GRPO on training rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from policy import Network, Policy
from torch import Tensor

from turngate import Group


@dataclass
class Batch:
    """Batch is rows as tensors, one row of them per training row."""

    ids: Tensor
    mask: Tensor
    """True on the tokens of the policy."""
    logprobs: Tensor
    """As recorded when the tokens were sampled."""
    versions: Tensor
    advantages: Tensor


def batch_of(groups: Sequence[Group]) -> Batch:
    """Return the rows of groups, each with the advantage of its rollout."""
    of = {rollout: advantage for group in groups for rollout, advantage in group.advantages().items()}
    rows = [row for group in groups for row in group.rows if row.rollout in of]
    advantages = [of[row.rollout] for row in rows]
    fields = [row.torch() for row in rows]
    pad = torch.nn.utils.rnn.pad_sequence
    return Batch(
        ids=pad([f["input_ids"] for f in fields], batch_first=True),
        mask=pad([f["loss_mask"] for f in fields], batch_first=True).bool(),
        logprobs=pad([f["logprobs"] for f in fields], batch_first=True),
        versions=pad([f["versions"] for f in fields], batch_first=True, padding_value=-1),
        advantages=torch.tensor(advantages),
    )


class Learner:
    """Learner trains a copy of a policy's network."""

    def __init__(self, policy: Policy, lr: float = 2e-3, epochs: int = 8) -> None:
        self._policy = policy
        self._network = copy.deepcopy(policy.network)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=lr)
        self._epochs = epochs

    def train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take steps on a batch, and return the new weights."""
        for _ in range(self._epochs):
            ratio = (self._network.of_tokens(batch.ids) - batch.logprobs).exp()
            gain = batch.advantages[:, None]
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.25) * gain)
            loss = -clipped[batch.mask].mean()
            self._optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
            self._optimizer.step()
        return self._network.state_dict()

    @torch.no_grad()
    def differences(self, batch: Batch) -> Tensor:
        """Compute the log-probs again, each with the weights that sampled its token.

        Returns:
            The difference from the recorded one, for each token of the policy.
        """
        network, out = Network(), []
        for version in batch.versions[batch.mask].unique().tolist():
            network.load_state_dict(self._policy.versions[version])
            here = batch.mask & (batch.versions == version)
            out.append((network.of_tokens(batch.ids) - batch.logprobs)[here].abs())
        return torch.cat(out)
