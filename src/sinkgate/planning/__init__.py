"""Floor 7, decide: a diagnosis and a budget become a setting that was verified on held-out text, or "leave it"."""
