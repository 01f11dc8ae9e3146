"""Hydra's configuration groups, and how they are composed into plain data."""
