"""What to do about the sinks of one model: measured here, then recommended."""
