"""Pictures and pages made of results. Nothing here sees a model."""
