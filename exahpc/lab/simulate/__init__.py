"""The real decision code of a deployment under a virtual clock, with emulated replicas: `exahpc simulate`.

scenario    what arrives, what breaks, what it is measured by
"""
