"""What ranks send each other, and how it lies in bytes."""
