"""Small open models that ship inside packages of the Python package registry: something to serve at once."""
