"""What leaves the store: files other tools read."""
