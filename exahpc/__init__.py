"""exahpc serves large language models on Slurm supercomputers."""

__version__ = "0.1.0"
