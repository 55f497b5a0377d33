"""What preflight asks of an account."""
