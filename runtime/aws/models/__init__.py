"""Models in a deployment's bucket: filled by a person, read by nodes."""
