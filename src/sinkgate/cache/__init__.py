"""What a key-value cache keeps, and how many bytes that is."""
