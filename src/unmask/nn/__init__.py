"""Tensors → tensors: the parts every architecture is composed of.

Axis letters used throughout the room and the models above it:

    R  rows: tokens of all sequences lying end to end (no padding, unless a layout says so)
    B  sequences in a batch or group        H  hidden size        V  vocabulary size
    S  source length, the keys              N  heads              F  feed-forward size
    T  target length, the queries           D  size of one head

In every mask True means *may attend*.
"""
