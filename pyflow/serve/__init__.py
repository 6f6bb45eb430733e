"""An HTTP server over a model: the APIs of OpenAI and others, many users at once."""
