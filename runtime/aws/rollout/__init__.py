"""Bring running nodes to the generation of their parameters, each drained first."""
