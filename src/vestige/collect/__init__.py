"""The only room that runs a model: Examples in, TokenStats and Texts out."""
