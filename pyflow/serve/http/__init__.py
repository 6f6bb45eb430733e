"""HTTP itself: who may come in, bodies, answers and streams."""
