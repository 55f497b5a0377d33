"""What clients say: built from a profile, from vLLM's generator files, or read."""
