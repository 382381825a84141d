"""Encodings → ragged batches."""
