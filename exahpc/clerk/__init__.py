"""The clerk: runs submitted batches. One more process of the head; it and its workers may die at any time."""
