"""Measuring a deployment from outside, as its users see it: load, curves, knees.

load    N streams at once through the real endpoint
level   what one concurrency gave; pure
knee    where more concurrency stops to pay; pure
curve   one level after the other, beside what the deployment says of itself
report  the curve as JSON, CSV and picture

emulated  replicas that compute nothing, for tests, benches and plans
simulate  a deployment under load and faults, by a virtual clock
"""
