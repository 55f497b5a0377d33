"""All calls to AWS."""
