"""The rollouts of a trainer, from their submission to their results and groups."""
