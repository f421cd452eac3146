"""One file per method. Each says what it trains, what it remembers and how it scores; the engine does the rest.

A method's file imports without torch, so that the command line can show its hyper-parameters at once: it takes torch and
the mathematics from `amgc.methods.lazy`.
"""
