"""One deployment on more and more nodes: how throughput grows, and where it bends.

values    what is asked and what came out    fit       the law behind the curve (pure)
climb     on a cluster, or in simulation     report    files and pictures
"""
