"""Load for servers of OpenAI's API: what `pyflow bench serve` sends, and what it measures."""
