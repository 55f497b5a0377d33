"""One stack per file; stacks only put constructs together."""
