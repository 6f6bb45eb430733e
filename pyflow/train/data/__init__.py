"""What speculators learn from: prompts, and a model's own answers with their hidden states."""
