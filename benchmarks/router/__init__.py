"""The router beside vllm-router, on the same mock engines and the same load."""
