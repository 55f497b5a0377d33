"""The KV-aware router: carries a handle from one turn of a conversation to the next."""
