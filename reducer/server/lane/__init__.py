"""The process of one lane, from its start to its drain."""
