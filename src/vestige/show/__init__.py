"""What a person sees in a terminal or a picture: tables, progress bars, plots. Nothing here sees a model."""
