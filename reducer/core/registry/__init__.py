"""The registry's side of a lane: calls in, answers and documents to store out."""
