"""What happens on a client: stacked training, evaluation, statistics."""
