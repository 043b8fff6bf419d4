"""The deployment file: parsed once into frozen values, and what follows from them. Pure."""
