"""The page, its tables and its figures, made of results. Nothing here sees a model."""
