"""A load client for any OpenAI endpoint, and what it measures.

lengths, source     what is asked          wish    the whole of it, as values
worker              one process that asks  run     several of them, from beginning to end
figures             from answers to figures (pure)
"""
