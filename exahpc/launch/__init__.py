"""Starts, watches and ends whole deployments: what stands behind `exahpc up`, `status` and `down`."""
