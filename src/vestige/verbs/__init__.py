"""The verbs of the command line: flags, and from flags to work.

Each module has `add_verbs(verbs)`, which adds its parsers. A parser's defaults say what its verb does: `do` is called
with the arguments and returns the exit status, `late` names the list that takes words written after flags.
Imports wait until a verb needs them, so that --help is instant.
"""
