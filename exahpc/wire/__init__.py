"""Where processes meet: `messages` that they send, authenticated `link`s that carry them, and the deployment's
`folder` on the shared file system, where they find each other's addresses, numbers and keys. No process room
imports another; they all import this one.
"""
