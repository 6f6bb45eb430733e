"""Requests and answers in a file, and how they are made again."""
