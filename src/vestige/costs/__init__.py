"""What would it cost? An evaluation counted before it is paid for: tokens, models, time. No model runs."""
