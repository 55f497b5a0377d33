"""Starts engines: a pure spec-to-command function, and the supervision of processes."""
