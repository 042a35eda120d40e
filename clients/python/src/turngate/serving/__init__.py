"""The calls of agents, and their answers."""
