"""The command line, one file per command. Help texts, lists and tables do not import torch."""
