"""Files and their formats: storage, checkpoints' shards, records, events."""
