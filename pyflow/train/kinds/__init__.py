"""The networks that are trained: MLP speculators, Medusa heads and Kangaroo's adapter."""
