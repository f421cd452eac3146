"""`amgc serve`: a web page and an HTTP API for a model. Needs the extra `serve`."""
