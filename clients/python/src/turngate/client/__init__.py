"""Clients of a trainer, async and sync."""
