"""Batch files: validated input, journals that survive anything, HDF5 results. See docs/explanation/batch.md."""
