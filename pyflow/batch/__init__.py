"""Texts on their way: many requests, read and written together in steps of a runner."""
