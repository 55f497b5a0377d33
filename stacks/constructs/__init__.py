"""The few constructs of our own, and the pure functions they stand on."""
