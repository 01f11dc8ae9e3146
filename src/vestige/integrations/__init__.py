"""Bridges to other people's code: user plug-ins, metrics written for open-unlearning."""
