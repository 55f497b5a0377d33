"""Synthesis without an account; cdk is first, since it tells aws_cdk where Node is."""

import cdk  # noqa: F401
