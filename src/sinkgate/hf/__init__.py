"""Floor 3: the only folder that knows transformers."""
