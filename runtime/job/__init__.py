"""What a validation does on a deployment's machines: `turnback job`."""
