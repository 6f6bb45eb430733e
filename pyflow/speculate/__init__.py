"""Speculative decoding: drafters guess, the model verifies many guesses in one step."""
