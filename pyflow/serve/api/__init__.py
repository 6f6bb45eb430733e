"""The routes of a server: what each takes and gives."""
