"""Perplexity and KL divergence over any source of log-probabilities or logits."""
