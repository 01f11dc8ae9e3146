"""Words that carry no fact by themselves: facts are looked for among the others."""

from __future__ import annotations

_WORDS = """
    a an the of in on at to for from by with as and or but nor so is are was were be been being am it its this that
    these those he she they his her their him them who whom whose which what when where why how has have had do does
    did not no yes also into onto over under about between through during after before since until than then there here
    very most more such own can could will would shall should may might must i you we my your our me us named called
    titled known
"""
FUNCTION_WORDS = frozenset(_WORDS.split())
