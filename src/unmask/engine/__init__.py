"""The fast CPU form of a model: kernels of our own where a compiler is at hand, torch where it is not."""
