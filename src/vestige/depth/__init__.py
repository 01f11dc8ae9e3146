"""Is the knowledge gone from the layers, or only from what the model says?"""
