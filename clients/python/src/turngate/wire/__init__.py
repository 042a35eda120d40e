"""The connection to NATS, and the forms in which messages travel."""
