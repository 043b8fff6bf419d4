"""EMULATED replicas: they follow a latency model and compute nothing. Never a default; for tests, benches, plans.

model       how long a replica would take; pure
calibrate   the model's numbers from a measured curve
"""
