"""Smaller and faster models that keep a contract: a model folder in, a smaller one and a report out."""
