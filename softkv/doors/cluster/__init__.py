"""One handle over many stores, the shards: `softkv.open` of a directory with a manifest."""
