"""Rows from files or a hub, chat templates, spans: everything up to an Example."""
