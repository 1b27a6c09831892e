"""What a package may add to fedkin. Nothing here is imported until one of its names is asked for."""
