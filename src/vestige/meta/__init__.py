"""Measuring the measures: do metrics tell models that know from models that do not, and do they withstand attacks?"""
