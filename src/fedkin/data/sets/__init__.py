"""One file per data set. A new file here, with a function under `@dataset(...)`, is a new data set."""
