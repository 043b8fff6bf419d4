"""Checkpoints as files: small open models to fetch, conversion and INT8, and the copies that nodes keep of them.

Only what converts needs torch, and imports it when it does.
"""
