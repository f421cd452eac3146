"""`amgc serve`: a model over HTTP, and a page to teach it in. Needs the extra `serve`."""
