"""A CPU-first runtime for quantized language models."""
