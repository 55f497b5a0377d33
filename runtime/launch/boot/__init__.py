"""From a machine that has started to an engine that serves: steps in order, each told."""
