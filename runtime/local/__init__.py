"""The one-machine cluster: tiny model, mock engine, demo."""
