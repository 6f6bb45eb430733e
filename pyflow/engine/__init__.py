"""The engine under a Python face: models, contexts, and the machine that they run on."""
