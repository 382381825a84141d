"""Architectures assembled from the parts in `nn`, and the folders they are kept in."""
