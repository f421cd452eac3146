"""The data sets of the package, one or more per module. Each module registers them with `@data_set` and imports no torch."""
