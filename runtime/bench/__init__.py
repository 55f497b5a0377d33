"""The benchmark: a closed-loop multi-turn client that compares two arms."""
