"""Shapes of a node, TP x PP x replicas, under the same load: which one serves best.

shapes    which there are (pure)    trials    what came out, and the choice (pure)    run    one after the
other
"""
