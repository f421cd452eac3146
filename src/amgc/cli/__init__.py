"""The command line: one file per command. Nothing on the way to a help text, a list or a table imports torch."""
