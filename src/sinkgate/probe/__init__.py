"""Floor 4: streaming reducers over sites, from a running model to a record."""
