"""The state machine that validates a deployment."""
