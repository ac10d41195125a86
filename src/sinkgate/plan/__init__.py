"""Planning: what to change in a model, and how, within what one has."""
