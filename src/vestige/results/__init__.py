"""What finished runs say: compare, diff, verify, pack, import, explain, ls. No model runs."""
