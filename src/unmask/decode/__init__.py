"""One token after another: from a trained decoder to a text."""
