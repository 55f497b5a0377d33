"""Proof that another engine's KV belongs to the reader's own tokens. Pure."""
