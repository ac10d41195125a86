"""Floor 5: what a change costs on held-out text."""
