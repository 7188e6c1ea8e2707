"""A small llama-style transformer in numpy, served in the dialect of llama.cpp's server.

It is the engine that is always there: it starts in well under a second, needs no model file, reaches
131,072 ids of context on one core, and can be told to misbehave in every way the plugin must catch.

Nothing is imported here on purpose: the process must set the number of BLAS threads before numpy loads.
"""
