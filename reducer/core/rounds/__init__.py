"""What a lane knows of each stream, key, round and chunk of a run."""
