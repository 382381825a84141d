"""Models for other programs: ONNX, and what is made from it."""
