"""Train speculators: small networks that guess how a model's own text goes on.

The base model stays as it is. `collect` keeps what it writes and its hidden states in files,
`kinds` has the networks, `loop` trains one and writes a folder that the drafters read.
docs/speculators.md has the recipe.
"""
