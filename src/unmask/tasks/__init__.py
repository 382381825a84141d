"""One file, one capability: what a model can be used for."""
