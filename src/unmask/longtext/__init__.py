"""Texts longer than a model reads at once: which windows it reads them in, and how the windows' answers join."""
