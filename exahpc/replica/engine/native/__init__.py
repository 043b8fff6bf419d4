"""Kernels for CPUs, compiled on the node: `build` makes the library, `api` calls it."""
