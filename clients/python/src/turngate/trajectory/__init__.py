"""Training rows from the transcripts of rollouts."""
