"""What a model needs on a GPU: parameters, bytes, KV capacity, seconds a step, and how sure these are. Pure."""
