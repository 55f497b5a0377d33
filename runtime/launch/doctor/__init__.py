"""Whether a node can serve, and why not: one list of checks in three stages."""
