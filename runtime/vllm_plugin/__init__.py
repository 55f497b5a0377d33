"""Runs inside vLLM: the verified connector and the streaming backport."""
