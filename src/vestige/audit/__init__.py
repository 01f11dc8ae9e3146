"""Did it forget? Everything for one's own model and rows."""
