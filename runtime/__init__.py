"""turnback: disaggregated vLLM serving with verified bidirectional KV transfer."""
