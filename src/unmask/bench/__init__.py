"""How fast a model is here, and beside others."""
