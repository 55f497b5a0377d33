"""Bring running nodes to the generation of their parameters, losing no request."""
