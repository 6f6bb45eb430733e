"""What a terminal shows, reads and sends."""
